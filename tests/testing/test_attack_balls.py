"""Constants on balls and certified decisions fall when they are forged, and stand as they were computed."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import normscope
from networks import seeded
from normscope.testing.attack_balls import attack_balls
from normscope.testing.refutation import Attack
from refuting import context


def _dense() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def _gated() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 12), nn.GLU(), nn.RMSNorm(6), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


@functools.cache
def _network(build: Any) -> tuple[nn.Module, torch.Tensor, normscope.Result]:
    model = seeded(build()).eval()
    data = torch.randn(4, 5, generator=torch.Generator().manual_seed(3))
    return model, data, normscope.analyze(model, data, time=3, ascent=0, points=1, radius=[0.05, 0.5])


def _attacks(model: nn.Module, data: torch.Tensor, result: normscope.Result) -> list[Attack]:
    here = context(model, data, result)
    attack_balls(here)
    assert here.skipped == []
    return here.attacks


@pytest.mark.turns(2)
@pytest.mark.parametrize("build", [_dense, _gated])
def test_what_was_computed_stands(build: Any) -> None:
    """Every point at every radius, and every decision; at the points themselves the attack comes near."""
    model, data, result = _network(build)
    attacks = _attacks(model, data, result)
    assert result.around is not None
    finite = sum(c < math.inf for n in result.around.neighbourhoods for c in n.constants)
    assert len(attacks) == finite + 4 >= 12
    assert [str(a) for a in attacks if a.refuted] == []
    assert max(a.ratio for a in attacks if a.name == "within 0") > 0.99


@pytest.mark.turns(3)
@pytest.mark.parametrize("radius", [0, 1, 2])
def test_forged_constants_fall(radius: int) -> None:
    """One point of one radius says a little less than is attained there."""
    model, data, result = _network(_dense)
    around = result.around
    assert around is not None
    near = around.neighbourhoods[radius]
    name = f"within {near.radius:g}"
    most = max(a.attained for a in _attacks(model, data, result) if a.name == name)
    forged = tuple(min(c, math.exp(most) * 0.99) for c in near.constants)
    rows = [replace(n, constants=forged) if n is near else n for n in around.neighbourhoods]
    attacks = _attacks(model, data, replace(result, around=replace(around, neighbourhoods=tuple(rows))))
    assert {a.name for a in attacks if a.refuted} == {name}


def test_forged_decisions_fall() -> None:
    """A radius beyond the nearest input with another decision."""
    model, data, result = _network(_dense)
    assert result.around is not None
    nearest = max(a.attained for a in _attacks(model, data, result) if a.number == "radii" and a.attained < math.inf)
    forged = replace(result.around, radii=(math.exp(nearest) * 1.01,) * 4)
    refuted = {a.number for a in _attacks(model, data, replace(result, around=forged)) if a.refuted}
    assert refuted == {"radii"}
