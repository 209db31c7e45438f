"""Results: what an analysis found, as plain objects with a versioned JSON form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex, TypeVar, overload

from normscope.core.around_data import Around
from normscope.core.depth_curve import Depth
from normscope.core.display import Shown, frame
from normscope.core.errors import suggestion
from normscope.core.files import Stored
from normscope.core.finding import Finding
from normscope.core.gap import Gap
from normscope.core.lazy import late
from normscope.core.value import Value


class Row(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """Return the name."""


R = TypeVar("R", bound=Row)


class Rows(tuple[R, ...]):
    """A tuple of named rows: ``rows[0]``, ``rows[1:3]`` and ``rows["conv1"]``.

    >>> from pathlib import Path
    >>> Rows((Path("a/conv1"), Path("fc")))["conv1"]
    PosixPath('a/conv1')
    """

    @overload
    def __getitem__(self, key: SupportsIndex) -> R: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[R, ...]: ...
    @overload
    def __getitem__(self, key: str) -> R: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a row by position or by name.

        An unknown name raises an error that lists the nearest names, or all if none is near.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        for row in self:
            if row.name == key:
                return row
        raise KeyError(f"No row named {key!r}. {suggestion(key, (row.name for row in self))}")


@dataclass(frozen=True)
class OpaqueOperation:
    """An operation without a finite constant: unknown, or known not to be Lipschitz."""

    name: str
    op: str
    module: str
    reason: str
    known: bool


@dataclass(frozen=True)
class Coverage:
    """How much of the network was understood."""

    ops: int  #: operations that depend on the input
    understood: int  #: those with a rule
    parameters: float  #: share of the parameters whose every use was understood
    parameters_total: int  #: their number
    opaque: tuple[OpaqueOperation, ...] = ()  #: the others, each with its place and the reason


@dataclass(frozen=True)
class NormalizerResult:
    """One normalizer."""

    name: str  #: module path (with a call number if the module is called more than once)
    kind: str  #: what it is
    printed: Value | None  #: the constant the paper prints for it
    printed_is_bound: bool | None  #: whether the printed number is at least the proved one
    proved: Value  #: its Lipschitz constant, scale included, on the widest domain
    on_floor: Value | None = None  #: the same where its input spread stays above the floor seen in the data
    floor: float | None = None  #: that floor (the least over channels)
    details: dict[str, Any] = field(default_factory=dict)  #: eps, group size, statistics, drift


@dataclass(frozen=True)
class LayerResult:
    """One linear layer."""

    name: str  #: module path
    kind: str  #: ``matrix`` or ``convolution``
    shape: tuple[int, ...]  #: shape of its weight
    upper: Value  #: upper bound on its norm as it acts
    lower: Value  #: attained value
    folded: Value | None = None  #: norm together with the fixed normalization after it
    method: str = ""  #: how it was found
    probable: Value | None = None  #: a smaller upper bound that holds with high probability, where there is one

    @property
    def attained(self) -> Value | None:
        """Return the attained value, or ``None`` if none was sought."""
        return None if self.lower.log == -math.inf < self.upper.log else self.lower


@dataclass(frozen=True, repr=False)
class Result(Stored, Shown):
    """What ``analyze`` found.

    ``print(result)`` shows the verdict and the constants, a notebook shows the same as a page, and ``to_frame()``
    returns the layers.

    Attributes:
        model: name, front end, batch, notes.
        input: blocks of the network input and what is kept fixed.
        coverage: how much was understood.
        normalizers: every normalizer, in order; also by name, ``result.normalizers["bn1"]``.
        layers: every linear layer, in order; also by name, ``result.layers["conv1"]``.
        end_to_end: ``printed``, ``global``, ``variance_floor``, ``without_normalizers``, ``lower``, and more.
        statistics: statistics of the data, if there is any.
        effect: what the normalizers change.
        messages: notes on the numbers.
        blocks: the module tree with equal blocks folded.
        depth: how the end-to-end constants build up from the input to the output.
        around: constants around the data, if there is any.
        gap: where the distance between bound and attained comes from, or ``None`` if it was not measured.
        findings: what the doctor found, the most severe first; ``None`` if no checks were run.
    """

    _kind = "capacity"
    _layout = ("normscope.report.analysis", "summary_sections")
    _rows = "layers"

    model: dict[str, Any]
    input: dict[str, Any]
    coverage: Coverage
    normalizers: Rows[NormalizerResult]
    layers: Rows[LayerResult]
    end_to_end: dict[str, Value | None]
    statistics: dict[str, Any] = field(default_factory=dict)
    effect: dict[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    blocks: tuple[dict[str, Any], ...] = ()
    depth: Depth = field(default_factory=Depth)
    around: Around | None = None
    gap: Gap | None = None
    findings: tuple[Finding, ...] | None = None

    def __repr__(self) -> str:
        """Return one line: which model, and between which numbers its constant lies."""
        name = self.model.get("name") or self.model.get("class") or "model"
        return f"<Result of {name}: {late('normscope.report.analysis', 'between')(self)}>"

    @property
    def upper(self) -> Value | None:
        """Return the proved Lipschitz constant on all inputs, ``end_to_end["global"]``."""
        return self.end_to_end.get("global")

    @property
    def lower(self) -> Value | None:
        """Return the attained value ``end_to_end["lower"]``, for a first look ``end_to_end["lower_everywhere"]``."""
        return self.end_to_end.get("lower") or self.end_to_end.get("lower_everywhere")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; after version and kind it opens with the verdict, three sentences."""
        form = super().to_dict()
        head = {key: form.pop(key) for key in ("schema_version", "kind")}
        return {**head, "verdict": late("normscope.report.verdict", "verdict")(self).to_dict(), **form}

    def to_frame(self) -> Any:
        """Return layers and normalizers, in this order, as a pandas data frame.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        layers = [{"role": "layer", **vars(x)} for x in self.layers]
        normalizers = [
            {"role": "normalizer", "name": n.name, "kind": n.kind, "upper": n.proved, "on_floor": n.on_floor}
            for n in self.normalizers
        ]
        return frame([*layers, *normalizers])

    def plot(self, kind: str = "depth", ax: Any = None) -> Any:
        """Draw one view with matplotlib and return the figure; see :func:`normscope.report.plot.plot`."""
        return late("normscope.report.plot", "plot")(self, kind, ax)
