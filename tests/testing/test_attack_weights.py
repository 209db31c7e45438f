"""Constants in the weights fall when they are forged, and stand as they were computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import normscope
from normscope.testing.attack_weights import attack_weights
from refuting import context, convolutional, less, small


@pytest.mark.turns(2)
@pytest.mark.parametrize("network", [small, convolutional])
def test_what_was_computed_stands(network: Any) -> None:
    """Every weight is attacked, and none falls."""
    model, data, result = network()
    weights = normscope.weight_lipschitz(model, data)
    here = context(model, data, result)
    attack_weights(here, weights)
    assert [str(a) for a in here.attacks if a.refuted] == []
    assert here.skipped == []
    assert {a.name for a in here.attacks} == {row.name for row in weights.weights} | {"all"}


def test_forged_constants_fall() -> None:
    """Those that are attained, made smaller by one per cent."""
    model, data, result = small()
    weights = normscope.weight_lipschitz(model, data)
    last = weights.weights[-1]  # the bias of the last layer: every constant in it is one
    forged = replace(
        last,
        constants={k: less(v) for k, v in last.constants.items()},
        outputs={k: less(v) for k, v in last.outputs.items()},
        input_norm=less(last.input_norm),
        stacked={**last.stacked, "certified": less(last.stacked["certified"])},
    )
    here = context(model, data, result)
    attack_weights(here, replace(weights, weights=(*weights.weights[:-1], forged)))
    refuted = {a.number for a in here.attacks if a.refuted}
    assert {a.name for a in here.attacks if a.refuted} == {last.name}
    assert refuted >= {"constants.global", "outputs.global", "input_norm", "stacked.certified"}
