"""Data that can be read only once, such as a generator of batches, made readable from the beginning again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Samples that are kept for a second look.
KEPT = 64


class Again:
    """An iterator of batches whose beginning is kept: every pass starts with it and goes on where the last one ended.

    A first full pass sees all of the data; later ones see its first :data:`KEPT` samples.

    >>> data = Again(iter([[1.0], [2.0]]))
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


def repeatable(data: Any) -> Any:
    """Return data as it is, or wrapped if it is an iterator that ends with its first pass."""
    return Again(data) if isinstance(data, Iterator) else data


def _length(batch: Any) -> int:
    """Return the number of samples of a batch."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, tuple | list) and batch:
        return _length(batch[0])
    shape: Sequence[int] = getattr(batch, "shape", ())
    return int(shape[0]) if shape else 1
