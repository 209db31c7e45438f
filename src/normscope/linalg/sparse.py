"""Convolutions as sparse matrices: with few channels the cheapest way to the Gram matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normscope.linalg.convolution_geometry import Axis, extension_sources

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def convolution_matrix(weight: Tensor, axes: Sequence[Axis], padding_mode: str = "zeros") -> csr_array:
    r"""Return the matrix :math:`A` of a convolution with one group, rows ``(Cout, *n_out)`` and columns ``(Cin, *n)``.

    :math:`A_{(o, l), (c, j)} = \sum_k w_{o c k} [j = \text{source}(s l - p + d k)]`, where the source of a padded
    position is what the padding mode copies there, or nothing for zeros.

    >>> convolution_matrix(torch.tensor([[[1.0, 2.0, 3.0]]]), [Axis(3, 3, 3, 1, 1, 1)]).toarray().tolist()
    [[2.0, 3.0, 0.0], [1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]
    """
    kernel = weight.detach().to("cpu", torch.float64).numpy().reshape(*weight.shape[:2], -1)
    outputs, inputs = [a.output_size for a in axes], [a.size for a in axes]
    positions, sources, taps = convolution_reads(axes, padding_mode)
    channels_out, channels_in = kernel.shape[:2]
    entries = kernel[:, :, taps]
    rows = np.arange(channels_out)[:, None, None] * math.prod(outputs) + positions
    columns = np.arange(channels_in)[None, :, None] * math.prod(inputs) + sources
    rows, columns = np.broadcast_arrays(rows, columns)
    shape = (channels_out * math.prod(outputs), channels_in * math.prod(inputs))
    from scipy.sparse import csr_array  # slow to load, and networks without convolutions do without

    return csr_array((entries.ravel(), (rows.ravel(), columns.ravel())), shape=shape)


def sparse_gram(matrix: csr_array) -> Tensor:
    r"""Return :math:`A^T A` or :math:`A A^T`, whichever is smaller, as a dense tensor.

    >>> from scipy.sparse import csr_array
    >>> sparse_gram(csr_array([[3.0, 4.0]])).tolist()
    [[25.0]]
    """
    rows, columns = matrix.shape
    product = matrix.T @ matrix if columns <= rows else matrix @ matrix.T
    return torch.as_tensor(product.toarray())


def convolution_reads(axes: Sequence[Axis], padding_mode: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all triples (output, input, tap) such that the output reads the input with the tap, as flat indices."""
    outputs = inputs = taps = np.zeros((1, 1), dtype=np.int64)
    for axis in axes:
        output, source, tap = axis_reads(axis, padding_mode)
        outputs = (outputs * axis.output_size + output).reshape(-1, 1)
        inputs = (inputs * axis.size + source).reshape(-1, 1)
        taps = (taps * axis.kernel + tap).reshape(-1, 1)
    return outputs[:, 0], inputs[:, 0], taps[:, 0]


def axis_reads(axis: Axis, padding_mode: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same triples for one axis."""
    if padding_mode == "zeros":
        source = {i: i for i in range(axis.size)}
    else:
        source = {i - axis.padding: j for i, j in enumerate(extension_sources(axis, padding_mode))}
    found = [
        (output, source[position], tap)
        for output, tap in itertools.product(range(axis.output_size), range(axis.kernel))
        if (position := axis.stride * output - axis.padding + axis.dilation * tap) in source
    ]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
