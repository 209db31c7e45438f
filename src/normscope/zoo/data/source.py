"""Stored examples, and batches of them: normalized, with their labels, one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.zoo.data.normalization import Normalization


class Batch(NamedTuple):
    """Inputs in the network's units, and int64 labels or whatever the file holds, or None."""

    inputs: Tensor
    labels: Tensor | None


@dataclass(frozen=True)
class Records:
    """Examples as stored, in memory or mapped from a file; the first axis counts them."""

    inputs: Tensor | np.ndarray
    labels: Tensor | np.ndarray | None = None
    note: str = ""  #: why labels that the file holds are left out

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.inputs.shape[1:])

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        return self.labels is not None

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Return copies of some examples as stored, and of their labels.

        >>> Records(np.arange(5, dtype=">i4")).part(1, 3)
        (tensor([1, 2], dtype=torch.int32), None)
        """
        return copied(self.inputs[start:stop]), None if self.labels is None else copied(self.labels[start:stop])


def copied(part: Tensor | np.ndarray) -> Tensor:
    """Return a copy as a tensor, in the machine's byte order."""
    if isinstance(part, Tensor):
        return part.detach().clone()
    return torch.from_numpy(np.array(part, dtype=part.dtype.newbyteorder("="), order="C"))


def is_scaled(dtype: torch.dtype) -> bool:
    """Return whether stored numbers of this dtype are quantities, bytes being pixels; other integers are ids.

    >>> is_scaled(torch.uint8), is_scaled(torch.int64)
    (True, False)
    """
    return dtype.is_floating_point or dtype in (torch.uint8, torch.bool)


@dataclass(frozen=True)
class Data:
    """A data set that is iterated in batches, as often as wanted."""

    name: str  #: its name in reports
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
        for start in range(0, len(self), self.batch_size):
            raw, labels = self.records.part(start, min(start + self.batch_size, len(self)))
            if is_scaled(raw.dtype):
                inputs = self.normalization(raw)
                finite = torch.isfinite(inputs).flatten(1).all(dim=1) if inputs.dim() > 1 else torch.isfinite(inputs)
                if not bool(finite.all()):
                    first = start + int((~finite).nonzero()[0])
                    raise NonFiniteError(f"Example {first} of {self.name} contains NaN or infinity.")
            else:
                inputs = raw.to(torch.int64)
            yield Batch(inputs, labels)

    def inputs(self) -> Iterator[Tensor]:
        """Yield the inputs of each batch, without labels."""
        for batch in self:
            yield batch.inputs

    def tensors(self) -> Batch:
        """Return all inputs and labels at once; for small data sets."""
        batches = list(self)
        labels = [batch.labels for batch in batches if batch.labels is not None]
        return Batch(torch.cat([batch.inputs for batch in batches]), torch.cat(labels) if labels else None)
