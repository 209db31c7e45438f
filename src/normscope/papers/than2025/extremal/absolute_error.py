"""Corollary 14 of than2025: a network whose l1 loss has a constant ``sqrt(r)`` times the printed one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.papers.than2025.extremal.extremal import Extremal, both_sides, relu_network, square_norm
from normscope.papers.than2025.extremal.weight_direction import AT_INPUT, parts, theorem_13_printed


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
        raise InputError("scales after the layer are positive here: a zero leaves nothing of the loss")
    norm = here.rows * square_norm(here.kept)
    constant, attained = both_sides((*here.before, *here.after), "than2025 Corollary 14", AT_INPUT, norm)
    direction = here.own(here.rows, here.rows**-0.5)
    module = relu_network(here.weights((here.at or 1.0) * direction))
    return Extremal(module, constant, attained, here.x, direction, layer, theorem_13_printed(here))
