"""A quantity of the monitor: a function of a snapshot, perhaps with memory between snapshots to save work."""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.monitor.chart import Chart
from normscope.monitor.snapshot import Snapshot

#: What the files of quantities import from here.
__all__ = ["PROBE", "Chart", "Description", "Kind", "Quantity", "Snapshot"]
#: The domain of most metrics.
PROBE = "the probe batch"


@dataclass(frozen=True)
class Description:
    """The meaning of a metric."""

    #: its name, with ``*`` for a layer, normalizer or activation; a decimal logarithm has ``_log10`` in its name
    pattern: str
    kind: Kind  #: what its numbers guarantee
    words: str  #: what it is
    statement: str = ""  #: the paper and number it comes from
    domain: str = PROBE  #: the inputs it holds for
    signed: bool = False  #: whether it may be negative; then it cannot be a :class:`~normscope.core.value.Value`

    @property
    def log10(self) -> bool:
        """Return whether the number is a decimal logarithm."""
        return "_log10" in self.pattern

    def matches(self, name: str) -> bool:
        """Return whether a metric is described by this.

        >>> Description("norm/*", Kind.LOWER, "").matches("norm/blocks.0.conv")
        True
        """
        return fnmatchcase(name, self.pattern)

    def to_dict(self) -> dict[str, object]:
        """Return the form kept in a run's configuration."""
        said = {key: getattr(self, key) for key in ("pattern", "words", "statement", "log10", "domain")}
        return said | {"kind": self.kind.value}

    def value(self, number: float, name: str = "") -> Value:
        """Return a number of this metric as a value that says what it is.

        Args:
            number: the number.
            name: the metric's name for messages; by default its pattern.

        Raises:
            InputError: if the metric may be negative, or the number is NaN.

        >>> Description("product/folded_log10", Kind.LOWER, "").value(2.0).kind.value
        'lower'
        """
        name = name or self.pattern
        if self.signed or math.isnan(number):
            why = "may be negative" if self.signed else "is NaN"
            raise InputError(f"{name} {why}, so it has no Value. Read monitor.latest[{name!r}].")
        if self.log10:
            rest = {"kind": self.kind.value, "domain": self.domain, "mode": None, "statement": self.statement}
            return Value.from_dict({"log10": number, **rest})
        return Value.of(number, self.kind, domain=self.domain, statement=self.statement)


class Quantity:
    """One quantity over time; subclasses define what is measured."""

    name: ClassVar[str] = ""  #: its name in ``quantities=``
    describes: ClassVar[tuple[Description, ...]] = ()  #: its metrics
    charts: ClassVar[tuple[Chart, ...]] = ()  #: the charts that show them, which other quantities may share
    preset: ClassVar[str] = ""  #: the smallest preset that measures it; without one it is measured only on request
    cost: ClassVar[int] = 100  #: its position in the order of measuring, cheapest first
    gradient: ClassVar[bool] = False  #: whether it needs the gradient on the probe
    previous: ClassVar[bool] = False  #: whether it needs the weights before the last update
    #: whether a measurement may continue during the next updates, with the weights of its own step
    spreads: ClassVar[bool] = False

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the metrics of a snapshot by name."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """Return whether the last measurement must be continued with :meth:`proceed`."""
        return False

    def proceed(self) -> dict[str, float]:
        """Continue the last measurement, and return its metrics if it is finished."""
        return {}

    def drop(self) -> None:
        """Abandon the last measurement if it is not finished."""
