"""Regions: the parts of a network that chains run over."""

from __future__ import annotations

import torch
from torch import nn

from networks import Lambda, points, program_of, seeded
from normscope.lipschitz.chains.region import Region, region_below


def _region(model: nn.Module) -> Region:
    program = program_of(seeded(model), points(2, 4))
    return region_below(program.outputs[0][1], {a.id: a for a in program.atoms})


def test_a_plain_network_is_one_region() -> None:
    """From the input to the output."""
    found = _region(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.GELU()))
    assert len(found.units) == 2
    assert len(found.sources) == 1


def test_a_normalizer_of_activations_ends_a_region() -> None:
    """LayerNorm is a source of what follows."""
    found = _region(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3), nn.Tanh()))
    assert len(found.units) == 1
    assert found.sources[0].atom.inputs  # not the input of the network


def test_branches_belong_to_one_region() -> None:
    """Numbers follow the order of evaluation."""

    def function(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        h = s.a(x).relu()
        return s.b(h).relu() + h

    found = _region(Lambda(function, a=nn.Linear(4, 4), b=nn.Linear(4, 4)))
    assert [found.number()[a.id] for a in (*found.sources, *found.units)] == [0, 1, 2]


def test_a_function_of_unbounded_slope_is_a_source() -> None:
    """Such as the exponential."""
    found = _region(Lambda(lambda s, x: s.b(s.a(x).exp()).relu(), a=nn.Linear(4, 4), b=nn.Linear(4, 4)))
    assert len(found.units) == 1
