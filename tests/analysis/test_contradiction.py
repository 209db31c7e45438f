"""A wrong rule does not print a false number: what is attained refutes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope
from fuzzing.draw import Draw
from networks import Lambda, seeded
from normscope.analysis.contradiction import contradicts, uncontradicted, uncontradicted_row
from normscope.analysis.end_to_end import EndToEndConstants
from normscope.core.result import LayerResult
from normscope.core.value import Kind, Value
from normscope.operators import registry


@pytest.fixture
def _wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that negation halves."""

    def halves(call: registry.Call) -> Any:
        return call.linear("generic", lambda z: -0.5 * z, [call["self"]])

    monkeypatch.setitem(registry._RULES, "aten.neg.default", halves)


def _model() -> nn.Module:
    return seeded(Lambda(lambda s, x: -s.l(x), l=nn.Linear(4, 4)))


@pytest.mark.usefixtures("_wrong_rule")
def test_a_wrong_rule_gives_no_number() -> None:
    """The bound would be half of what is attained: it is not given, its curve neither, and the reader is told."""
    result = normscope.analyze(_model(), Draw(0).tensor(3, 4))
    constants = result.end_to_end
    for name in ("global", "variance_floor"):
        assert constants[name].log == math.inf  # type: ignore[union-attr]
        assert name not in result.depth.curves
        assert any(text.startswith(f"contradiction (end to end, {name})") for text in result.messages)
    assert constants["lower"].log < math.inf  # type: ignore[union-attr]


@pytest.mark.usefixtures("_wrong_rule")
def test_a_wrong_rule_gives_no_number_in_the_weights() -> None:
    """The same for what a change of a weight does."""
    result = normscope.weight_lipschitz(_model(), Draw(0).tensor(3, 4))
    for row in result.weights:
        assert row.attained is not None
        assert row.best is not None
        assert row.attained.log <= row.best.log
    assert result.jointly["attained"].log <= result.jointly["certified"].log
    assert any(text.startswith("contradiction (l.weight") for text in result.messages)


def test_right_rules_are_not_accused() -> None:
    """The same network with negation as it is."""
    result = normscope.analyze(_model(), Draw(0).tensor(3, 4))
    assert result.end_to_end["global"].log < math.inf  # type: ignore[union-attr]
    assert not any("contradiction" in text for text in result.messages)


def test_rounding_is_no_contradiction() -> None:
    """Only what lies above by more; an infinite bound is above everything, and nothing measured says nothing."""
    upper = Value(1.0, Kind.CERTIFIED)
    assert not contradicts(upper, Value(1.0 + 1e-8, Kind.LOWER))
    assert contradicts(upper, Value(1.0 + 1e-5, Kind.LOWER))
    assert not contradicts(Value(math.inf, Kind.CERTIFIED), Value(math.inf, Kind.LOWER))
    assert not contradicts(upper, None)
    assert not contradicts(None, upper)


@pytest.mark.parametrize("name", ["global_probabilistic", "variance_floor_probabilistic", "stacked_batch"])
def test_every_upper_bound_has_a_partner(name: str) -> None:
    """Also those that hold with high probability, and that of a stacked batch."""
    partner = "stacked_batch_lower" if name == "stacked_batch" else "lower"
    told: list[str] = []
    given: dict[str, Value | None] = {name: Value(0.0, Kind.CERTIFIED), partner: Value(1.0, Kind.LOWER)}
    assert uncontradicted(EndToEndConstants(given), told).constants[name].log == math.inf  # type: ignore[union-attr]
    assert len(told) == 1


def test_one_wrong_bound_takes_the_others_with_it() -> None:
    """They come from the same rules; a bound that was not asked for stays so."""
    told: list[str] = []
    given: dict[str, Value | None] = {
        "global": Value(5.0, Kind.CERTIFIED),
        "variance_floor": Value(0.0, Kind.CERTIFIED),
        "lower": Value(1.0, Kind.LOWER),
        "stacked_batch": None,
    }
    found = uncontradicted(EndToEndConstants(given), told).constants
    assert found["global"].log == found["variance_floor"].log == math.inf  # type: ignore[union-attr]
    assert found["stacked_batch"] is None
    assert found["lower"] == given["lower"]
    assert len(told) == 1


def test_a_layer_is_not_below_its_own_norm() -> None:
    """A norm computed wrongly is no bound of its layer."""
    told: list[str] = []
    row = LayerResult("l", "matrix", (2, 2), Value(0.0, Kind.CERTIFIED), Value(1.0, Kind.LOWER), None, "dense", None)
    assert uncontradicted_row(row, told).upper.log == math.inf
    assert "contradiction (l)" in told[0]
    fine = LayerResult("l", "matrix", (2, 2), Value(1.0, Kind.CERTIFIED), Value(1.0, Kind.LOWER), None, "dense", None)
    assert uncontradicted_row(fine, told) is fine


def _hidden_first_token(m: Lambda, x: Tensor) -> Tensor:
    """Attend to tokens before each only: the first sees none, and its softmax is NaN."""
    scores = m.q(x) @ m.k(x).transpose(-1, -2)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ x


#: Networks that return NaN on every input.
NOT_NUMBERS: dict[str, Callable[[Lambda, Tensor], Tensor]] = {
    "hidden first token": lambda m, x: _hidden_first_token(m, m.norm(x)),
    "zero over zero": lambda m, x: m.q(x) / 0.0 * 0,
    "a logarithm of negative numbers": lambda m, x: torch.log(-m.q(x).abs() - 1) * 0,
    "infinity times zero": lambda m, x: m.q(x) * float("inf") * 0 + m.q(x),
}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_a_model_that_returns_nan_has_no_bound(name: str, fast: bool) -> None:
    """Its rules give one; without data, its example refutes it."""
    model = seeded(Lambda(NOT_NUMBERS[name], q=nn.Linear(8, 8), k=nn.Linear(8, 8), norm=nn.LayerNorm(8)))
    result = normscope.analyze(model, input_shape=(4, 8), fast=fast, **({} if fast else {"time": 0}))
    upper = result.end_to_end["global"]
    assert upper is not None
    assert upper.log == math.inf
    assert any("returns NaN on the example input" in message for message in result.messages)
