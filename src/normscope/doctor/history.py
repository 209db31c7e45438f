"""What a training run recorded, as the rules read it: numbers by name, step by step."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Track:
    """One number of a layer over time."""

    place: str
    steps: Sequence[int]
    values: Sequence[float]

    @property
    def last(self) -> float:
        """Return the last number."""
        return self.values[-1]

    def since(self, limit: float) -> int | None:
        """Return the step since which every number is at least a limit; nothing if the last one is not.

        >>> Track("a", (0, 10, 20), (5.0, 1.0, 7.0)).since(2.0)
        20
        """
        backwards = zip(reversed(self.steps), reversed(self.values), strict=True)
        return min((step for step, _ in itertools.takewhile(lambda one: one[1] >= limit, backwards)), default=None)


@dataclass(frozen=True)
class History:
    """A run so far."""

    #: steps and values, by the name of the metric
    series: Mapping[str, tuple[Sequence[int], Sequence[float]]] = field(default_factory=dict)
    samples: int = 0  #: how many samples the probe holds, 0 if unknown

    def tracks(self, group: str) -> Iterator[Track]:
        """Yield the numbers of one group, such as ``drift``, by layer.

        >>> [t.place for t in History({"drift/bn": ([1], [0.5])}).tracks("drift")]
        ['bn']
        """
        start = f"{group}/"
        for name, (steps, values) in self.series.items():
            if name.startswith(start) and len(steps):
                yield Track(name.removeprefix(start), steps, values)

    def first_broken(self, group: str) -> Track | None:
        """Return the first number of a group that is NaN or infinite, as a track of that one number."""
        numbers = ((t.place, *pair) for t in self.tracks(group) for pair in zip(t.steps, t.values, strict=True))
        broken = [Track(place, (step,), (value,)) for place, step, value in numbers if not math.isfinite(value)]
        return min(broken, key=lambda track: track.steps[0], default=None)
