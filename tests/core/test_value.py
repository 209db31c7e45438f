"""The algebra of values: the weakest guarantee survives, and rounding never breaks it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.core.value import (
    ALL_INPUTS,
    Kind,
    Value,
    best,
    exact_sum,
    json_number,
    largest,
    log_of,
    log_sum,
    product,
    root_sum_square,
    total,
    weakest,
)

UPPER = (Kind.CERTIFIED, Kind.PROBABILISTIC)
KINDS = st.sampled_from(list(Kind))
LOGS = st.one_of(st.floats(-800, 800), st.floats(-1, 1), st.sampled_from([0.0, -math.inf, 1e-300, -1e-17, 1e6, -1e6]))
VALUES = st.builds(Value, LOGS, KINDS, domain=st.sampled_from([ALL_INPUTS, "a", "b"]), delta=st.floats(0, 0.3))
SMALL = settings(max_examples=200, deadline=None, derandomize=True)


def _holds(value: Value, exact_log: Any) -> bool:
    """Return whether a value keeps what its kind promises about a number whose logarithm is known to many digits."""
    log = mpmath.mpf(value.log)
    if not mpmath.isinf(exact_log):  # the reference itself is good to all but a few of its digits
        log += (1 if value.kind in UPPER else -1) * mpmath.mpf(10) ** (20 - mpmath.mp.dps) * (1 + abs(exact_log))
    if value.kind in UPPER:
        return bool(log >= exact_log)
    if value.kind is Kind.LOWER:
        return bool(log <= exact_log)
    return True


def _close(value: Value, exact_log: Any) -> bool:
    """Return whether a value is within a few units in the last place."""
    if exact_log == -mpmath.inf:
        return value.log == -math.inf
    return bool(abs(mpmath.mpf(value.log) - exact_log) <= 1e-14 * (1 + abs(exact_log)))


def _exp(log: float) -> Any:
    return mpmath.exp(mpmath.mpf(log)) if log > -math.inf else mpmath.mpf(0)


EXACT: dict[str, tuple[Callable[[Sequence[Value]], Value], Callable[[Sequence[float]], Any]]] = {
    "product": (product, lambda logs: mpmath.fsum(mpmath.mpf(x) for x in logs)),
    "total": (total, lambda logs: mpmath.log(mpmath.fsum(map(_exp, logs)))),
    "root_sum_square": (root_sum_square, lambda logs: mpmath.log(mpmath.fsum(_exp(x) ** 2 for x in logs)) / 2),
    "largest": (largest, lambda logs: mpmath.mpf(max(logs))),
}


@pytest.mark.turns(6)
@pytest.mark.parametrize(("combine", "exact"), EXACT.values(), ids=EXACT.keys())
@SMALL
@given(values=st.lists(VALUES, min_size=1, max_size=8))
def test_combinations_stay_on_the_safe_side(
    combine: Callable[[Sequence[Value]], Value], exact: Callable[[Sequence[float]], Any], values: list[Value]
) -> None:
    """Against arithmetic with 400 digits: upper bounds are above, lower bounds below, all of them close."""
    with mpmath.workdps(400):
        found, truth = combine(values), exact([v.log for v in values])
        assert found.kind is weakest(v.kind for v in values)
        assert _holds(found, truth)
        assert _close(found, truth)


@SMALL
@given(value=VALUES, exponent=st.floats(1e-3, 1e3))
def test_powers_stay_on_the_safe_side(value: Value, exponent: float) -> None:
    """A rounded exponent would not."""
    with mpmath.workdps(60):
        truth = mpmath.mpf(value.log) * mpmath.mpf(exponent)
        assert _holds(value**exponent, truth)
        assert _close(value**exponent, truth)
    assert (value**exponent).kind is value.kind


@SMALL
@given(x=st.floats(0, 1e308, allow_subnormal=True), kind=KINDS)
def test_numbers_go_in_and_out_on_the_safe_side(x: float, kind: Kind) -> None:
    """The logarithm of a number, and the number itself again."""
    value = Value.of(x, kind)
    with mpmath.workdps(60):
        truth = mpmath.log(mpmath.mpf(x)) if x else -mpmath.inf
        assert _holds(value, truth)
        assert _close(value, truth)
    if kind in UPPER:
        assert value.value >= x
    elif kind is Kind.LOWER:
        assert value.value <= x
    assert value.value == pytest.approx(x, rel=1e-11, abs=1e-320)
    with mpmath.workdps(60):
        decimal = Value(mpmath.mpf(value.log10), kind)  # type: ignore[arg-type]
        assert x == 0 or _holds(decimal, truth / mpmath.log(10))


def test_round_numbers_are_exact() -> None:
    """One and zero are what they are."""
    one, zero = Value.of(1.0, Kind.CERTIFIED), Value.of(0.0, Kind.CERTIFIED)
    assert (one.log, one.value, one.log10) == (0.0, 1.0, 0.0)
    assert (zero.log, zero.value) == (-math.inf, 0.0)
    assert (one * one).log == 0.0
    assert (one + zero).log == 0.0
    assert product([]).value == 1.0
    assert total([]).value == root_sum_square([]).value == largest([]).value == 0.0
    assert Value.of(8.0, Kind.CERTIFIED).value == pytest.approx(8.0, rel=1e-14)


def test_the_float_range_is_no_limit() -> None:
    """Upper bounds beyond it are infinite, lower bounds the largest or smallest float."""
    huge, tiny = 1e5, -1e5
    assert Value(huge, Kind.CERTIFIED).value == math.inf
    assert math.isfinite(Value(huge, Kind.LOWER).value)
    assert Value(tiny, Kind.CERTIFIED).value > 0
    assert Value(tiny, Kind.LOWER).value == 0
    assert product([Value(huge, Kind.CERTIFIED), Value(tiny, Kind.CERTIFIED)]).value == 1.0


@SMALL
@given(st.lists(KINDS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_weakest_guarantee_does_not_depend_on_order_or_grouping(kinds: list[Kind], random: Any) -> None:
    """Idempotent, commutative and associative."""
    whole = weakest(kinds)
    shuffled = list(kinds)
    random.shuffle(shuffled)
    assert weakest(shuffled) is whole
    folded = kinds[0]
    for kind in kinds[1:]:
        folded = weakest([folded, kind])
    assert folded is whole
    assert weakest([whole, whole]) is whole


@pytest.mark.parametrize(
    ("kinds", "result"),
    [
        ("cc", "certified"),
        ("cp", "probabilistic"),
        ("ll", "lower"),
        ("cl", "estimate"),
        ("pl", "estimate"),
        ("ce", "estimate"),
        ("le", "estimate"),
        ("cr", "printed"),
        ("er", "printed"),
        ("clr", "printed"),
    ],
)
def test_the_table_of_guarantees(kinds: str, result: str) -> None:
    """An estimate or a mixture of upper and lower bounds never becomes a bound."""
    letter = {"c": Kind.CERTIFIED, "p": Kind.PROBABILISTIC, "l": Kind.LOWER, "e": Kind.ESTIMATE, "r": Kind.PRINTED}
    assert weakest(letter[k] for k in kinds).value == result


@SMALL
@given(st.lists(VALUES, min_size=2, max_size=4))
def test_what_is_known_about_the_operands_is_kept(values: list[Value]) -> None:
    """Domains meet, failure probabilities add up, and the grouping does not matter."""
    whole = product(values)
    step = values[0]
    for value in values[1:]:
        step = step * value
    assert (step.kind, step.domain) == (whole.kind, whole.domain)
    domains = {v.domain for v in values} - {ALL_INPUTS}
    assert set(whole.domain.split(" & ")) == (domains or {ALL_INPUTS})
    assert whole.delta >= min(1.0, math.fsum(v.delta for v in values))
    assert whole.delta <= 1.0


def test_assumptions_modes_and_statements_are_joined_once() -> None:
    """Each part appears once, in order."""
    a = Value(0.0, Kind.CERTIFIED, mode="running", statement="S1", assumptions=("x", "y"))
    b = Value(0.0, Kind.CERTIFIED, mode="batch", statement="S2", assumptions=("y", "z"))
    both = a * b * a
    assert both.mode == "running & batch"
    assert both.statement == "S1 * S2"
    assert both.assumptions == ("x", "y", "z")
    assert a.on("ball").domain == "ball"


def test_no_bound_is_never_hidden() -> None:
    """Not by a product with zero, not by a sum, not by a maximum."""
    none, zero = Value(math.inf, Kind.CERTIFIED), Value.of(0.0, Kind.CERTIFIED)
    for combined in (none * zero, zero * none, none + zero, largest([none, zero]), root_sum_square([none, zero])):
        assert combined.log == math.inf
    assert none.value == math.inf


@SMALL
@given(VALUES)
def test_the_json_form_is_strict_and_exact(value: Value) -> None:
    """Read back it is the same value, in JSON that has no infinities."""
    if value.kind is not Kind.PROBABILISTIC:
        value = Value(value.log, value.kind, value.domain)
    text = json.dumps(value.to_dict(), allow_nan=False)
    assert Value.from_dict(json.loads(text)) == value
    old = {key: item for key, item in json.loads(text).items() if key != "log"}
    again = Value.from_dict(old)
    if value.kind in UPPER:
        assert again.log >= value.log
    elif value.kind is Kind.LOWER:
        assert again.log <= value.log
    assert again.log == pytest.approx(value.log, rel=1e-14)


def test_the_json_form_keeps_everything() -> None:
    """Every field, and infinities as strings."""
    value = Value(math.inf, Kind.PROBABILISTIC, "ball", "running", "than2025 Lemma 1", ("finite weights",), 1e-9)
    data = value.to_dict()
    assert data["log10"] == data["log"] == "inf"
    assert Value.from_dict(json.loads(json.dumps(data))) == value
    assert json_number(-math.inf) == "-inf"
    with pytest.raises(ValueError, match="cannot be NaN"):
        json_number(math.nan)


def test_best_chooses_among_upper_bounds_only() -> None:
    """The smallest, with its own guarantee."""
    a, b = Value.of(2.0, Kind.CERTIFIED), Value.of(1.5, Kind.PROBABILISTIC, delta=1e-6)
    assert best([a, b]) is b
    assert best([a]) is a
    for wrong in ([], [a, Value.of(1.0, Kind.LOWER)], [Value.of(1.0, Kind.ESTIMATE)]):
        with pytest.raises(ValueError, match="upper bound"):
            best(wrong)


def test_refusals() -> None:
    """A value is a non-negative number."""
    with pytest.raises(ValueError, match="cannot be NaN"):
        Value(math.nan, Kind.CERTIFIED)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="non-negative"):
            log_of(wrong)
    for exponent in (0.0, -1.0):
        with pytest.raises(ValueError, match="positive exponent"):
            Value.of(2.0, Kind.CERTIFIED) ** exponent


def test_sums_of_logarithms() -> None:
    """Empty, single, infinite, and far apart."""
    assert log_sum([]) == -math.inf
    assert log_sum([3.25], math.inf) == 3.25
    assert log_sum([1.0, math.inf]) == math.inf
    assert log_sum([-math.inf, 2.0]) == 2.0
    assert log_sum([1000.0, -1000.0], math.inf) > 1000.0
    assert log_sum([1000.0, -1000.0]) == 1000.0


@pytest.mark.parametrize("side", [math.inf, -math.inf, math.nan])
def test_no_bound_is_more_than_any_other_term(side: float) -> None:
    """Zero times "no bound" is "no bound", and no error."""
    assert exact_sum((-math.inf, math.inf, 1.0), side) == math.inf
    assert exact_sum((-math.inf, 1.0), side) == -math.inf
