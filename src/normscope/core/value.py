"""Values that know what they guarantee.

A :class:`Value` is a non-negative number in the log domain together with its kind, domain, mode, statement and
assumptions. The algebra keeps the weakest guarantee of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

LN10 = math.log(10.0)
ALL_INPUTS = "all inputs"


class Kind(Enum):
    """What a number guarantees, strongest first."""

    CERTIFIED = "certified"
    PROBABILISTIC = "probabilistic"
    LOWER = "lower"
    ESTIMATE = "estimate"
    PRINTED = "printed"


def weakest(kinds: Iterable[Kind]) -> Kind:
    """Return the guarantee that survives when numbers of these kinds are combined by an increasing function.

    Upper bounds stay upper bounds, lower bounds stay lower bounds; a mixture of the two is only an estimate, and
    a printed formula stays one.

    >>> weakest([Kind.CERTIFIED, Kind.PROBABILISTIC]).value
    'probabilistic'
    >>> weakest([Kind.CERTIFIED, Kind.LOWER]).value
    'estimate'
    """
    present = set(kinds)
    if Kind.PRINTED in present:
        return Kind.PRINTED
    upper = bool(present & {Kind.CERTIFIED, Kind.PROBABILISTIC})
    if Kind.ESTIMATE in present or (upper and Kind.LOWER in present):
        return Kind.ESTIMATE
    if Kind.LOWER in present:
        return Kind.LOWER
    return Kind.PROBABILISTIC if Kind.PROBABILISTIC in present else Kind.CERTIFIED


def log_sum(logs: Iterable[float]) -> float:
    """Return ``log(sum(exp(l)))`` without overflow; the empty sum is ``-inf``.

    >>> log_sum([1000.0, 1000.0]) - 1000.0 == math.log(2)
    True
    """
    terms = [log for log in logs if log != -math.inf]
    if not terms:
        return -math.inf
    top = max(terms)
    if math.isinf(top):
        return top
    return top + math.log(math.fsum(math.exp(log - top) for log in terms))


def log_of(x: float) -> float:
    """Return ``log(x)`` for ``x >= 0``, with ``log(0) = -inf``."""
    return -math.inf if x == 0 else math.log(x)


@dataclass(frozen=True)
class Value:
    """A non-negative number, its natural logarithm stored, that says what it is.

    Attributes:
        log: natural logarithm of the number; ``-inf`` is zero, ``inf`` is "no bound".
        kind: what the number guarantees.
        domain: the inputs it speaks about.
        mode: what BatchNorm does there: ``running``, ``batch``, ``frozen-batch``, or ``None`` if it does not matter.
        statement: the paper and number it comes from.
        assumptions: what was taken for granted.
        delta: the probability with which a probabilistic bound may fail.

    >>> a = Value.of(3.0, Kind.CERTIFIED) * Value.of(2.0, Kind.PROBABILISTIC, delta=1e-9)
    >>> round(a.value, 12), a.kind.value, a.delta
    (6.0, 'probabilistic', 1e-09)
    """

    log: float
    kind: Kind
    domain: str = ALL_INPUTS
    mode: str | None = None
    statement: str = ""
    assumptions: tuple[str, ...] = ()
    delta: float = 0.0

    @classmethod
    def of(cls, x: float, kind: Kind, **rest: Any) -> Value:
        """Return the value of an ordinary non-negative number."""
        return cls(log_of(x), kind, **rest)

    @property
    def value(self) -> float:
        """Return the number itself (``inf`` where it exceeds the float range)."""
        try:
            return math.exp(self.log)
        except OverflowError:
            return math.inf

    @property
    def log10(self) -> float:
        """Return the decimal logarithm."""
        return self.log / LN10

    def __mul__(self, other: Value) -> Value:
        """Multiply; zero times "no bound" is "no bound", so that nothing unknown is hidden."""
        log = math.inf if math.inf in (self.log, other.log) else self.log + other.log
        return _combine((self, other), log)

    def __add__(self, other: Value) -> Value:
        """Add."""
        return _combine((self, other), log_sum((self.log, other.log)))

    def __pow__(self, exponent: float) -> Value:
        """Raise to a positive power (a negative one would turn an upper bound into a lower one)."""
        if exponent <= 0:
            raise ValueError(f"a Value can be raised to a positive power only, not {exponent}")
        return replace(self, log=self.log * exponent)

    def on(self, domain: str) -> Value:
        """Return the same number, said of a smaller domain."""
        return replace(self, domain=domain)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form ``{log10, kind, domain, mode, statement, ...}``; infinities become strings."""
        out: dict[str, Any] = {
            "log10": json_number(self.log10),
            "kind": self.kind.value,
            "domain": self.domain,
            "mode": self.mode,
            "statement": self.statement,
        }
        if self.assumptions:
            out["assumptions"] = list(self.assumptions)
        if self.kind is Kind.PROBABILISTIC:
            out["delta"] = self.delta
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Value:
        """Read the JSON form back."""
        return cls(
            log=float(data["log10"]) * LN10,
            kind=Kind(data["kind"]),
            domain=data["domain"],
            mode=data["mode"],
            statement=data["statement"],
            assumptions=tuple(data.get("assumptions", ())),
            delta=float(data.get("delta", 0.0)),
        )


