"""Norms of zero-padded convolutions on small inputs, certified by a block tridiagonal Cholesky factorisation."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_factor, cholesky_margin
from normscope.linalg.convolution_geometry import Axis
from normscope.linalg.sparse import convolution_reads


def coupling(axes: Sequence[Axis], *, of_outputs: bool) -> tuple[list[int], list[int]]:
    """Return the spatial size of one side of a convolution, and the bandwidth of its Gram matrix, per axis.

    Two inputs are read by a common output only if they are at most ``d (k - 1)`` apart; two outputs read a common input
    only if they are at most ``d (k - 1) / s`` apart.

    >>> coupling([Axis(8, 4, 3, 2, 1, 1)], of_outputs=True)
    ([4], [1])
    """
    if of_outputs:
        return [a.output_size for a in axes], [min(a.reach // a.stride, a.output_size - 1) for a in axes]
    return [a.size for a in axes], [min(a.reach, a.size - 1) for a in axes]


def slow_axis(sizes: Sequence[int], reach: Sequence[int]) -> int:
    """Return the axis to cut into slabs: the one that makes the slabs smallest.

    >>> slow_axis([4, 16], [2, 2])
    1
    """
    return min(range(len(sizes)), key=lambda a: max(1, reach[a]) / sizes[a])


def slab_shape(sizes: Sequence[int], reach: Sequence[int], channels: int) -> tuple[int, int]:
    """Return the number of slabs and the size of each; only neighbouring slabs are coupled.

    >>> slab_shape([4, 16], [2, 2], 3)
    (8, 24)
    """
    axis = slow_axis(sizes, reach)
    thickness = max(1, reach[axis])
    return -(-sizes[axis] // thickness), thickness * channels * math.prod(sizes) // sizes[axis]


def banded_cost(axes: Sequence[Axis], channels: int, *, of_outputs: bool) -> float:
    """Return the multiplications of the factorisation, ``(1/6 + 1/2 + 1/2) B^3`` for each slab of B entries."""
    sizes, reach = coupling(axes, of_outputs=of_outputs)
    count, size = slab_shape(sizes, reach, channels)
    return count * float(size) ** 3 * 7.0 / 6.0


def slab_gram(weight: Tensor, axes: Sequence[Axis], *, of_outputs: bool) -> tuple[Tensor, Tensor]:
    r"""Return the blocks of ``A^T A`` (or ``A A^T``, on the outputs) of a zero-padded convolution, one per slab.

    Taps k and k' of one output l read the positions p and q; they add :math:`W_k^T W_{k'}` to the block (p, q). On the
    outputs, taps that read one position from outputs l and l' add :math:`W_k W_{k'}^T` to the block (l, l').

    Returns:
        The blocks on the diagonal (slabs, B, B) and below it (slabs - 1, B, B); the last slab is padded with zeros.
    """
    sizes, reach = coupling(axes, of_outputs=of_outputs)
    channels = weight.shape[0 if of_outputs else 1]
    count, size = slab_shape(sizes, reach, channels)
    per_slab = size // channels
    blocks = [torch.zeros(n, per_slab, channels, per_slab, channels, dtype=torch.float64) for n in (count, count - 1)]
    views = [
        b.permute(0, 1, 3, 2, 4) for b in blocks
    ]  # (slab, row position, column position, row channel, column channel)
    # Positions are numbered with the axis of the slabs first.
    number = np.moveaxis(np.arange(math.prod(sizes)).reshape(sizes), slow_axis(sizes, reach), 0).ravel().argsort()
    outputs, inputs, taps = convolution_reads(axes, "zeros")
    place, middle = (outputs, inputs) if of_outputs else (inputs, outputs)
    kernels = weight.flatten(2).unbind(2)
    joined = np.full((len(kernels), math.prod(coupling(axes, of_outputs=not of_outputs)[0])), -1)
    joined[taps, middle] = number[place]
    for first, second in itertools.product(range(len(kernels)), repeat=2):
        both = (joined[first] >= 0) & (joined[second] >= 0)
        (slab_p, row), (slab_q, column) = (divmod(joined[tap][both], per_slab) for tap in (first, second))
        a, b = kernels[first], kernels[second]
        value = a @ b.mT if of_outputs else a.mT @ b
        for view, step in zip(views, (0, 1), strict=True):
            chosen = slab_p - slab_q == step
            if chosen.any():
                index = tuple(torch.as_tensor(t[chosen]) for t in (slab_q, row, column))
                view.index_put_(index, value.expand(int(chosen.sum()), -1, -1), accumulate=True)
    diagonal, below = (b.reshape(-1, size, size) for b in blocks)
    return diagonal, below


def is_definite(diagonal: Tensor, below: Tensor, tau: float) -> bool:
    r"""Return whether the block Cholesky factorisation of :math:`\tau I - G` succeeds in floating point."""
    carried = torch.zeros_like(diagonal[0])
    identity = tau * torch.eye(diagonal.shape[-1], dtype=torch.float64)
    for k in range(diagonal.shape[0]):
        factor = cholesky_factor(identity - diagonal[k] - carried)
        if factor is None:
            return False
        if k < below.shape[0]:
            X = torch.linalg.solve_triangular(factor, below[k].mT, upper=False)  # L^{-1} E^T; the sign squares away
            carried = X.mT @ X
    return True


@statement("normscope", "Block tridiagonal Gram matrices", holds="zero padding, IEEE arithmetic, no underflow")
def banded_certificate(
    weight: Tensor, axes: Sequence[Axis], lower: float, *, of_outputs: bool, gram_error: float, widest: float
) -> float:
    r"""Return a certified upper bound on the norm of a zero-padded convolution, or infinity.

    A successful factorisation of :math:`\tau I - A^T A` proves :math:`\|A\|^2 \le \tau + c + e` with the margin c of
    the factorisation and the error e of the Gram matrix; every entry of the factor is an inner product over two slabs
    at most.

    Args:
        weight: the kernel ``(Cout, Cin, *k)`` in float64.
        axes: the geometry.
        lower: an attained value; the closer it is to the norm, the tighter the bound.
        of_outputs: the side whose Gram matrix is formed.
        gram_error: a bound on the error of the Gram matrix, in the spectral norm.
        widest: the largest relative distance above ``lower`` to try.

    >>> box, axes = torch.ones(1, 1, 3, dtype=torch.float64), [Axis(5, 5, 3, 1, 1, 1)]
    >>> exact = 1 + 2 * math.cos(math.pi / 6)
    >>> bound = banded_certificate(box, axes, exact, of_outputs=False, gram_error=1e-14, widest=1e-3)
    >>> exact <= bound < exact + 2e-6
    True
    """
    diagonal, below = slab_gram(weight, axes, of_outputs=of_outputs)
    trace_of_gram = float(diagonal.diagonal(dim1=-2, dim2=-1).sum())
    size = diagonal.shape[-1]
    margin = 4e-7
    while margin <= widest:
        tau = (lower * (1.0 + margin)) ** 2
        if is_definite(diagonal, below, tau):
            trace = max(0.0, tau * diagonal.shape[0] * size - trace_of_gram) * (1.0 + 1e-9)
            slack = cholesky_margin(2 * size + 2, trace)
            return math.sqrt((tau + slack + gram_error) * (1.0 + 2.0**-48))
        margin *= 8.0
    return math.inf
