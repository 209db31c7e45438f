"""Theorem 20 certified: on invented points, with pairs of points against each constant, and as a study."""

from __future__ import annotations

import math

import torch

from normscope.papers.study import run_study
from normscope.papers.than2025.theorem_20_study import SETTINGS, certified, constant_of, features, trained


def test_certificate_is_above_the_error_and_below_guessing() -> None:
    """The error on many fresh points of the same law."""
    x, y = features("synthetic", "train", None, 0)
    net = trained(x, y, SETTINGS["smoke"], 0)
    found = certified(net, x, y, 16, 0.05)
    u, v = features("synthetic", "test", None, 5)
    error = float(((2.0 * v - 1) * net(u)[:, 0] <= 0).double().mean())
    assert error <= found.error < 0.5
    assert found.bound.gap.delta == 0.05
    assert constant_of(net) <= 1 + 1e-9
    quotients = (net(u[:1000]) - net(u[1000:]))[:, 0].abs() / (u[:1000] - u[1000:]).norm(dim=1)
    assert float(quotients.max()) <= constant_of(net)


def test_features_lie_in_the_square() -> None:
    """As the grid asks; train and test differ."""
    x, y = features("synthetic", "train", None, 0)
    u, _ = features("synthetic", "test", None, 0)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert set(y.tolist()) == {0, 1}
    assert not torch.equal(x[:10], u[:10])


def test_study() -> None:
    """Claims with numbers, two charts."""
    study = run_study("theorem-20", "smoke")
    assert [e.agrees for e in study.evidence][:2] == [True, True]
    assert len(study.charts) == 2
    assert all(math.isfinite(v) for e in study.evidence for v in e.measured.values())
