"""The metrics of a training run, as rules read them."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MetricHistory:
    """One metric of a layer over time."""

    place: str
    steps: Sequence[int]
    values: Sequence[float]

    @property
    def points(self) -> list[tuple[int, float]]:
        """Return the steps with their values."""
        return list(zip(self.steps, self.values, strict=True))

    @property
    def last(self) -> float:
        """Return the last value."""
        return self.values[-1]

    def since(self, limit: float) -> int | None:
        """Return the step since which every value is at least a limit, or ``None`` if the last one is not.

        >>> MetricHistory("a", (0, 10, 20), (5.0, 1.0, 7.0)).since(2.0)
        20
        """
        backwards = itertools.takewhile(lambda point: point[1] >= limit, reversed(self.points))
        return min((step for step, _ in backwards), default=None)


@dataclass(frozen=True)
class RunHistory:
    """The metrics of a run so far."""

    #: steps and values, by the name of the metric
    series: Mapping[str, tuple[Sequence[int], Sequence[float]]] = field(default_factory=dict)
    samples: int = 0  #: number of samples in the probe, 0 if unknown

    def metrics(self, group: str) -> Iterator[MetricHistory]:
        """Yield the metrics of one group, such as ``drift``, layer by layer.

        >>> [t.place for t in RunHistory({"drift/bn": ([1], [0.5])}).metrics("drift")]
        ['bn']
        """
        start = f"{group}/"
        for name, (steps, values) in self.series.items():
            if name.startswith(start) and len(steps):
                yield MetricHistory(name.removeprefix(start), steps, values)

    def first_non_finite(self, group: str) -> MetricHistory | None:
        """Return the first value of a group that is NaN or infinite, as a history of that one value."""
        numbers = ((metric.place, *point) for metric in self.metrics(group) for point in metric.points)
        broken = [MetricHistory(place, (step,), (value,)) for place, step, value in numbers if not math.isfinite(value)]
        return min(broken, key=lambda metric: metric.steps[0], default=None)
