"""Room for large tensors: an ordinary tensor, whatever the system says to large pages."""

from __future__ import annotations

import mmap

import pytest
import torch

from normscope.core import large_tensor
from normscope.core.large_tensor import empty


@pytest.mark.parametrize("shape", [(2, 3), (0, 5), (3, 2**21)])
def test_it_can_be_written_and_outlives_what_made_it(shape: tuple[int, ...]) -> None:
    found, other = empty(*shape), empty(*shape)
    found.copy_(torch.arange(found.numel(), dtype=torch.float64).view(shape))
    other.fill_(-1.0)
    assert found.shape == shape
    assert found.dtype == torch.float64
    assert found.is_contiguous()
    assert float(found.sum()) == found.numel() * (found.numel() - 1) / 2
    view = found.flatten()[-1:]
    del found, other
    assert view.tolist() == [len(torch.empty(shape).flatten()) - 1.0][: len(view)]


def test_a_system_without_large_pages_or_memory_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tensor, "LARGE", 1)

    def refused(*given: object, **settings: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    assert empty(4, 4).shape == (4, 4)
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert empty(4, 4).shape == (4, 4)
