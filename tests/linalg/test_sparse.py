"""The sparse matrix of a convolution against the layer it describes."""

from __future__ import annotations

import itertools

import pytest
import torch

from normscope.linalg.convolution_geometry import convolution_axes, padded_map
from normscope.linalg.sparse import convolution_matrix, sparse_gram


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_the_matrix_acts_like_the_layer(mode: str) -> None:
    """For every stride, padding and dilation, on one to three axes."""
    generator = torch.Generator().manual_seed(0)
    for stride, padding, dilation, rank in itertools.product([1, 2], [0, 1, 2], [1, 2], [1, 2, 3]):
        size, kernel = [6, 5, 5][:rank], [3, 2, 2][:rank]
        weight = torch.randn(2, 3, *kernel, generator=generator, dtype=torch.float64)
        axes = convolution_axes(size, kernel, [stride] * rank, [padding] * rank, [dilation] * rank)
        x = torch.randn(3, *size, generator=generator, dtype=torch.float64)
        y = torch.as_tensor(convolution_matrix(weight, axes, mode) @ x.flatten().numpy())
        torch.testing.assert_close(y, padded_map(weight, axes, 1, mode).apply(x).flatten())


@pytest.mark.parametrize("shape", [(2, 5), (5, 2)])
def test_the_gram_is_that_of_the_smaller_side(shape: tuple[int, int]) -> None:
    """Tall or wide, it is the smaller of A^T A and A A^T."""
    weight = torch.randn(*shape, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    A = convolution_matrix(weight, convolution_axes([6], [3], [1], [1], [1]))
    dense = torch.as_tensor(A.toarray())
    gram = sparse_gram(A)
    assert gram.shape[0] == min(dense.shape)
    expected = dense.mT @ dense if dense.shape[1] <= dense.shape[0] else dense @ dense.mT
    torch.testing.assert_close(gram, expected)
