"""Certified constants in the weights: small changes, changes of any size, and what neither covers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, seeded
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.lipschitz.weights.bounds import (
    Outputs,
    input_factors,
    joint_constant,
    output_constants,
    weight_constant,
)
from normscope.lipschitz.weights.factors import before_batch_statistics, meet
from normscope.lipschitz.weights.uses import Weights, find_weights
from normscope.operators.nonlinear import Range


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _bounds(weights: Weights, domain: Domain | None = None) -> tuple[Outputs, Composition]:
    composition = Composition(weights.program, domain or Domain(), SegmentNorms())
    return output_constants(weights, composition), composition


def _named(weights: Weights, outputs: Outputs) -> dict[str, tuple[float, ...] | None]:
    return {leaf.name: outputs.any_size[i] for i, leaf in enumerate(weights.leaves)}


GATED = {
    "gate": lambda m, x: m.d(nn.functional.silu(m.g(m.n(x))) * m.u(m.n(x))),
    "twice": lambda m, x: m.d(m.g(torch.tanh(m.g(m.n(x)))) + m.u(x)),
}


def _gated(kind: str) -> nn.Module:
    parts = {name: nn.Linear(4, 4) for name in "gud"}
    return seeded(Lambda(GATED[kind], n=nn.LayerNorm(4), **parts))


def test_a_gate_is_bounded_for_changes_of_any_size(found: Any) -> None:
    """Each factor of a product alone may become anything; a normalizer's gain moves both, and has no bound then."""
    _, weights = found(_gated("gate"), _normal(1, 4))
    outputs, _ = _bounds(weights)
    named = _named(weights, outputs)
    for name in ("g.weight", "u.weight", "d.weight"):
        assert named[name] is not None
        assert all(math.isfinite(log) for log in named[name] or ())
    gain = named["n.weight"]
    assert gain is None or math.inf in gain
    assert all(math.isfinite(log) for log in outputs.small)


def test_a_weight_used_twice_in_a_row_has_a_bound_for_small_changes_only(found: Any) -> None:
    """What its second use meets moves with it."""
    _, weights = found(_gated("twice"), _normal(1, 4))
    outputs, _ = _bounds(weights)
    assert _named(weights, outputs)["g.weight"] is None
    assert all(math.isfinite(log) for log in outputs.small)


@pytest.mark.parametrize("kind", GATED)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_quotients_of_every_size_stay_below(kind: str, size: float, found: Any) -> None:
    """Random changes of one weight, from small to huge: never above the constant for changes of any size."""
    model, x = _gated(kind), _normal(1, 4)
    captured, weights = found(model, x)
    outputs, composition = _bounds(weights)
    factors = input_factors(weights, meet(captured, weights, [x]), composition)
    parameters = dict(model.named_parameters())
    checked = 0
    for i, leaf in enumerate(weights.leaves):
        logs = outputs.any_size[i]
        if logs is None:
            continue
        bound = math.exp(weight_constant(logs, [factors[k] for k in weights.of(i)]))
        for seed in range(10):
            change = size * _normal(*leaf.shape, seed=seed)
            moved = {k: v + change if k == leaf.name else v for k, v in parameters.items()}
            with torch.no_grad():
                difference = torch.func.functional_call(model, moved, (x,)) - model(x)
            assert float(difference.norm() / change.norm()) <= bound * (1 + 1e-9)
            checked += 1
    assert checked >= 40


def test_recurrent_weights_take_their_factor_from_ranges(found: Any) -> None:
    """Inside a recurrent operation states are bounded by their range: a tanh network of 3 units by sqrt(3)."""
    model = seeded(Lambda(lambda m, x: m.r(x)[0], r=nn.RNN(2, 3, batch_first=True)))
    x = _normal(1, 4, 2)
    captured, weights = found(model, x)
    ranges = (Range(-5.0, 5.0, row=5.0, norm=float(x.norm())),)
    _, composition = _bounds(weights, Domain("data", {}, ranges))
    factors = input_factors(weights, meet(captured, weights, [x]), composition)
    by_name = {weights.leaves[u.leaf].name: math.exp(f) for u, f in zip(weights.uses, factors, strict=True)}
    assert 0.999 * math.sqrt(3) < by_name["r.weight_hh_l0"] <= math.sqrt(3) * (1 + 1e-12)
    assert abs(by_name["r.weight_ih_l0"] - float(x.norm())) < 1e-9
    assert abs(by_name["r.bias_ih_l0"] - 2.0) < 1e-9  # four steps at once


def test_unknown_uses_are_infinite_and_unused_ones_zero() -> None:
    """No bound times something is no bound; nothing times no bound is nothing."""
    assert weight_constant([math.inf], [0.0]) == math.inf
    assert weight_constant([-math.inf], [math.inf]) == -math.inf
    assert abs(math.exp(joint_constant([math.log(5.0), math.log(12.0)])) - 13.0) < 1e-9


def test_batch_statistics_directly_after(found: Any) -> None:
    """Only where nothing but BatchNorm with batch statistics reads the result."""
    model = seeded(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(), nn.Linear(4, 2))
    )
    x = _normal(6, 3)
    captured, _ = found(model, x)
    weights = find_weights(captured.graph, captured.tensors, [x])
    before = {(u.argument, u.node): before_batch_statistics(captured.graph, weights, u) for u in weights.uses}
    assert list(before.values()) == [True, True, False, False, False, False]
