"""Batches from records on disk: streamed, normalized, with their labels, a bounded number at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.zoo.data.normalization import Normalization

#: Raw examples and their labels.
Block = tuple[Tensor, Tensor | None]


class Batch(NamedTuple):
    """Inputs in the network's units, and int64 labels or whatever the file holds, or None."""

    inputs: Tensor
    labels: Tensor | None


class Records(Protocol):
    """Examples as stored: how many, of which shape, and a way to stream them from the start as often as wanted."""

    @property
    def count(self) -> int:
        """Number of examples."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield consecutive blocks of at most ``size`` examples."""


def rebatched(blocks: Iterator[Block], size: int, limit: int) -> Iterator[Block]:
    """Yield the first ``limit`` examples in blocks of exactly ``size``, the last perhaps smaller.

    >>> parts = iter([(torch.arange(3), None), (torch.arange(3, 5), None)])
    >>> [x.tolist() for x, _ in rebatched(parts, 2, 5)]
    [[0, 1], [2, 3], [4]]
    """
    x: Tensor | None = None
    y: Tensor | None = None
    left = limit
    for inputs, labels in blocks:
        taken = min(left, len(inputs))
        left -= taken
        x = inputs[:taken] if x is None else torch.cat([x, inputs[:taken]])
        if labels is not None:
            y = labels[:taken] if y is None else torch.cat([y, labels[:taken]])
        while len(x) >= size:
            yield x[:size], None if y is None else y[:size]
            x, y = x[size:], None if y is None else y[size:]
        if left == 0:
            break
    if x is not None and len(x):
        yield x, y


def is_scaled(dtype: torch.dtype) -> bool:
    """Tell whether stored numbers of this dtype are quantities, bytes being pixels; other integers are ids.

    >>> is_scaled(torch.uint8), is_scaled(torch.int64)
    (True, False)
    """
    return dtype.is_floating_point or dtype in (torch.uint8, torch.bool)


@dataclass(frozen=True)
class Data:
    """A data set that is iterated in batches, as often as wanted; only one batch is in memory."""

    name: str  #: how reports call it
    records: Records  #: the stored examples
    normalization: Normalization  #: from stored numbers to inputs
    batch_size: int = 128  #: examples of a batch
    limit: int | None = None  #: how many examples are used, from the first on; all if None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"Expected batch_size >= 1, got {self.batch_size}.")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"Expected limit >= 1, got {self.limit}.")

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.records.count if self.limit is None else min(self.limit, self.records.count)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.records.shape

    @property
    def labelled(self) -> bool:
        """Whether batches have labels."""
        return self.records.labelled

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches of inputs and labels; integers that are not pixels (token ids) stay integers."""
        start = 0
        for raw, labels in rebatched(self.records.blocks(self.batch_size), self.batch_size, len(self)):
            if is_scaled(raw.dtype):
                inputs = self.normalization(raw)
                finite = torch.isfinite(inputs).flatten(1).all(dim=1) if inputs.dim() > 1 else torch.isfinite(inputs)
                if not bool(finite.all()):
                    first = start + int((~finite).nonzero()[0])
                    raise NonFiniteError(f"Example {first} of {self.name} contains NaN or infinity.")
            else:
                inputs = raw.to(torch.int64)
            yield Batch(inputs, labels)
            start += len(inputs)

    def inputs(self) -> Iterator[Tensor]:
        """Yield the inputs of each batch, without labels."""
        for batch in self:
            yield batch.inputs

    def tensors(self) -> Batch:
        """Return all inputs and labels at once; for small data sets."""
        batches = list(self)
        labels = [batch.labels for batch in batches if batch.labels is not None]
        return Batch(torch.cat([batch.inputs for batch in batches]), torch.cat(labels) if labels else None)
