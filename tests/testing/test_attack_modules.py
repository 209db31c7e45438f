"""Every number of the tables falls when it is forged, and stands as it was computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import normscope
from normscope.testing.attack_modules import attack_effect, attack_layers, attack_normalizers
from refuting import context, convolutional, less, small


def _refuted(network: Any, result: normscope.Result) -> set[tuple[str, str, str]]:
    here = context(network[0], network[1], result)
    attack_layers(here)
    attack_normalizers(here)
    attack_effect(here)
    assert here.skipped == []
    return {(a.table, a.name, a.number) for a in here.attacks if a.refuted}


@pytest.mark.parametrize("network", [small, convolutional])
def test_what_was_computed_stands(network: Any) -> None:
    """Nothing is refuted, and exact numbers are reached."""
    here = context(*network())
    attack_layers(here)
    attack_normalizers(here)
    attack_effect(here)
    assert [a for a in here.attacks if a.refuted] == []
    assert {a.number for a in here.attacks} >= {"upper", "lower", "proved"}
    assert all(a.ratio > 0.99 for a in here.attacks if a.number in ("upper", "folded", "proved", "on_floor"))


@pytest.mark.parametrize("field", ["upper", "lower", "folded"])
def test_a_forged_layer_falls(field: str) -> None:
    """By one per cent, in the direction that is wrong."""
    model, data, result = convolutional()
    row = result.layers[0]
    forged = replace(row, **{field: less(getattr(row, field), 1.01 if field == "lower" else 0.99)})
    found = _refuted((model, data), replace(result, layers=(forged, *result.layers[1:])))
    assert found == {("layers", row.name, field)}


@pytest.mark.parametrize("field", ["proved", "on_floor"])
def test_a_forged_normalizer_falls(field: str) -> None:
    """On all inputs, and where its spread stays above the floor."""
    model, data, result = small()
    row = result.normalizers[0]
    forged = replace(result, normalizers=(replace(row, **{field: less(getattr(row, field))}),))
    assert _refuted((model, data), forged) == {("normalizers", row.name, field)}


def test_a_forged_product_falls() -> None:
    """Of folded layers."""
    model, data, result = convolutional()
    claim = dict(result.effect["folded_product"])
    claim["log10"] -= 0.01
    forged = replace(result, effect={**result.effect, "folded_product": claim})
    assert _refuted((model, data), forged) == {("effect", "folded_product", "log10")}