def json_number(x: float) -> float | str:
    """Return a float as strict JSON can carry it: infinities as the strings ``"inf"`` and ``"-inf"``."""
    if math.isnan(x):
        raise ValueError("a Value is never NaN: nothing may be reported as a number that is not one")
    return x if math.isfinite(x) else ("inf" if x > 0 else "-inf")


def _combine(values: tuple[Value, ...], log: float) -> Value:
    """Return the combination of values at ``log``, with the weakest guarantee of all."""
    domains = dict.fromkeys(v.domain for v in values if v.domain != ALL_INPUTS)
    modes = dict.fromkeys(v.mode for v in values if v.mode is not None)
    return Value(
        log=log,
        kind=weakest(v.kind for v in values),
        domain=" & ".join(domains) or ALL_INPUTS,
        mode=" & ".join(modes) or None,
        statement=" * ".join(dict.fromkeys(v.statement for v in values if v.statement)),
        assumptions=tuple(dict.fromkeys(a for v in values for a in v.assumptions)),
        delta=min(1.0, math.fsum(v.delta for v in values)),
    )


def product(values: Iterable[Value]) -> Value:
    """Return the product of values; the empty product is a certified one."""
    items = tuple(values)
    if not items:
        return Value(0.0, Kind.CERTIFIED)
    infinite = any(v.log == math.inf for v in items)
    return _combine(items, math.inf if infinite else math.fsum(v.log for v in items))


def total(values: Iterable[Value]) -> Value:
    """Return the sum of values; the empty sum is a certified zero."""
    items = tuple(values)
    return _combine(items, log_sum(v.log for v in items)) if items else Value(-math.inf, Kind.CERTIFIED)


def root_sum_square(values: Iterable[Value]) -> Value:
    """Return ``sqrt(sum v_i^2)``: the constant of a concatenation of functions of one input."""
    items = tuple(values)
    if not items:
        return Value(-math.inf, Kind.CERTIFIED)
    return _combine(items, log_sum(2 * v.log for v in items) / 2)


def largest(values: Iterable[Value]) -> Value:
    """Return the maximum of values, the constant of a block-diagonal map."""
    items = tuple(values)
    return _combine(items, max(v.log for v in items)) if items else Value(-math.inf, Kind.CERTIFIED)


def best(values: Iterable[Value]) -> Value:
    """Return the smallest of several upper bounds on the same quantity, with its own guarantee.

    Raises:
        ValueError: if there is none, or one of them is not an upper bound.
    """
    items = tuple(values)
    if not items or any(v.kind not in (Kind.CERTIFIED, Kind.PROBABILISTIC) for v in items):
        raise ValueError("best() chooses among upper bounds, and needs at least one")
    return min(items, key=lambda v: v.log)
