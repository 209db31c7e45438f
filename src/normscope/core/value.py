"""Values that know what they guarantee.

A :class:`Value` is a non-negative number in the log domain together with its kind, domain, mode, statement and
assumptions. The algebra keeps the weakest guarantee of its operands, and rounds to the safe side of it: upper bounds
up, lower bounds down. Logarithm and exponential are taken to err by less than one unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any

from normscope.core.lazy import late

LN10 = math.log(10.0)
ALL_INPUTS = "all inputs"
_UNIT = 2.0**-53


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


def safe_side(kind: Kind) -> float:
    """Return the direction of rounding that keeps a guarantee: ``inf``, ``-inf``, or ``nan`` if it does not matter.

    >>> safe_side(Kind.CERTIFIED), safe_side(Kind.LOWER)
    (inf, -inf)
    """
    if kind in (Kind.CERTIFIED, Kind.PROBABILISTIC):
        return math.inf
    return -math.inf if kind is Kind.LOWER else math.nan


def log_sum(logs: Iterable[float], side: float = math.nan) -> float:
    """Return ``log(sum(exp(l)))`` without overflow; the empty sum is ``-inf``.

    With ``m = max l`` it is ``m + log S``, ``S = sum(exp(l - m)) >= 1``. A term of ``S`` errs by at most
    ``exp(-d) (d + 2) u < 3 u`` where ``d = m - l``, so ``log S`` by less than ``(3 n + 2 + 2 log n) u``.

    Args:
        logs: the logarithms ``l`` of the terms, ``n`` of them.
        side: where to round, as :func:`safe_side` says; to nearest if that does not matter.

    >>> abs(log_sum([1000.0, 1000.0]) - 1000.0 - math.log(2)) < 1e-12
    True
    >>> log_sum([0.0, 0.0], math.inf) >= math.log(2)
    True
    """
    terms = [log for log in logs if log != -math.inf]
    if not terms:
        return -math.inf
    top = max(terms)
    if len(terms) == 1 or math.isinf(top):
        return top
    part = math.log(math.fsum(math.exp(log - top) for log in terms))
    if not math.isnan(side):
        slack = (3 * len(terms) + 4 + 2 * part) * _UNIT
        part = math.nextafter(part + math.copysign(slack, side), side)
    return exact_sum((top, part), side)


def log_of(x: float) -> float:
    """Return ``log(x)`` for ``x >= 0``, with ``log(0) = -inf``.

    Raises:
        ValueError: if ``x`` is negative or not a number.
    """
    if not x >= 0:
        raise ValueError(f"Expected a non-negative number, got {x}.")
    return -math.inf if x == 0 else math.log(x)


def exact_sum(terms: Iterable[float], side: float) -> float:
    """Return the sum of floats rounded to a side, or to nearest; ``inf``, "no bound", is more than any other term.

    >>> exact_sum([1.0, 1e-30], math.inf) > 1.0, exact_sum([-math.inf, math.inf], math.inf)
    (True, inf)
    """
    items = tuple(terms)
    if math.inf in items:
        return math.inf
    rounded = math.fsum(items)
    if math.isnan(side) or math.isinf(rounded):
        return rounded
    missing = math.fsum((*items, -rounded))  # correctly rounded, so its sign is that of the exact difference
    return math.nextafter(rounded, side) if missing * math.copysign(1.0, side) > 0 else rounded


def _nudge(x: float, side: float, steps: int = 1) -> float:
    """Move a finite float by some units in the last place to a side."""
    for _ in range(steps if math.isfinite(x) and not math.isnan(side) else 0):
        x = math.nextafter(x, side)
    return x


@dataclass(frozen=True)
class Value:
    """A non-negative number, stored as its natural logarithm, with its guarantee.

    Attributes:
        log: natural logarithm of the number; ``-inf`` is zero, ``inf`` is "no bound".
        kind: what the number guarantees.
        domain: the inputs it is about.
        mode: what BatchNorm does there: ``running``, ``batch``, ``frozen-batch``, or ``None`` if it does not matter.
        statement: the paper and number it comes from.
        assumptions: assumptions of the number.
        delta: the failure probability of a probabilistic bound.

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

    def __post_init__(self) -> None:
        if math.isnan(self.log):
            raise ValueError("A Value cannot be NaN.")

    @classmethod
    def of(cls, x: float, kind: Kind, **rest: Any) -> Value:
        """Return the value of an ordinary non-negative number."""
        return cls(0.0 if x == 1 else _nudge(log_of(x), safe_side(kind)), kind, **rest)

    def __str__(self) -> str:
        """Return the number, at any size, with what it guarantees and for which inputs.

        >>> print(Value(1000.0, Kind.CERTIFIED))
        1.97e+434 (certified, all inputs)
        """
        return str(late("normscope.report.numbers", "described")(self))

    @property
    def value(self) -> float:
        """Return the number itself on the safe side (``inf`` where an upper bound exceeds the float range)."""
        side = safe_side(self.kind)
        if self.log in (0.0, -math.inf, math.inf):
            return math.exp(self.log)
        try:
            rounded = math.exp(self.log)
        except OverflowError:
            rounded = math.inf
        if math.isnan(side) or (rounded == math.inf and side > 0):
            return rounded
        return max(0.0, math.nextafter(rounded, side))

    @property
    def log10(self) -> float:
        """Return the decimal logarithm on the safe side."""
        return _nudge(self.log / LN10, safe_side(self.kind), 2) if self.log else 0.0

    def __mul__(self, other: Value) -> Value:
        """Multiply; zero times "no bound" is "no bound", so that nothing unknown is hidden."""
        return product((self, other))

    def __add__(self, other: Value) -> Value:
        """Add."""
        return total((self, other))

    def __pow__(self, exponent: float) -> Value:
        """Raise to a positive power (a negative one would turn an upper bound into a lower one)."""
        if exponent <= 0:
            raise ValueError(f"Expected a positive exponent, got {exponent}.")
        power = self.log * exponent
        side = safe_side(self.kind)
        if math.isfinite(power) and not math.isnan(side):
            missing = Fraction(self.log) * Fraction(exponent) - Fraction(power)
            power = math.nextafter(power, side) if missing * (1 if side > 0 else -1) > 0 else power
        return replace(self, log=power)

    def on(self, domain: str) -> Value:
        """Return the same number, stated for a smaller domain."""
        return replace(self, domain=domain)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form ``{log10, log, kind, domain, mode, statement, ...}``; infinities become strings.

        ``log10`` is for people and rounded to the safe side; ``log`` is exact and is the one that is read back.
        """
        out: dict[str, Any] = {
            "log10": json_number(self.log10),
            "log": json_number(self.log),
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
        """Read the JSON form back; without the exact ``log``, ``log10`` is rounded to the safe side."""
        kind = Kind(data["kind"])
        decimal = float(data["log10"])
        outward = _nudge(decimal * LN10, safe_side(kind), 2) if decimal else 0.0
        return cls(
            log=float(data.get("log", outward)),
            kind=kind,
            domain=data["domain"],
            mode=data["mode"],
            statement=data["statement"],
            assumptions=tuple(data.get("assumptions", ())),
            delta=float(data.get("delta", 0.0)),
        )


def json_number(x: float) -> float | str:
    """Return a float as strict JSON can carry it: infinities as the strings ``"inf"`` and ``"-inf"``."""
    if math.isnan(x):
        raise ValueError("A Value cannot be NaN.")
    return x if math.isfinite(x) else ("inf" if x > 0 else "-inf")


def _combined(values: Iterable[Value], log: Callable[[list[float], float], float], empty: float) -> Value:
    """Return a combination of values with the weakest guarantee of all.

    Args:
        values: what is combined.
        log: from the logarithms of the values, and where to round, to that of the combination.
        empty: the logarithm of the combination of no values, which is certified.
    """
    items = tuple(values)
    if not items:
        return Value(empty, Kind.CERTIFIED)
    kind = weakest(v.kind for v in items)
    return Value(
        log=log([v.log for v in items], safe_side(kind)),
        kind=kind,
        domain=_joined(" & ", (v.domain for v in items if v.domain != ALL_INPUTS)) or ALL_INPUTS,
        mode=_joined(" & ", (v.mode for v in items if v.mode is not None)) or None,
        statement=_joined(" * ", (v.statement for v in items)),
        assumptions=tuple(dict.fromkeys(a for v in items for a in v.assumptions)),
        delta=min(1.0, exact_sum((v.delta for v in items), math.inf)),
    )


def _joined(sign: str, texts: Iterable[str]) -> str:
    """Join texts that may be joined already, each part once."""
    return sign.join(dict.fromkeys(part for text in texts for part in text.split(sign) if part))


def product(values: Iterable[Value]) -> Value:
    """Return the product of values; the empty product is a certified one.

    Zero times "no bound" is "no bound", so that nothing unknown is hidden.
    """
    return _combined(values, exact_sum, 0.0)


def total(values: Iterable[Value]) -> Value:
    """Return the sum of values; the empty sum is a certified zero."""
    return _combined(values, log_sum, -math.inf)


def root_sum_square(values: Iterable[Value]) -> Value:
    """Return ``sqrt(sum v_i^2)``: the constant of a concatenation of functions of one input."""
    return _combined(values, lambda logs, side: log_sum((2 * log for log in logs), side) / 2, -math.inf)


def largest(values: Iterable[Value]) -> Value:
    """Return the maximum of values, the constant of a block-diagonal map."""
    return _combined(values, lambda logs, side: max(logs), -math.inf)


def best(values: Iterable[Value]) -> Value:
    """Return the smallest of several upper bounds on the same quantity, with its own guarantee.

    Raises:
        ValueError: if there is none, or one of them is not an upper bound.
    """
    items = tuple(values)
    if not items or any(v.kind not in (Kind.CERTIFIED, Kind.PROBABILISTIC) for v in items):
        raise ValueError("best() expects at least one upper bound.")
    return min(items, key=lambda v: v.log)
