"""How a bound builds up along the depth of a network: curves over the places of its layers and normalizers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from normscope.core.json_form import to_plain
from normscope.core.value import ALL_INPUTS, Kind, Value, safe_side

#: Digits after the point that a decimal logarithm of a curve keeps; the rest is rounded to the safe side.
DIGITS = 9


@dataclass(frozen=True)
class Curve:
    """One quantity along the depth: what it guarantees, said once, and its decimal logarithm at each place.

    >>> Curve.of([0.0, None, 1.5], Kind.LOWER).log10
    (0.0, None, 0.651441722)
    """

    kind: Kind  #: what each of its numbers guarantees
    #: decimal logarithms, rounded to the safe side of the kind; ``None`` where nothing was measured
    log10: tuple[float | None, ...]
    domain: str = ALL_INPUTS  #: the inputs it is about
    mode: str | None = None  #: what BatchNorm does there
    statement: str = ""  #: where it comes from
    assumptions: tuple[str, ...] = ()  #: what was taken for granted

    @classmethod
    def of(cls, logs: Iterable[float | None], kind: Kind, **rest: Any) -> Curve:
        """Return the curve of natural logarithms."""
        side = safe_side(kind)
        decimal = [None if log is None else _rounded(Value(log, kind).log10, side) for log in logs]
        return cls(kind, tuple(decimal), **rest)


def _rounded(x: float, side: float) -> float:
    """Return a number with few digits, on the safe side.

    >>> _rounded(0.1234567891, math.inf), _rounded(0.1234567891, -math.inf), _rounded(2.0, math.inf)
    (0.12345679, 0.123456789, 2.0)
    """
    near = round(x, DIGITS)
    if math.isinf(x) or math.isnan(side) or near == x or (near > x) == (side > 0):
        return near
    return round(near + math.copysign(10.0**-DIGITS, side), DIGITS)


@dataclass(frozen=True)
class Depth:
    """Curves over the places of a network, from the input to the output.

    The curves are ``global`` (proved on all inputs), ``variance_floor`` (proved on the variance-floor domain),
    ``without_normalizers`` (proved, normalizers taken out), ``printed`` (flat product up to there) and ``lower``
    (attained). The number at a place bounds the map from the network input to the tensor there.
    """

    #: of the layer or normalizer at each place, as in the tables; the first is the input, the last the output
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()  #: ``input``, ``layer``, ``normalizer`` or ``output``
    curves: dict[str, Curve] = field(default_factory=dict)  #: by name

    def value(self, curve: str, place: int) -> Value | None:
        """Return one number of a curve with its guarantee.

        >>> depth = Depth(("input",), ("input",), {"global": Curve.of([0.0], Kind.CERTIFIED)})
        >>> depth.value("global", 0).value
        1.0
        """
        found = self.curves[curve]
        decimal = found.log10[place]
        if decimal is None:
            return None
        return Value.from_dict(to_plain(found) | {"log10": decimal})
