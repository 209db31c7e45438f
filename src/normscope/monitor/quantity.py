"""A quantity of the monitor: a pure function of a moment, with a memory between moments where that saves work."""

import math
from dataclasses import dataclass
from typing import ClassVar

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.monitor.chart import Chart
from normscope.monitor.snapshot import Snapshot

#: What every file of a quantity needs is here.
__all__ = ["PROBE", "Chart", "Description", "Kind", "Quantity", "Snapshot"]
#: What most metrics speak about.
PROBE = "the probe batch"


@dataclass(frozen=True)
class Description:
    """What a metric is."""

    #: its name, a ``*`` standing for the name of a layer, normalizer or activation; names of decimal logarithms say so
    pattern: str
    kind: Kind  #: what its numbers guarantee
    words: str  #: what it is
    statement: str = ""  #: the paper and number it comes from
    domain: str = PROBE  #: the inputs it is about
    signed: bool = False  #: whether it may be negative, so that it is no :class:`~normscope.core.value.Value`

    @property
    def log10(self) -> bool:
        """Return whether the number is a decimal logarithm."""
        return "_log10" in self.pattern

    def matches(self, name: str) -> bool:
        """Return whether a metric is described by this.

        >>> Description("norm/*", Kind.LOWER, "").matches("norm/blocks.0.conv")
        True
        """
        start, star, end = self.pattern.partition("*")
        if not star:
            return name == self.pattern
        return len(name) > len(start) + len(end) and name.startswith(start) and name.endswith(end)

    def to_dict(self) -> dict[str, object]:
        """Return the form kept in a run's configuration."""
        said = {key: getattr(self, key) for key in ("pattern", "words", "statement", "log10", "domain")}
        return said | {"kind": self.kind.value}

    def value(self, number: float) -> Value:
        """Return a number of this metric as a value that says what it is.

        Raises:
            InputError: if the metric may be negative, or the number is none.

        >>> Description("product/folded_log10", Kind.LOWER, "").value(2.0).kind.value
        'lower'
        """
        if self.signed or math.isnan(number):
            raise InputError(
                f"{self.pattern} cannot be a Value: it may be negative, or is not a number here ({number})."
            )
        if self.log10:
            rest = {"kind": self.kind.value, "domain": self.domain, "mode": None, "statement": self.statement}
            return Value.from_dict({"log10": number, **rest})
        return Value.of(number, self.kind, domain=self.domain, statement=self.statement)


class Quantity:
    """One quantity over time; subclasses say what they measure and how."""

    name: ClassVar[str] = ""  #: what it is chosen by
    describes: ClassVar[tuple[Description, ...]] = ()  #: its metrics
    charts: ClassVar[tuple[Chart, ...]] = ()  #: where the page of a run shows them; others may use them, too
    cost: ClassVar[int] = 100  #: its place among the others, cheapest first
    gradient: ClassVar[bool] = False  #: whether it needs the gradient on the probe
    previous: ClassVar[bool] = False  #: whether it needs the weights of one update before
    #: whether a measurement may go on over the next updates, at the weights of its own
    spreads: ClassVar[bool] = False

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the metrics of a moment by name."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """Return whether the last moment is to be measured further, by :meth:`proceed`."""
        return False

    def proceed(self) -> dict[str, float]:
        """Measure the last moment further, and return its metrics if that is enough."""
        return {}

    def drop(self) -> None:
        """Leave the last moment as it is."""
