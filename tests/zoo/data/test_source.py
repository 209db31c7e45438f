"""Batches: exact sizes, limits, labels, and inputs that are no numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope.core.errors import InputError, NonFiniteError
from normscope.zoo.data.normalization import Normalization
from normscope.zoo.data.source import Batch, Data, Records

RAW = Normalization("raw")


def counted(count: int, *, labelled: bool = True, dtype: torch.dtype = torch.float32) -> Records:
    """Return vectors whose entries are their own numbers."""
    numbers = torch.arange(count)
    return Records(numbers[:, None].expand(-1, 2).to(dtype), numbers if labelled else None)


@given(count=st.integers(1, 40), size=st.integers(1, 9), limit=st.integers(1, 40), labelled=st.booleans())
def test_batches_keep_order_and_sizes(count: int, size: int, limit: int, labelled: bool) -> None:
    """All batches but the last are full, and together they are the first examples."""
    batches = list(Data("counted", counted(count, labelled=labelled), RAW, batch_size=size, limit=limit))
    lengths = [len(batch.inputs) for batch in batches]
    expected = min(count, limit)
    assert all(length == size for length in lengths[:-1])
    assert all(0 < length <= size for length in lengths)
    assert [int(row[0]) for batch in batches for row in batch.inputs] == list(range(expected))
    if labelled:
        assert [int(mark) for batch in batches for mark in batch.labels] == list(range(expected))
    else:
        assert all(batch.labels is None for batch in batches)


def test_data_can_be_iterated_again() -> None:
    """Its length counts examples; inputs come alone or with labels; everything at once if wanted."""
    data = Data("counted", counted(10), RAW, batch_size=4, limit=9)
    assert (len(data), data.shape, data.labelled) == (9, (2,), True)
    for _ in range(2):
        assert [len(batch.inputs) for batch in data] == [4, 4, 1]
    assert [len(x) for x in data.inputs()] == [4, 4, 1]
    inputs, labels = data.tensors()
    assert inputs[:, 0].tolist() == labels.tolist() == list(range(9))
    assert isinstance(next(iter(data)), Batch)
    assert Data("none", counted(3, labelled=False), RAW).tensors().labels is None


def test_token_ids_stay_integers() -> None:
    """Bytes are pixels, wider integers are not."""
    assert next(iter(Data("ids", counted(3, dtype=torch.int32), RAW))).inputs.dtype == torch.int64
    assert next(iter(Data("bytes", counted(3, dtype=torch.uint8), RAW))).inputs.dtype == torch.float32


def test_examples_that_are_no_numbers_are_named() -> None:
    """By their place in the whole set."""
    whole = counted(10).inputs
    broken = Records(torch.where(whole == 6, torch.nan, whole))
    with pytest.raises(NonFiniteError, match="Example 6 of broken contains NaN or infinity"):
        list(Data("broken", broken, RAW, batch_size=4))


def test_senseless_settings_are_refused() -> None:
    """Batches and limits are at least one."""
    with pytest.raises(InputError, match="Expected batch_size >= 1, got 0"):
        Data("x", counted(1), RAW, batch_size=0)
    with pytest.raises(InputError, match="Expected limit >= 1, got 0"):
        Data("x", counted(1), RAW, limit=0)
