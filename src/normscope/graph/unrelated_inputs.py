"""Inputs unlike an example, on which a captured graph must do what its model does."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

#: Factors by which the example is stretched.
STRETCHES = (-1.0, 1e-3, 8.0, 50.0, -1e3, 1e5)
#: Constants all entries are set to, in units of the largest entry of the example.
LEVELS = (0.0, 1.0, -3.0)
#: Amounts by which one entry is raised, in the same units.
SPIKES = (2.0, -30.0, 1e3)


def unrelated(example: Sequence[Tensor], seed: int = 0) -> Iterator[list[Tensor]]:
    """Yield batches of inputs unlike the example: other scales, signs, orders, single spikes, constants, noise.

    Each sample of a batch is one probe, and there are as few batches as that allows. Integers (token
    ids, masks) beside floating inputs are only put into another order; where all inputs are integers, two other orders,
    the reverse, and one of them repeated are all there is to try.

    Args:
        example: one tensor per input, batched along axis 0.
        seed: the seed of the noise, the orders and the places of the spikes.

    >>> found = list(unrelated([torch.tensor([[1.0, 2.0]])]))
    >>> len(found), found[0][0].tolist()
    (17, [[-1.0, -2.0]])
    >>> [batch[0].tolist() for batch in unrelated([torch.tensor([[1, 2]])])][2:]
    [[[2, 1]], [[1, 1]]]
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = {t.shape[0] for t in example if t.ndim}
    size = sizes.pop() if len(sizes) == 1 else 0
    kinds = _kinds(example)
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


def number_of_probes(example: Sequence[Tensor]) -> int:
    """Return how many inputs unlike an example there are.

    >>> number_of_probes([torch.ones(1, 2)]), number_of_probes([torch.ones(1, 2).long()])
    (17, 4)
    """
    return len(_kinds(example))


def _kinds(example: Sequence[Tensor]) -> list[tuple[str, float]]:
    """Return the changes to make, each with its amount."""
    amounts = _AMOUNTS if any(t.is_floating_point() for t in example) else _INTEGER_AMOUNTS
    return [(change, amount) for change, several in amounts.items() for amount in several]


def _spike(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return the example with one entry raised."""
    flat = x.flatten().clone()
    place = int(torch.randint(flat.numel(), (), generator=generator))
    flat[place] += amount * flat.abs().max()
    return flat.reshape(x.shape)


def _noise(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Return noise about as large as the example."""
    drawn = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    return (drawn * amount * float(x.abs().max())).to(x.dtype)


#: The changes of one input, by name.
_CHANGES: dict[str, Callable[[Tensor, float, torch.Generator], Tensor]] = {
    "stretched": lambda x, amount, generator: x * amount,
    "constant": lambda x, amount, generator: torch.full_like(x, amount * float(x.abs().max())),
    "spike": _spike,
    "spike alone": lambda x, amount, generator: _spike(x, amount, generator) - x,
    "permuted": lambda x, amount, generator: x.flatten()[
        torch.randperm(x.numel(), generator=generator).to(x.device)
    ].reshape(x.shape),
    "noise": _noise,
    "reversed": lambda x, amount, generator: x.flatten().flip(0).reshape(x.shape),
    "repeated": lambda x, amount, generator: x.flatten()[:1].expand(x.numel()).reshape(x.shape),
}
_AMOUNTS = {
    "stretched": STRETCHES,
    "constant": LEVELS,
    "spike": SPIKES,
    "spike alone": SPIKES[1:],
    "permuted": (1.0,),
    "noise": (1.0, 20.0),
}
_INTEGER_AMOUNTS = {"permuted": (1.0, 1.0), "reversed": (1.0,), "repeated": (1.0,)}


def _changed(x: Tensor, change: str, amount: float, generator: torch.Generator) -> Tensor:
    """Return one input changed; integers and truth values are only put into another order, or repeated."""
    if x.numel() == 0:
        return x
    fits = x.is_floating_point() or change in ("reversed", "repeated")
    return _CHANGES[change if fits else "permuted"](x.detach(), amount, generator)
