"""Losses of which the gradient grows without bound with the weights, and the l1 loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.papers.than2025.extremal.extremal import (
    Extremal,
    both_sides,
    checked_scales,
    checked_widths,
    relu_network,
    square_norm,
)
from normscope.papers.than2025.extremal.weight_direction import AT_INPUT, parts, theorem_13_printed


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


@statement("than2025", "Corollary 14", holds="corrected, equation (11): the root of r = min(n_i, ..., n_K) is missing")
def l1_loss(
    widths: Sequence[int],
    scales: Sequence[float] | float,
    layer: int = 1,
    x: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Extremal:
    """Return a ReLU network whose l1 loss has ``||f, W_i|| = sqrt(r) a_{i+1} ... a_K ||h_{i-1}(x)||``.

    As in Theorem 13, with ``r = min(n_i, ..., n_K)`` rows of ``W_i`` along ``h_{i-1}(x)``: all outputs that can move
    do, and add up. Targets of minus one are below every output, so every slope of the loss is one there.

    Args:
        widths: ``n_0, ..., n_K``, input first.
        scales: ``a_1, ..., a_K``, or one number for all; that of the layer itself is the norm of ``W_i``.
        layer: ``i``, from one to ``K``.
        x: the input, by default the first unit vector.
        dtype: of the weights.

    Returns:
        The network at that weight; the loss is ``sum |h(x) + 1|``.

    Raises:
        InputError: if an argument is out of range, or nothing of ``x`` reaches the layer.

    >>> net = l1_loss([3, 4, 5, 6], [1.0, 2.0, 3.0], 1, torch.tensor([3.0, 0.0, 0.0]))
    >>> round(net.constant.value, 12), round(net.printed.value, 12)
    (36.0, 18.0)
    """
    here = parts(widths, scales, layer, x, dtype)
    if 0.0 in here.after:
        raise InputError("Expected positive scales after the layer: with a zero the loss vanishes.")
    norm = here.rows * square_norm(here.kept)
    constant, attained = both_sides((*here.before, *here.after), "than2025 Corollary 14", AT_INPUT, norm)
    direction = here.own(here.rows, here.rows**-0.5)
    module = relu_network(here.weights((here.at or 1.0) * direction))
    return Extremal(module, constant, attained, here.x, direction, layer, theorem_13_printed(here))
