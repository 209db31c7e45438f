"""Constants with respect to tensors inside a network: attained where they should be, never below what is found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, seeded
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.lipschitz.weights.sensitivity import Cones, Sensitivity
from normscope.lipschitz.weights.uses import Weights


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _on_all_inputs(weights: Weights) -> Composition:
    return Composition(weights.program, Domain(), SegmentNorms())


def _constants(weights: Weights) -> dict[str, float]:
    """Return the constant with respect to the result of the first use of each weight, on all inputs."""
    places = [use.place for use in weights.uses if use.place is not None]
    found = Sensitivity(weights.program, places, _on_all_inputs(weights)).total()
    logs: dict[str, float] = {}
    for use, (log, _, _) in zip(weights.uses, found, strict=True):
        logs.setdefault(weights.leaves[use.leaf].name, log)
    return {name: math.exp(log) for name, log in logs.items()}


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach(), ord=2))


def test_chain_is_measured_from_the_layer_on(found: Any) -> None:
    """Linear maps after a layer are one operator; activations separate."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)))
    constants = _constants(found(model, _normal(1, 4))[1])
    one, two = model[1].weight, model[3].weight
    assert abs(constants["0.weight"] - _norm(one) * _norm(two)) < 1e-6
    assert abs(constants["1.weight"] - _norm(two)) < 1e-6
    assert abs(constants["3.weight"] - 1.0) < 1e-12


def test_skip_and_branch_add_up(found: Any) -> None:
    """``z + B relu(A z)`` from ``z = F x``: ``1 + ||A|| ||B||``, and from ``A z``: ``||B||``."""
    model = seeded(
        Lambda(
            lambda m, x: (z := m.f(x)) + m.b(torch.relu(m.a(z))),
            f=nn.Linear(4, 4),
            a=nn.Linear(4, 6, bias=False),
            b=nn.Linear(6, 4, bias=False),
        )
    )
    constants = _constants(found(model, _normal(1, 4))[1])
    assert abs(constants["f.weight"] - (1 + _norm(model.a.weight) * _norm(model.b.weight))) < 1e-6
    assert abs(constants["a.weight"] - _norm(model.b.weight)) < 1e-6


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("join", [torch.maximum, lambda a, b: a.tanh() * b.tanh()], ids=["maximum", "product"])
def test_either_operand_may_depend_on_the_weight(found: Any, join: Any, second: bool) -> None:
    """The other one only through the input; a slope of one is attained where it is larger, or its tanh saturates."""
    model = seeded(Lambda(lambda m, x: join(x, m.f(x)) if second else join(m.f(x), x), f=nn.Linear(4, 4)))
    assert _constants(found(model, _normal(1, 4))[1])["f.weight"] == pytest.approx(1.0, rel=1e-6)


def test_a_linear_skip_is_one_operator(found: Any) -> None:
    """``z - B z`` of a place in the middle of a linear part: ``||I - B||``, all else left out."""
    model = seeded(Lambda(lambda m, x: (z := m.f(x)) - m.b(z) + x, f=nn.Linear(4, 4), b=nn.Linear(4, 4, bias=False)))
    constants = _constants(found(model, _normal(1, 4))[1])
    assert abs(constants["f.weight"] - _norm(torch.eye(4, dtype=torch.float64) - model.b.weight)) < 1e-6


def test_concatenation_and_several_outputs(found: Any) -> None:
    """Beside another tensor nothing is lost; two outputs add in squares."""
    model = seeded(Lambda(lambda m, x: (torch.cat([m.f(x), x], 1), 2 * m.f(x)), f=nn.Linear(4, 3)))
    found_now = found(model, _normal(1, 4))[1]
    assert len(found_now.uses) in (2, 4)
    assert all(value <= math.sqrt(5) + 1e-9 for value in _constants(found_now).values())


def test_several_outputs_add_in_squares(found: Any) -> None:
    """Three and four times the same: five times."""
    model = seeded(Lambda(lambda m, x: (3 * m.f(x), 4 * m.f(x)), f=nn.Linear(4, 3)))
    model_once = seeded(Lambda(lambda m, x: (lambda z: (3 * z, 4 * z))(m.f(x)), f=nn.Linear(4, 3)))
    once = _constants(found(model_once, _normal(1, 4))[1])
    assert once["f.weight"] == pytest.approx(5.0, rel=1e-9)
    assert _constants(found(model, _normal(1, 4))[1])["f.weight"] <= 5.0 * (1 + 1e-9)


def test_what_lies_before_is_not_counted(found: Any) -> None:
    """An operation without a bound before a layer does not hurt it, one after it does."""
    model = seeded(Lambda(lambda m, x: m.g(torch.sign(m.f(x))), f=nn.Linear(3, 3), g=nn.Linear(3, 2)))
    constants = _constants(found(model, _normal(1, 3))[1])
    assert constants["f.weight"] == math.inf
    assert abs(constants["g.weight"] - 1.0) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_never_below_the_jacobian(seed: int, found: Any) -> None:
    """A gated residual network: the constant on all inputs holds at points of every size."""

    def after(m: Any, z: Tensor) -> Tensor:
        n = m.n(z)
        return m.c(n * torch.sigmoid(m.g(n))) + z

    parts = {"f": nn.Linear(4, 5), "g": nn.Linear(5, 5), "c": nn.Linear(5, 5)}
    model = seeded(Lambda(lambda m, x: after(m, m.f(x)), n=nn.LayerNorm(5), **parts), seed)
    constant = _constants(found(model, _normal(1, 4))[1])["f.weight"]
    for k in range(40):
        z = model.f(_normal(1, 4, seed=100 + k) * 10.0 ** (k % 4 - 2)).detach()
        z = z if k % 2 else z.mean() + 1e-3 * (z - z.mean())  # next to a constant vector LayerNorm is steepest
        jacobian = torch.autograd.functional.jacobian(lambda z: after(model, z).flatten(), z).reshape(5, 5)
        assert _norm(jacobian) <= constant
    assert math.isfinite(constant)


def test_cones_know_what_lies_in_a_linear_part(found: Any) -> None:
    """A place counts for everything linear above it, and not beyond a nonlinearity."""
    _, weights = found(
        seeded(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))), _normal(1, 3)
    )
    layers = weights.program.layers
    cones = Cones([layers[0]])
    assert cones.inside(layers[1]) == frozenset({0})
    assert cones.inside(layers[2]) == frozenset()
    whole = Sensitivity(weights.program, [layers[0]], Composition(weights.program, Domain(), SegmentNorms()))
    whole.total()
    assert whole.depends(layers[2], [0])
    assert not whole.uses_ranges_of([0])
