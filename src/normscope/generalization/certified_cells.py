"""Certified local constants of the ramp loss on cells: zero wherever the margin cannot reach the ramp."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement


@statement("normscope", "Proposition GEN-20", holds="convex cells of one label each, inside balls around their centres")
def cell_constants(margins: Tensor, constant: float, radius: float, gamma: float) -> Tensor:
    r"""Return the Lipschitz constant of the ramp loss on each cell, from the margin at its centre.

    A margin that is ``K``-Lipschitz differs by at most ``K R`` from its value at the centre of a ball of radius ``R``
    that holds the cell. Where it stays above ``gamma`` the ramp is 0 on the whole cell, where it stays below zero it is
    1: its constant there is zero. Elsewhere it is ``K/gamma``, or ``1/(2 R)`` if that is less: in place of a constant,
    since no loss in [0, 1] varies by more than one across a cell of diameter ``2 R``.

    Args:
        margins: at the centres, for the label of each cell.
        constant: ``K``, a certified Lipschitz constant of the margin.
        radius: ``R``.
        gamma: where the ramp reaches zero.

    Raises:
        InputError: if a number is not positive.

    >>> cell_constants(torch.tensor([2.0, 0.5, -2.0]), 1.0, 0.25, 1.0).tolist()
    [0.0, 1.0, 0.0]
    """
    if not (constant >= 0 and radius > 0 and gamma > 0):
        raise InputError(f"Expected a constant, a radius and a margin above zero, got {constant}, {radius}, {gamma}.")
    reach = constant * radius * (1 + 1e-12)
    value = margins.double()
    slack = 1e-9 * (1 + value.abs())  # far above the rounding of a small network in float64
    flat = (value - reach - slack >= gamma) | (value + reach + slack <= 0)
    return torch.where(flat, 0.0, min(constant / gamma, 1 / (2 * radius)))
