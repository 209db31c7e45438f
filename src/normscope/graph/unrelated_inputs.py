"""Inputs unlike an example, on which a captured graph must do what its model does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

#: Factors by which the example is stretched.
STRETCHES = (-1.0, 1e-3, 8.0, 50.0, -1e3, 1e5)
#: Constants all entries are set to, in units of the largest entry of the example.
LEVELS = (0.0, 1.0, -3.0)
#: What one entry is raised by, in the same units.
SPIKES = (2.0, -30.0, 1e3)


def unrelated(example: Sequence[Tensor], seed: int = 0) -> Iterator[list[Tensor]]:
    """Yield batches of inputs unlike the example: other scales, signs, orders, single spikes, constants, noise.

    A batch of several samples holds a probe in each; together they take as few batches as that allows. Integers (token
    ids, masks) are only put into another order.

    Args:
        example: one tensor per input, batched along axis 0.
        seed: of the noise, the orders and the places of the spikes.

    >>> found = list(unrelated([torch.tensor([[1.0, 2.0]])]))
    >>> len(found), found[0][0].tolist()
    (17, [[-1.0, -2.0]])
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = {t.shape[0] for t in example if t.ndim}
    size = sizes.pop() if len(sizes) == 1 else 0
    kinds = [(change, amount) for change, amounts in _CHANGES for amount in amounts]
    if size < 2:
        for change, amount in kinds:
            yield [_changed(t, change, amount, generator) for t in example]
        return
    for start in range(0, len(kinds), size):
        chosen = list(itertools.islice(itertools.cycle(kinds), start, start + size))
        yield [
            torch.stack([_changed(row, *kind, generator) for row, kind in zip(t, chosen, strict=True)]) if t.ndim else t
            for t in example
        ]


def _stretched(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return the example times a factor."""
    return x * amount


def _level(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return a constant."""
    return torch.full_like(x, amount * float(x.abs().max()))


def _spike(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return the example with one entry raised."""
    flat = x.flatten().clone()
    place = int(torch.randint(flat.numel(), (), generator=generator))
    flat[place] += amount * flat.abs().max()
    return flat.reshape(x.shape)


def _alone(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return zeros but for one entry."""
    return _spike(x, amount, generator) - x


def _permuted(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return the entries in another order."""
    return x.flatten()[torch.randperm(x.numel(), generator=generator).to(x.device)].reshape(x.shape)


def _noise(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return noise about as large as the example."""
    drawn = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return (drawn * amount * float(x.abs().max())).to(x.dtype)


_CHANGES = (
    (_stretched, STRETCHES),
    (_level, LEVELS),
    (_spike, SPIKES),
    (_alone, SPIKES[1:]),
    (_permuted, (1.0,)),
    (_noise, (1.0, 20.0)),
)


def _changed(x: Tensor, change: object, amount: float, generator: torch.Generator) -> Tensor:
    """Return one input changed; integers and truth values are only put into another order."""
    if x.numel() == 0:
        return x
    return (change if x.is_floating_point() else _permuted)(x.detach(), amount, generator)  # type: ignore[operator]
