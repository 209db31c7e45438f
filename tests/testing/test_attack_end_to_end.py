"""Totals and depth curves fall when they are forged, on every domain, and stand as they were computed."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest

import normscope
from networks import spectral_norm
from normscope.testing.attack_end_to_end import attack_end_to_end
from refuting import context, convolutional, small


def _attacked(network: Any, result: normscope.Result) -> Any:
    here = context(network[0], network[1], result)
    attack_end_to_end(here)
    assert here.skipped == []
    return here.attacks


@functools.cache
def _honest(network: Any) -> Any:
    """Return the attacks on what was computed."""
    return _attacked(network(), network()[2])


def _attained(network: Any, table: str, name: str, key: str) -> float:
    """Return the most that any attack attains against a number that holds."""
    return max(a.attained for a in _honest(network) if (a.table, a.name, a.number) == (table, name, key))


@pytest.mark.turns(2)
@pytest.mark.parametrize("network", [small, convolutional])
def test_what_was_computed_stands(network: Any) -> None:
    """Every constant and every place of every curve is attacked, and none falls."""
    result = network()[2]
    attacks = _honest(network)
    assert [str(a) for a in attacks if a.refuted] == []
    attacked = {(a.table, a.name, a.number) for a in attacks}
    for key in ("global", "variance_floor", "without_normalizers"):
        assert ("end_to_end", "", key) in attacked
        for name, kind in zip(result.depth.names, result.depth.kinds, strict=True):
            assert kind in ("input", "output") or ("depth", name, key) in attacked
    assert ("end_to_end", "", "jacobian") in attacked


@pytest.mark.parametrize("key", ["global", "variance_floor", "without_normalizers"])
def test_a_forged_curve_falls_at_its_place(key: str) -> None:
    """At the normalizer, where it claims less than the attack attains; no other place falls."""
    model, data, result = small()
    attained = _attained(small, "depth", "1", key)
    curve = result.depth.curves[key]
    values = list(curve.log10)
    values[result.depth.names.index("1")] = (attained - 1e-3) / math.log(10)
    depth = replace(result.depth, curves={**result.depth.curves, key: replace(curve, log10=tuple(values))})
    refuted = {(a.name, a.number) for a in _attacked((model, data), replace(result, depth=depth)) if a.refuted}
    assert refuted == {("1", key)}


@pytest.mark.turns(3)
@pytest.mark.parametrize("key", ["stacked_batch", "jacobian", "global"])
def test_a_forged_total_falls(key: str) -> None:
    """A bound below what is attained; an attained value above the whole Jacobian at the data."""
    model, data, result = convolutional()
    claim = result.end_to_end[key]
    assert claim is not None
    change = 1e-3 if key == "jacobian" else -1e-3
    forged = replace(claim, log=_attained(convolutional, "end_to_end", "", key) + change)
    attacks = _attacked((model, data), replace(result, end_to_end={**result.end_to_end, key: forged}))
    assert {a.number for a in attacks if a.refuted} == {key}


def test_attacks_come_near() -> None:
    """Without normalizers a linear layer is its own bound; at the first place every curve is attained."""
    attacks = _honest(small)
    near = {(a.name, a.number): a.ratio for a in attacks if a.table == "depth" and a.how == "pair"}
    for key in ("global", "variance_floor", "without_normalizers"):
        assert near["0", key] > 0.999
    model, _, _ = small()
    weight, gamma = (t.detach().double() for t in (model[0].weight, model[1].weight))
    centred = weight - weight.mean(0)
    truth = spectral_norm(gamma[:, None] * centred) / math.sqrt(1e-5)  # where the input of the normalizer is constant
    assert math.exp(_attained(small, "depth", "1", "global")) == pytest.approx(truth, rel=0.02)
