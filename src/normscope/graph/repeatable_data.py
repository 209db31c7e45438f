"""Data that can be read repeatedly: iterators from their beginning, loaders without advancing their generators."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

#: Samples that are kept for a second pass.
KEPT = 64


class RepeatableIterator:
    """An iterator of batches whose beginning is kept: every pass starts with it and continues where the last one ended.

    A first full pass sees all of the data; later ones see its first :data:`KEPT` samples.

    >>> data = RepeatableIterator(iter([[1.0], [2.0]]))
    >>> next(iter(data)), list(data), list(data)
    ([1.0], [[1.0], [2.0]], [[1.0], [2.0]])
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self._kept, self._samples = batches, list[Any](), 0

    def __iter__(self) -> Iterator[Any]:
        yield from tuple(self._kept)
        for batch in self._batches:
            if self._samples < KEPT:
                self._kept.append(batch)
                self._samples += _length(batch)
            yield batch


class RepeatableLoader:
    """A loader whose own random generators are restored after every pass: all passes are the same.

    >>> loader = DataLoader([1, 2, 3], shuffle=True, generator=torch.Generator().manual_seed(0))
    >>> data = RepeatableLoader(loader)
    >>> [int(x) for x in data] == [int(x) for x in data]
    True
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        before = [(generator, generator.get_state()) for generator in own_generators(self._loader)]
        try:
            yield from self._loader
        finally:
            for generator, state in before:
                generator.set_state(state)


def own_generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Return the random generators the user gave to a loader or to its samplers."""
    samplers = [loader.batch_sampler, loader.sampler]
    samplers += [getattr(sampler, "sampler", None) for sampler in samplers]
    found = [getattr(owner, "generator", None) for owner in (loader, *samplers)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def repeatable(data: Any) -> Any:
    """Return data as it is, or wrapped if reading it once changes what a second pass reads.

    This concerns iterators, which end with their first pass, and loaders with a random generator of the user's.
    """
    if isinstance(data, DataLoader):
        return RepeatableLoader(data) if own_generators(data) else data
    return RepeatableIterator(data) if isinstance(data, Iterator) else data


def _length(batch: Any) -> int:
    """Return the number of samples of a batch."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, tuple | list) and batch:
        return _length(batch[0])
    shape: Sequence[int] = getattr(batch, "shape", ())
    return int(shape[0]) if shape else 1
