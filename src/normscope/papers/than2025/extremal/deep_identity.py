"""Theorem 6 of than2025: a network of any widths and depth whose constant is a prescribed product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS
from normscope.papers.than2025.extremal.extremal import (
    Extremal,
    both_sides,
    checked_input,
    checked_scales,
    checked_widths,
    relu_network,
    scaled_identity,
)


@statement("than2025", "Theorem 6")
def theorem_6(widths: Sequence[int], scales: Sequence[float] | float, dtype: torch.dtype = torch.float64) -> Extremal:
    """Return the ReLU network with ``W_k = a_k I_k``, whose Lipschitz constant is ``prod a_k``, exactly.

    It keeps the first ``r = min n_k`` coordinates, so it is ``(prod a_k) relu`` of them. The constant is attained
    between zero and the first unit vector, and at every input with a positive coordinate among the first ``r``.

    Args:
        widths: ``n_0, ..., n_K``, input first.
        scales: ``a_1, ..., a_K >= 0``, or one number for all.
        dtype: of the weights; the constant is that of the scales as it holds them.

    Returns:
        The network and its constant, a logarithm where it is past the range of floats.

    Raises:
        InputError: if widths or scales are out of range.

    >>> net = theorem_6([5, 3, 7, 2, 4], [2.0, 0.5, 3.0, 1.5])
    >>> round(net.constant.value, 12), net.module(net.point).norm().item()
    (4.5, 4.5)
    >>> round(theorem_6([2] * 5001, 3.0).constant.log10, 6)
    2385.606274
    """
    shape = checked_widths(widths)
    held = checked_scales(scales, len(shape) - 1, dtype)
    weights = [scaled_identity(n, m, a, dtype) for m, n, a in zip(shape[:-1], shape[1:], held, strict=True)]
    constant, attained = both_sides(held, "than2025 Theorem 6", ALL_INPUTS)
    point = checked_input(None, shape[0], dtype)
    return Extremal(relu_network(weights), constant, attained, point, point)


@statement("than2025", "Remark 7", holds="scales bounded away from one: all >= 1 + c, or all <= 1 - c, with c > 0")
def remark_7(scales: Sequence[float]) -> tuple[float, float]:
    """Return the rates between which a product grows: ``min`` and ``max`` of ``log a_k``.

    ``exp(K low) <= prod a_k <= exp(K high)``. Only a positive ``low`` (or negative ``high``) that does not depend on
    the depth makes growth (or decay) exponential: scales above one are not enough, ``prod (1 + 2^-k)`` is
    below 2.385.

    Args:
        scales: ``a_1, ..., a_K``, positive.

    Returns:
        ``(low, high)``.

    Raises:
        InputError: if there is none, or one is not positive.

    >>> remark_7([2.0, 2.0]) == (math.log(2), math.log(2))
    True
    >>> remark_7([1 + 2.0**-k for k in range(1, 40)])[0] < 1e-11
    True
    """
    if not scales or not all(a > 0 and math.isfinite(a) for a in scales):
        raise InputError(f"Expected positive scales, at least one; got {list(scales)[:4]}.")
    return min(map(math.log, scales)), max(map(math.log, scales))
