"""Explosion and vanishing, layer by layer: what Theorems 6 and 13 make of a network of scaled identities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.papers.than2025.extremal.extremal import both_sides, checked_scales, checked_widths


@dataclass(frozen=True)
class Gradients:
    """What one layer sees of a network of scaled identities at the first unit vector.

    Attributes:
        layer: ``i``, from one.
        signal: ``||h_{i-1}(x)||``, what reaches it.
        total_input: ``||h, y_i||``, what the output feels of its total input: the gradient passed back.
        weight: ``||h(x), W_i||``, their product.
    """

    layer: int
    signal: Value
    total_input: Value
    weight: Value


@statement(
    "than2025", "Remark 16", holds="for the gradient passed back; that of a weight also has the signal as a factor"
)
def gradients(
    widths: Sequence[int], scales: Sequence[float] | float, dtype: torch.dtype = torch.float64
) -> tuple[Gradients, ...]:
    """Return the gradients of every layer of the network of Theorem 6 at the first unit vector.

    The gradient passed back to layer ``i`` is ``a_{i+1} ... a_K``: it explodes or vanishes towards the first layers.
    The signal is ``a_1 ... a_{i-1}``, so that of the weight, ``prod_{k != i} a_k``, is of one order for all layers:
    with equal scales deeper layers are no easier.

    Args:
        widths: ``n_0, ..., n_K``, input first.
        scales: ``a_1, ..., a_K``, or one number for all.
        dtype: of the weights.

    Returns:
        One entry for each layer; values rounded up, logarithms where floats end.

    Raises:
        InputError: if widths or scales are out of range.

    >>> [round(g.total_input.value, 9) for g in gradients([2, 2, 2, 2], 10.0)]
    [100.0, 10.0, 1.0]
    >>> [round(g.weight.value, 9) for g in gradients([2, 2, 2, 2], 10.0)]
    [100.0, 100.0, 100.0]
    """
    depth = len(checked_widths(widths)) - 1
    held = checked_scales(scales, depth, dtype)
    own = [both_sides((a,), "than2025 Remark 16", "the first unit vector")[0] for a in held]
    one = both_sides((), "than2025 Remark 16", "the first unit vector")[0]
    signals = list(accumulate(own[:-1], mul, initial=one))
    passed = list(accumulate(reversed(own[1:]), mul, initial=one))[::-1]
    return tuple(Gradients(i + 1, s, p, s * p) for i, (s, p) in enumerate(zip(signals, passed, strict=True)))
