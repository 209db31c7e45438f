"""Convolutions by products on shifted copies are those of torch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from normscope.operators import shifted_products
from normscope.operators.shifted_products import convolved, is_faster


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("block", [1, 300, 2**16])
def test_it_is_the_convolution_of_torch(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifted_products, "BLOCK", block)
    monkeypatch.setattr(shifted_products, "WASTE", 10.0)
    taken = 0
    cases = itertools.product([(1, 1), (3, 2), (4, 3)], [(1, 1), (2, 1), (3, 2)], [0, 1, 2], [1, 2])
    for kernel, stride, pad, dilation in cases:
        z, w = _normal(11, 3, 7, 6), _normal(2, 3, *kernel, seed=1)
        pads = ((pad, 1), (0, pad))
        wide = torch.nn.functional.pad(z, (0, pad, pad, 1))
        expected = torch.nn.functional.conv2d(wide, w, stride=stride, dilation=dilation)
        found = convolved(z, w, stride, pads, (dilation, dilation))
        if found is not None:
            taken += 1
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert taken > 40


def test_few_images_and_other_numbers_are_left_to_torch() -> None:
    w = _normal(2, 1, 3, 3)
    assert convolved(_normal(7, 1, 5, 5), w) is None
    assert convolved(_normal(9, 1, 5, 5).float(), w.float()) is None
    assert not is_faster(100, (5, 5), (9, 9), (1, 1), ((0, 0), (0, 0)), (1, 1))
    assert not is_faster(100, (5,), (3,), (1,), ((0, 0),), (1,))
