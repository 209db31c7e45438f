"""Probed walks: they give what bounded ones give, refuse rows that are wrong, and no Jacobian exceeds them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import jacobian_norm, points, program_of, residual_network, seeded
from normscope.lipschitz.local import ball, piecewise_linear, precise_values
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.bounded_rounding import BoundedRoundingPropagation, RoundingError
from normscope.lipschitz.local.feedback_system import gain
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.probed_rounding import PROBES, ProbedPropagation, failure_probability
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.local.tangents import UnboundedError
from normscope.lipschitz.segments import SegmentNorms


def _network(seed: int) -> tuple[nn.Module, Tensor]:
    return residual_network(seed), points(1, 2, 4, 4, seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_it_gives_what_a_bounded_walk_gives(seed: int) -> None:
    model, x = _network(seed)
    program, steps = program_of(model, x), Steps(SegmentNorms())
    for radius in (0.0, 0.1):
        plain, probing = TangentPropagation(program, steps, [x], radius), ProbedPropagation(program, steps, [x], radius)
        first, second = gain(plain.run()).value, gain(probing.run()).value
        assert second == pytest.approx(first, rel=1e-5)
        assert len(probing.units) == len(plain.units)
        assert 0.0 < probing.delta < 1e-15


def test_values_at_the_point_are_those_of_the_network() -> None:
    model, x = _network(0)
    walk = ProbedPropagation(program_of(model, x), Steps(SegmentNorms()), [x], 0.1)
    (output,) = [walk.values()[e.id] for _, e in walk.program.outputs]
    torch.testing.assert_close(output.value, model(x).detach(), rtol=1e-12, atol=1e-12)
    assert output.error < 1e-12


def test_networks_too_deep_for_norms_are_probed_and_no_jacobian_exceeds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(*given: object) -> float:
        raise RoundingError("too deep")

    monkeypatch.setattr(precise_values, "TOO_LARGE", 0.0)
    monkeypatch.setattr(BoundedRoundingPropagation, "_pad", too_deep)
    model, x = _network(3)
    steps = Steps(SegmentNorms())
    found = on_balls(program_of(model, x), steps, [x], [0.0, 0.2])
    assert steps.probing
    assert all(0.0 < b.delta < 1e-15 for b in found)
    assert found[0].constant == pytest.approx(jacobian_norm(model, x), rel=1e-5)
    for k in range(20):
        d = points(*x.shape, seed=k)
        assert jacobian_norm(model, x + 0.2 * (1 - 1e-9) * d / d.norm()) <= found[1].constant


def test_rows_that_are_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _network(1)
    right = piecewise_linear.convolve_scaled

    def wrong(scaled: object, rows: Tensor, expr: object) -> Tensor:
        result = right(scaled, rows, expr)
        if len(result) > PROBES:  # rows, not probes
            result[3].view(-1)[0] += 1e-6
        return result

    monkeypatch.setattr(piecewise_linear, "convolve_scaled", wrong)
    with pytest.raises(UnboundedError, match="probes"):
        ProbedPropagation(program_of(model, x), Steps(SegmentNorms()), [x], 0.1).run()


def test_curved_functions_are_not_probed() -> None:
    model, x = seeded(nn.Sequential(nn.Linear(2, 2), nn.GELU())), points(1, 2)
    assert not precise_values.is_piecewise_linear(program_of(model, x))
    assert ball.on_balls(program_of(model, x), Steps(SegmentNorms()), [x], [0.1])[0].delta == 0.0


def test_the_probability_is_that_of_gaussian_probes() -> None:
    """The worst case, an error of rank one: its probes miss it less often than the bound says."""
    generator = torch.Generator().manual_seed(0)
    missed = (torch.randn(200_000, 1, generator=generator).abs() <= 0.1).double().mean()
    assert float(missed) <= failure_probability(1, probes=1, factor=10.0)
    assert math.isclose(failure_probability(2, probes=3), 2 * failure_probability(1, probes=3))
