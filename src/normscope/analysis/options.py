"""How an analysis works."""

from __future__ import annotations

from dataclasses import dataclass

from normscope.core.numbers import count, fraction


@dataclass(frozen=True)
class Options:
    """How ``analyze`` works.

    Attributes:
        mode: what BatchNorm does: ``running``, ``batch`` (the stacked batch is one input) or ``frozen-batch`` (the
            statistics of the first batch, held fixed).
        points: data points at which the Jacobian is measured; ``None`` chooses by the size of the network.
        ascent: steps of the search for bad inputs; ``None`` chooses by the size of the network.
        tolerance: relative width aimed at for each norm; ``None`` chooses by the size of the network.
        delta: failure probability of each probabilistic bound.
        without_normalizers: also bound the network with its normalizers removed.
        stacked: also bound the first batch as one stacked input with batch statistics; ``None``: if it is cheap.
        seed: of everything random.

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
    seed: int = 0

    def __post_init__(self) -> None:
        fraction(self.delta, "delta, a probability,")
        if self.tolerance is not None:
            fraction(self.tolerance, "tolerance, a relative width,")
        if self.points is not None:
            count(self.points, "points", least=1)
        if self.ascent is not None:
            count(self.ascent, "ascent", least=0)
        count(self.seed, "seed", least=0)
