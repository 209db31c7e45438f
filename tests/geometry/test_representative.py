"""Representatives: one point for each orbit of shifts and scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.align import distance
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.discover import symmetry
from normscope.geometry.representative import balanced, without_constants
from symmetric_networks import Behind, randomized


def moved(groups: list, point: dict[str, Tensor], kinds: tuple[str, ...]) -> dict[str, Tensor]:
    """Return parameters moved by random members of some groups."""
    torch.manual_seed(3)
    for group in groups:
        if group.kind in kinds:
            point = point | group.family.move(point, torch.randn(group.family.size, dtype=torch.float64) / 2, 1.0)
    return point


def test_constants_are_taken_away_wherever_one_starts() -> None:
    torch.manual_seed(0)
    found = symmetry(randomized(Behind(transposed=True)), torch.randn(32, 3).double(), batch=32)
    point, groups = found.function.point, list(found.groups)
    other = moved(groups, point, ("shift", "row", "column"))
    assert distance(point, other) > 0.1
    (one, moves), (two, _) = without_constants(groups, point), without_constants(groups, other)
    assert distance(one, two) < 1e-13
    assert float(one["first.weight"].sum(0).abs().max()) < 1e-13
    assert float((one["norm.weight"] @ one["weight"]).abs().max()) < 1e-13
    exact = found.function.exact()
    assert float((exact.flat(one) - exact.flat(point)).abs().max()) < 1e-12
    for family, coefficients in reversed(moves):
        one |= family.move(one, -coefficients, 1.0)
    assert distance(point, one) < 1e-13


def test_factors_are_balanced_wherever_one_starts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    found = symmetry(randomized(model), torch.randn(32, 3).double(), batch=32)
    point = {**found.function.point}
    other = moved(list(found.groups), point, ("scale", "rescaling"))
    for group in found.groups:
        if isinstance(group.family, ChannelScales):
            one, two = (p | group.family.move(p, balanced(group.family, p), 1.0) for p in (point, other))
            names = {n: one[n] for n in group.parameters if n != "0.bias"}
            assert max(float((value - two[name]).abs().max()) for name, value in names.items()) < 1e-11
