"""The result of ``bounds``: every bound on the error of a network, its status, and the true error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from normscope.core.display import Shown
from normscope.core.errors import NormscopeError
from normscope.core.files import Stored
from normscope.core.lazy import late
from normscope.core.number_text import number_text
from normscope.core.result import Rows
from normscope.core.value import Kind, Value

#: Values of the status of a row.
STATUS = ("certificate", "estimate", "scale only", "refused", "not requested")
_OF_KIND = {
    Kind.CERTIFIED: "certificate",
    Kind.PROBABILISTIC: "certificate",
    Kind.ESTIMATE: "estimate",
    Kind.LOWER: "estimate",
    Kind.PRINTED: "scale only",
}


class RefusedError(NormscopeError):
    """A bound does not apply to this network, or to these data; the message says why."""

    status = "refused"


class NotRequestedError(RefusedError):
    """A bound is computed only on request; the message says how to request it."""

    status = "not requested"


@dataclass(frozen=True)
class BoundRow:
    """One bound on the probability of a wrong decision."""

    name: str  #: of the bound
    bound: Value | None  #: on the error (or on the expected loss, see ``of``); none if it is refused
    status: str  #: one of :data:`STATUS`
    vacuous: bool  #: whether it says no more than guessing
    #: what it speaks about: ``this network``, ``the randomized network``, ``the compressed network``
    of: str = "this network"
    statement: str = ""  #: paper and number
    assumptions: tuple[str, ...] = ()  #: what was taken for granted
    reason: str = ""  #: why it is refused, or what keeps it from being a certificate
    details: Mapping[str, Any] = field(default_factory=dict)  #: the numbers it was made of

    @classmethod
    def of_value(cls, name: str, bound: Value, classes: int, **rest: Any) -> BoundRow:
        """Return the row of a value: its kind gives the status, and it is vacuous if random guessing is as good."""
        vacuous = bound.value >= 1 - 1 / classes
        said: dict[str, Any] = {"statement": bound.statement, "assumptions": bound.assumptions}
        return cls(name, bound, _OF_KIND[bound.kind], vacuous, **said, **rest)

    @classmethod
    def refused(cls, name: str, reason: str, status: str = RefusedError.status) -> BoundRow:
        """Return the row of a bound that does not apply."""
        return cls(name, None, status, True, reason=reason)


@dataclass(frozen=True, repr=False)
class BoundsResult(Stored, Shown):
    """Every bound on the error of a classifier, next to its true error.

    Attributes:
        model: name of the network.
        truth: training error, test error, their gap, samples, classes, delta.
        rows: the bounds; also by name, ``result.rows["held-out"]``.
        margins: quantiles of the margins on the training data, raw and normalized.
        messages: notes on the numbers.
    """

    _kind = "bounds"
    _layout = ("normscope.report.bounds", "bounds_sections")
    _rows = "rows"

    model: str
    truth: Mapping[str, Any]
    rows: Rows[BoundRow]
    margins: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    @property
    def best(self) -> BoundRow | None:
        """Return the smallest certificate for this very network."""
        found = [r for r in self.rows if r.status == "certificate" and r.of == "this network" and r.bound is not None]
        return min(found, key=lambda r: r.bound.log if r.bound is not None else 0.0, default=None)

    def plot(self) -> Any:
        """Draw bounds and margins with matplotlib; see :func:`normscope.report.bounds.plot_bounds`."""
        return late("normscope.report.bounds", "plot_bounds")(self)


def shown(value: Value | None) -> str:
    """Return a bound as text, of any size.

    >>> shown(Value.of(0.0641, Kind.PRINTED)), shown(Value(90.0, Kind.PRINTED)), shown(None)
    ('0.0641', '1.22e+39', '')
    """
    return "" if value is None else number_text(value.log10)
