"""Certified local constants of the ramp loss on cells: zero wherever the margin cannot reach the ramp."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement


@statement("normscope", "Proposition GEN-20", holds="convex cells of one label each, inside balls around their centres")
def flat_cells(margins: Tensor, constant: Tensor | float, radius: Tensor | float, gamma: float) -> Tensor:
    r"""Tell on which cells the ramp loss is constant, from the margin at their centres.

    A margin that is ``K``-Lipschitz differs by at most ``K R`` from its value at the centre of a ball of radius ``R``
    that holds the cell. Where it stays above ``gamma`` the ramp is 0 on the whole cell, where it stays below zero it is
    1.

    Args:
        margins: at the centres, for the label of each cell.
        constant: ``K``, a certified Lipschitz constant of the margin, on the ball of each cell or on all inputs.
        radius: ``R``, of each cell or of all.
        gamma: where the ramp reaches zero.

    Raises:
        InputError: if a number is not positive.

    >>> flat_cells(torch.tensor([2.0, 0.5, -2.0]), 1.0, 0.25, 1.0).tolist()
    [True, False, True]
    """
    steep, far = (torch.as_tensor(v, dtype=torch.float64) for v in (constant, radius))
    if not (bool((steep >= 0).all()) and bool((far > 0).all()) and gamma > 0):
        raise InputError(f"Expected a constant, a radius and a margin above zero, got {constant}, {radius}, {gamma}.")
    reach = steep * far * (1 + 1e-12)
    value = margins.double()
    slack = 1e-9 * (1 + value.abs())  # far above the rounding of a small network in float64
    return (value - reach - slack >= gamma) | (value + reach + slack <= 0)


@statement("normscope", "Proposition GEN-20", holds="convex cells of one label each, inside balls around their centres")
def cell_constants(margins: Tensor, constant: Tensor | float, radius: Tensor | float, gamma: float) -> Tensor:
    r"""Return the Lipschitz constant of the ramp loss on each cell, from the margin at its centre.

    Zero on flat cells. Elsewhere it is ``K/gamma``, or ``1/(2 R)`` if that is less: in place of a constant, since no
    loss in [0, 1] varies by more than one across a cell of diameter ``2 R``.

    Args:
        margins: at the centres, for the label of each cell.
        constant: ``K``, a certified Lipschitz constant of the margin, on the ball of each cell or on all inputs.
        radius: ``R``, of each cell or of all.
        gamma: where the ramp reaches zero.

    Raises:
        InputError: if a number is not positive.

    >>> cell_constants(torch.tensor([2.0, 0.5, -2.0]), 1.0, 0.25, 1.0).tolist()
    [0.0, 1.0, 0.0]
    """
    flat = flat_cells(margins, constant, radius, gamma)
    steep, far = (torch.as_tensor(v, dtype=torch.float64) for v in (constant, radius))
    return torch.where(flat, 0.0, torch.minimum(steep / gamma, 1 / (2 * far)))
