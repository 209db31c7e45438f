"""Settings of an analysis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from normscope.core.errors import InputError
from normscope.core.numbers import check_count, check_fraction
from normscope.lipschitz.chains.join import SECONDS

#: Modes of BatchNorm.
MODES = ("running", "batch", "frozen-batch")


@dataclass(frozen=True)
class Options:
    """Settings of ``analyze``.

    Attributes:
        mode: what BatchNorm does: ``running``, ``batch`` (the stacked batch is one input) or ``frozen-batch`` (the
            statistics of the first batch, kept fixed).
        points: number of data points at which the Jacobian is computed; ``None`` chooses by the size of the network.
        ascent: steps of the search for worst-case inputs; ``None`` chooses by the size of the network.
        tolerance: relative accuracy of each norm; ``None`` chooses by the size of the network.
        delta: failure probability of each probabilistic bound.
        without_normalizers: also bound the network with its normalizers removed.
        stacked: also bound the first batch as one stacked input with batch statistics; ``None``: if it is cheap.
        time: approximate seconds of search for certificates of whole parts of the network; 0 makes none. If it is
            given, it also limits how many points of the data are examined; with 0 none are, unless a radius is given.
        seed: random seed.
        radius: radius of the balls around data points on which the constant is certified, one or several (l2 norm);
            ``None`` chooses by the spread of the data, and leaves them out where they are expensive.
        share: share of inputs like the data that a statement around the data covers.
        confidence: confidence of that statement.
        sketch: around points, use random combinations of the tangents of deep piecewise linear networks: faster,
            especially for small radii, but each constant fails with a probability below 1e-9.

    Raises:
        InputError: if a number is out of range.
    """

    mode: str = "running"
    points: int | None = None
    ascent: int | None = None
    tolerance: float | None = None
    delta: float = 1e-9
    without_normalizers: bool = True
    stacked: bool | None = None
    time: float = SECONDS
    seed: int = 0
    radius: float | Sequence[float] | None = None
    share: float = 0.95
    confidence: float = 0.99
    sketch: bool = False

    def __post_init__(self) -> None:
        check_fraction(self.delta, "delta, a probability,")
        if self.tolerance is not None:
            check_fraction(self.tolerance, "tolerance, a relative width,")
        if self.points is not None:
            check_count(self.points, "points", least=1)
        if self.ascent is not None:
            check_count(self.ascent, "ascent", least=0)
        if not isinstance(self.time, int | float) or not 0.0 <= self.time < math.inf:
            raise InputError(f"Expected time, in seconds, to be at least 0, got {self.time!r}.")
        check_count(self.seed, "seed", least=0)
        check_fraction(self.share, "share")
        check_fraction(self.confidence, "confidence")
        for radius in self.radii:
            if not (isinstance(radius, int | float) and 0 <= radius < math.inf):
                raise InputError(f"Expected a finite radius >= 0, got {radius!r}.")
        if self.mode not in MODES:
            raise InputError(
                f"Expected mode (of BatchNorm) to be one of {', '.join(map(repr, MODES))}, got {self.mode!r}."
            )

    @property
    def radii(self) -> tuple[float, ...]:
        """Return the given radii as a tuple, empty if there are none."""
        if self.radius is None:
            return ()
        return (float(self.radius),) if isinstance(self.radius, int | float) else tuple(self.radius)

    @classmethod
    def of(cls, options: Options | None, settings: Mapping[str, Any]) -> Options:
        """Return options, the defaults if none are given, with some fields replaced.

        Raises:
            InputError: if there is no such field, or a number is out of range.

        >>> options = Options.of(Options(seed=3), {"points": 2})
        >>> options.seed, options.points
        (3, 2)
        """
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                raise InputError(f"Unknown setting {name!r}. Known settings: {', '.join(names)}.")
        return replace(options or cls(), **settings)
