"""Orbits: flat along, steep across, and what eps breaks."""

from __future__ import annotations

import torch
from torch import nn

from checking import noise
from normscope.geometry.certificate import coefficients_of
from normscope.geometry.discover import symmetry
from normscope.geometry.orbits import TIMES


def test_the_curves_are_those_of_the_model_itself() -> None:
    """The scale of one layer before BatchNorm, moved by hand in float64."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, eps=1e-2, affine=False)).double()
    x = noise(8, 3).double()
    found = symmetry(model, x, follow_orbits=True)
    by_kind = {orbit.kind: orbit for orbit in found.orbits}
    assert set(by_kind) == {group.kind for group in found.groups if group.family is not None}
    scale = by_kind["scale"]
    assert scale.times == TIMES
    assert max(scale.along) < 1e-12 < 1e-5 < scale.stabilized[-1]
    group = max((g for g in found.groups if g.kind == "scale"), key=lambda g: g.dimension)
    weights = dict(model.named_parameters())
    moved = group.family.move({k: v.detach() for k, v in weights.items()}, coefficients_of(group.family), TIMES[-1])
    model.train()
    with torch.no_grad():
        before = model(x)
        for name, value in moved.items():
            weights[name].copy_(value)
        change = float((model(x) - before).abs().max() / before.abs().max())
    assert abs(change - scale.stabilized[-1]) < 1e-12


def test_across_grows_with_the_length() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    (rescaling, *_) = symmetry(model, noise(8, 3), follow_orbits=True).orbits
    assert list(rescaling.across) == sorted(rescaling.across)
    assert max(rescaling.along) < 1e-12


def test_no_orbits_unless_asked() -> None:
    assert symmetry(nn.Linear(3, 2), noise(8, 3)).orbits == ()
