"""Batches: exact sizes, limits, labels, and inputs that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope.core.errors import InputError, NonFiniteError
from normscope.zoo.data.normalization import Normalization
from normscope.zoo.data.source import Batch, Data, rebatched

RAW = Normalization("raw")


@dataclass(frozen=True)
class Counted:
    """Vectors whose entries are their own numbers, in blocks of given sizes."""

    sizes: tuple[int, ...]
    labelled: bool = True
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (2,)

    @property
    def count(self) -> int:
        """Number of examples."""
        return sum(self.sizes)

    def blocks(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield blocks of the given sizes, whatever is asked."""
        start = 0
        for length in self.sizes:
            numbers = torch.arange(start, start + length)
            yield numbers[:, None].expand(-1, 2).to(self.dtype), numbers if self.labelled else None
            start += length


@given(
    sizes=st.lists(st.integers(0, 7), max_size=6).map(tuple), size=st.integers(1, 9), limit=st.integers(0, 40),
    labelled=st.booleans(),
)  # fmt: skip
def test_rebatching_keeps_order_and_sizes(sizes: tuple[int, ...], size: int, limit: int, labelled: bool) -> None:
    """All blocks but the last are full, and together they are the first examples."""
    blocks = list(rebatched(Counted(sizes, labelled).blocks(size), size, limit))
    lengths = [len(x) for x, _ in blocks]
    expected = min(sum(sizes), limit)
    assert all(length == size for length in lengths[:-1])
    assert all(0 < length <= size for length in lengths)
    assert [int(row[0]) for x, _ in blocks for row in x] == list(range(expected))
    if labelled:
        assert [int(mark) for _, y in blocks for mark in y] == list(range(expected))
    else:
        assert all(y is None for _, y in blocks)


def test_data_can_be_iterated_again() -> None:
    """Its length counts examples; inputs come alone or with labels; everything at once if wanted."""
    data = Data("counted", Counted((5, 5)), RAW, batch_size=4, limit=9)
    assert (len(data), data.shape, data.labelled) == (9, (2,), True)
    for _ in range(2):
        assert [len(batch.inputs) for batch in data] == [4, 4, 1]
    assert [len(x) for x in data.inputs()] == [4, 4, 1]
    inputs, labels = data.tensors()
    assert inputs[:, 0].tolist() == labels.tolist() == list(range(9))
    assert isinstance(next(iter(data)), Batch)
    assert Data("none", Counted((3,), labelled=False), RAW).tensors().labels is None


def test_reading_stops_at_the_limit() -> None:
    """No block after the last one needed is asked for."""
    asked = []

    class Watched(Counted):
        def blocks(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
            for block in super().blocks(size):
                asked.append(len(block[0]))
                yield block

    list(Data("watched", Watched((4, 4, 4)), RAW, batch_size=4, limit=5))
    assert asked == [4, 4]


def test_token_ids_stay_integers() -> None:
    """Bytes are pixels, wider integers are not."""
    assert next(iter(Data("ids", Counted((3,), dtype=torch.int32), RAW))).inputs.dtype == torch.int64
    assert next(iter(Data("bytes", Counted((3,), dtype=torch.uint8), RAW))).inputs.dtype == torch.float32


def test_examples_that_are_no_numbers_are_named() -> None:
    """By their place in the whole set."""

    class Broken(Counted):
        def blocks(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
            for x, y in super().blocks(size):
                yield torch.where(x == 6, torch.nan, x), y

    with pytest.raises(NonFiniteError, match="Example 6 of broken contains NaN or infinity"):
        list(Data("broken", Broken((5, 5)), RAW, batch_size=4))


def test_senseless_settings_are_refused() -> None:
    """Batches and limits are at least one."""
    with pytest.raises(InputError, match="Expected batch_size >= 1, got 0"):
        Data("x", Counted((1,)), RAW, batch_size=0)
    with pytest.raises(InputError, match="Expected limit >= 1, got 0"):
        Data("x", Counted((1,)), RAW, limit=0)
