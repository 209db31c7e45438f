"""Margins of a classifier, margin losses, and Lipschitz constants of the ramp loss on cells.

The constant of the ramp loss is zero wherever the margin cannot reach the ramp.
"""

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement


def margins(scores: Tensor, classes: Tensor) -> Tensor:
    r"""Return ``f_y - max_{j != y} f_j`` of every sample; positive where the class is right.

    >>> margins(torch.tensor([[2.0, 0.5], [1.0, 4.0]]), torch.tensor([0, 0])).tolist()
    [1.5, -3.0]
    """
    index = classes.unsqueeze(1)
    right = scores.gather(1, index).squeeze(1)
    others = scores.scatter(1, index, float("-inf"))
    return right - others.amax(1)


@statement("normscope", "Proposition GEN-9", holds="the share that margin bounds add to")
def margin_loss(margin: Tensor, gamma: float) -> float:
    """Return the share of samples whose margin is at most gamma.

    >>> margin_loss(torch.tensor([0.5, 1.5, -1.0, 3.0]), 1.0)
    0.5
    """
    return float((margin <= gamma).double().mean())


@statement("normscope", "Proposition GEN-9", holds="between the error and the margin loss; sqrt(2)/gamma-Lipschitz")
def ramp_loss(margin: Tensor, gamma: float) -> Tensor:
    """Return ``min(1, max(0, 1 - margin/gamma))`` of every sample: at least the error, and Lipschitz in the scores.

    >>> ramp_loss(torch.tensor([0.5, 1.5, -1.0]), 1.0).tolist()
    [0.5, 0.0, 1.0]
    """
    return (1 - margin / gamma).clamp(0.0, 1.0)


@statement("normscope", "Proposition GEN-20", holds="convex cells of one label each, inside balls around their centres")
def flat_cells(margins: Tensor, constant: Tensor | float, radius: Tensor | float, gamma: float) -> Tensor:
    r"""Return on which cells the ramp loss is constant, from the margin at their centres.

    A margin that is ``K``-Lipschitz differs by at most ``K R`` from its value at the centre of a ball of radius ``R``
    that holds the cell. Where it stays above ``gamma`` the ramp is 0 on the whole cell, where it stays below zero it is
    1.

    Args:
        margins: at the centres, for the label of each cell.
        constant: ``K``, a certified Lipschitz constant of the margin, on the ball of each cell or on all inputs.
        radius: ``R``, of each cell or of all.
        gamma: where the ramp reaches zero.

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
    loss in [0, 1] varies by more than one across a cell of diameter ``2 R``. Arguments are those of :func:`flat_cells`.

    >>> cell_constants(torch.tensor([2.0, 0.5, -2.0]), 1.0, 0.25, 1.0).tolist()
    [0.0, 1.0, 0.0]
    """
    flat = flat_cells(margins, constant, radius, gamma)
    steep, far = (torch.as_tensor(v, dtype=torch.float64) for v in (constant, radius))
    return torch.where(flat, 0.0, torch.minimum(steep / gamma, 1 / (2 * far)))
