"""What the benchmark asks of a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from benchmarks.layers import Layer


@dataclass(frozen=True)
class Stage:
    """One value a peer can give.

    Attributes:
        effort: how much was asked of it, e.g. a number of iterations.
        run: the computation; for a cumulative peer, what is added to the stage before.
    """

    effort: str
    run: Callable[[], float]


class Peer(Protocol):
    """One way to get the norm of a convolution.

    Attributes:
        name: a short name, for the head of a column.
        origin: the package and what of it, or ``method of X, our code``.
        distribution: the package it needs, or None.
        claim: what the value is for a zero-padded convolution: ``upper``, ``lower`` or ``neither``.
        cumulative: whether a stage goes on where the one before it ended, so that times add up.
        usual: the effort that is usual, where there are several.
    """

    name: ClassVar[str]
    origin: ClassVar[str]
    distribution: ClassVar[str | None]
    claim: ClassVar[str]
    cumulative: ClassVar[bool]
    usual: ClassVar[str]

    def refuses(self, layer: Layer) -> str:
        """Return why the method says nothing about this layer, or an empty text."""
        ...

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield stages of growing effort."""
        ...
