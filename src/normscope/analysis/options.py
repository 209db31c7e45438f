"""How an analysis works."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    mode: str = "running"
    points: int | None = None
    ascent: int | None = None
    tolerance: float | None = None
    delta: float = 1e-9
    without_normalizers: bool = True
    stacked: bool | None = None
    seed: int = 0
