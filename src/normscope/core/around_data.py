"""Constants around the data: on balls around data points, and what follows for most inputs like them."""

from __future__ import annotations

from dataclasses import dataclass, field

from normscope.core.value import Value

#: What a statement about most inputs rests on.
ASSUMPTIONS = (
    "the points are independent draws from the distribution of the inputs",
    "the points were used neither for training nor to choose the network",
)


@dataclass(frozen=True)
class Neighbourhood:
    """The constants on balls of one radius around the points."""

    _derived = ("median", "largest", "unbounded")

    radius: float  #: of the balls, in the l2 norm of one input; zero means the points themselves
    #: the certified constant at each point, in the order the points were taken; infinite where there is none
    constants: tuple[float, ...]
    bound: Value | None  #: an upper bound for a share of all inputs, with a confidence; ``None`` with too few points
    every_point: Value | None = (
        None  #: an upper bound on the constant of every point; ``None`` if rounding is not enclosed
    )
    #: CPU time for each point, on average; not stored, so that a seed gives the same file
    seconds: float = field(default=0.0, compare=False)

    @property
    def unbounded(self) -> int:
        """Return the number of points without a constant."""
        return sum(c == float("inf") for c in self.constants)

    @property
    def median(self) -> float:
        """Return the constant that half of the points stay below."""
        return sorted(self.constants)[len(self.constants) // 2] if self.constants else float("inf")

    @property
    def largest(self) -> float:
        """Return the largest constant of all points."""
        return max(self.constants, default=float("inf"))


@dataclass(frozen=True)
class Around:
    """What holds around the data."""

    share: float  #: the share of the inputs that ``bound`` is about
    confidence: float  #: the confidence with which it holds
    points: int  #: how many points were examined
    needed: int  #: the fewest points with which a statement about this share with this confidence is possible
    neighbourhoods: tuple[Neighbourhood, ...] = ()  #: by radius, the smallest first
    #: the distance from each point within which the decision is proved to stay the same; empty if the outputs are
    #: not a decision
    radii: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()  #: what a reader must know

    def best(self) -> Neighbourhood | None:
        """Return the neighbourhood of the largest radius with a finite bound for the share."""
        return self._largest("bound")

    def best_of_points(self) -> Neighbourhood | None:
        """Return the neighbourhood of the largest radius with a finite bound for every point."""
        return self._largest("every_point")

    def _largest(self, name: str) -> Neighbourhood | None:
        bounds = [(n, getattr(n, name)) for n in self.neighbourhoods]
        return next((n for n, bound in reversed(bounds) if bound is not None and bound.log < float("inf")), None)

    def decided(self, distance: float) -> float:
        """Return the share of the points whose decision is proved to stay the same within a distance.

        >>> Around(0.95, 0.99, 4, 90, radii=(0.0, 0.1, 0.2, 0.3)).decided(0.15)
        0.5
        """
        return sum(r >= distance for r in self.radii) / len(self.radii) if self.radii else 0.0
