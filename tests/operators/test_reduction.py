"""Sums, means, extremes, norms and spreads along axes; steps."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from networks import jacobian_norm, points, program_of, upper_of
from operators.refute import Case, linear, model_of, nonlinear, program, refuted, without_constant

LINEAR: dict[str, Case] = {
    "sum": (lambda x: x.sum(1), (9,), 3.0),
    "mean": (lambda x: x.mean(1), (9,), 1 / 3.0),
    "mean of two axes": (lambda x: x.mean((1, 2), keepdim=True), (2, 8), 0.25),
    "sum of everything of a sample": (lambda x: x.flatten(1).sum(-1), (2, 8), 4.0),
    "cumulative sum": (lambda x: x.cumsum(1), (6,), None),
    "differences": (lambda x: x.diff(dim=1), (5,), 2 * math.cos(math.pi / 10)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_sums_and_means(name: str) -> None:
    """Linear: exact."""
    linear(LINEAR[name])


NONLINEAR: dict[str, Case] = {
    "largest": (lambda x: x.amax(1), (5,), 1.0),
    "least with its place": (lambda x: x.min(1).values, (5,), 1.0),
    "median": (lambda x: x.median(1).values, (5,), 1.0),
    "second": (lambda x: x.kthvalue(2, 1).values, (5,), 1.0),
    "sorted": (lambda x: x.sort(1).values, (5,), 1.0),
    "three largest": (lambda x: x.topk(3, 1).values, (5,), 1.0),
    "l2 norm": (lambda x: x.norm(dim=1), (5,), 1.0),
    "l1 norm": (lambda x: x.norm(p=1, dim=1), (4,), 2.0),
    "largest magnitude": (lambda x: torch.linalg.vector_norm(x, math.inf, 1), (4,), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", NONLINEAR)
def test_extremes_and_norms(name: str) -> None:
    """One for extremes and the l2 norm, the root of n for l1; all attained."""
    nonlinear(NONLINEAR[name], close=0.99)


@pytest.mark.parametrize("order", [0.0, 0.5])
def test_orders_below_one_are_no_norms(order: float) -> None:
    """The slope is infinite beside an axis, or the number of entries jumps there."""
    found = program(lambda x: torch.linalg.vector_norm(x, order, 1, keepdim=True), 3).opaque
    assert any(f"order {order}" in e.atom.reason for e in found)
    without_constant(lambda x: torch.linalg.vector_norm(x, order, 1) + x.sum(1), 3, on_range=False)


@pytest.mark.parametrize("correction", [0, 1])
def test_a_spread_is_a_norm(correction: int) -> None:
    """``||x - mean|| / sqrt(n - c)``: one over the root, attained at every point.

    Not near constant points, where torch's own mean rounds: there a Jacobian in float64 is no truth.
    """
    model = model_of(lambda x: x.std(1, correction=correction, keepdim=True))
    upper = upper_of(program_of(model, points(2, 5)))
    assert upper == pytest.approx(1 / math.sqrt(5 - correction), rel=1e-9)
    for seed in range(4):
        assert jacobian_norm(model, points(1, 5, seed=seed)) == pytest.approx(upper, rel=1e-9)


def test_variance_is_quadratic() -> None:
    """No constant on all inputs, one on a range."""
    without_constant(lambda x: x.var(1), 4)
    without_constant(lambda x: torch.var_mean(x, 1)[0], 4, data=points(5, 4) + 3)


@pytest.mark.parametrize(
    "step",
    [
        torch.round,
        torch.floor,
        torch.sign,
        torch.frac,
        lambda x: x.argmax(1, keepdim=True).double(),
        lambda x: (x > 0).double(),
    ],
)
def test_steps_are_named(step: object) -> None:
    """What is discontinuous is known to be, and has no constant."""
    function = lambda x: step(x) + x  # type: ignore[operator]  # noqa: E731
    found = program(function, 3).opaque
    assert found
    assert all(e.atom.known for e in found)
    assert refuted(function, 3).upper["everywhere"] == math.inf


def test_the_place_of_an_extreme_may_be_ignored() -> None:
    """Values of max are 1-Lipschitz although their places jump."""
    checked = refuted(lambda x: x.max(1).values, 4)
    assert checked.opaque == []


CENTRES = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

DISTANCES: dict[str, Case] = {
    "to fixed centres": (lambda x: torch.cdist(x, CENTRES), (4, 3), math.sqrt(5)),
    "of other orders": (lambda x: torch.cdist(x, CENTRES, p=1.0), (4, 3), math.sqrt(15)),
    "largest differences": (lambda x: torch.cdist(CENTRES[None], x, p=math.inf), (4, 3), math.sqrt(5)),
    "between tokens": (lambda x: torch.cdist(x, x), (4, 3), None),
    "beside each other": (lambda x: F.pairwise_distance(x, CENTRES[0]), (3,), 1.0),
    "to each other": (lambda x: F.pairwise_distance(x[:, 0], 2.0 * x[:, 1]), (2, 3), math.sqrt(5)),
    "of all pairs": (lambda x: torch.stack([F.pdist(row) for row in x]), (4, 3), 2.0),
    "a kernel": (lambda x: torch.exp(-torch.cdist(x, CENTRES)), (4, 3), math.sqrt(5)),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances(name: str) -> None:
    """Each moves at most as far as its two ends; nothing refutes what is said of all of them."""
    nonlinear(DISTANCES[name])
