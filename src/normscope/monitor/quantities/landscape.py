"""The loss along its gradient: how predictive the gradient is, and how smooth the loss (Santurkar et al. 2018)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from normscope.monitor.quantities.gradient import total_norm
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot

#: Step sizes along the gradient as multiples of the learning rate, as in the paper.
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
#: Without a learning rate: lengths of the steps relative to the norm of the weights.
RELATIVE = (1e-3, 3e-3, 1e-2, 3e-2)

Gradient = dict[str, Tensor]


def along_gradient(
    gradient: Gradient, at: Callable[[float], tuple[float, Gradient]], steps: Sequence[float]
) -> dict[str, float]:
    r"""Return loss and gradient statistics at ``w - s g`` for several step sizes ``s``; nothing if ``g`` is zero.

    The ranges of the loss and of the change of the gradient ``||g(w - s g) - g(w)||``, and the smoothness, the largest
    change over the length ``s ||g||``.

    >>> half_square = lambda s: ((1.0 - s) ** 2 / 2, {"w": torch.tensor([1.0 - s])})  # L = w^2/2 at w = 1, so g = 1
    >>> found = along_gradient({"w": torch.tensor([1.0])}, half_square, [0.5, 1.0])
    >>> found["loss_high"], found["change_high"], found["smoothness"]
    (0.125, 1.0, 1.0)
    """
    length = total_norm(gradient.values())
    if length == 0.0 or not steps:
        return {}
    losses, changes, slopes = [], [], []
    for step in steps:
        loss, other = at(step)
        with torch.no_grad():
            change = total_norm(other[name] - value if name in other else value for name, value in gradient.items())
        losses.append(loss)
        changes.append(change)
        slopes.append(change / (step * length))
    # numpy's extremes are NaN if one of the numbers is.
    low, high = np.min([losses, changes], axis=1), np.max([losses, changes, slopes], axis=1)
    found = {"loss_low": low[0], "loss_high": high[0], "change_low": low[1], "change_high": high[1]}
    return {name: float(value) for name, value in (found | {"smoothness": high[2]}).items()}


class GradientPredictiveness(Quantity):
    """Range of loss and gradient along the gradient direction, and effective smoothness, on the probe."""

    name = "landscape"
    preset = "full"
    cost = 14
    gradient = True
    charts = (
        Chart("landscape-loss", "Loss along the gradient", "linear", ("landscape/loss_*",), 280, whole=True),
        Chart("landscape", "Change of the gradient along itself", "log", ("landscape/*",), 290, whole=True),
    )
    describes = (
        Description("landscape/loss_low", Kind.ESTIMATE, "smallest loss along the gradient direction", signed=True),
        Description("landscape/loss_high", Kind.ESTIMATE, "largest loss along the gradient direction", signed=True),
        Description("landscape/change_low", Kind.ESTIMATE, "smallest change of the gradient along its direction"),
        Description("landscape/change_high", Kind.ESTIMATE, "largest change of the gradient along its direction"),
        Description(
            "landscape/smoothness", Kind.ESTIMATE, "largest change of the gradient divided by the length of the step"
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the ranges over steps of half to four learning rates."""
        gradient = moment.gradients
        steps = _steps(moment)
        if not gradient or not steps:
            return {}
        found = along_gradient(gradient, lambda step: moment.moved(gradient, -step), steps)
        return {f"landscape/{name}": value for name, value in found.items()}


def _steps(moment: Snapshot) -> list[float]:
    """Return the step sizes: multiples of the learning rate, or lengths relative to the weights."""
    rate = max(moment.rates.values(), default=0.0)
    if rate > 0.0:
        return [rate * multiple for multiple in MULTIPLES]
    length = total_norm(moment.gradients.values())
    size = total_norm(moment.parameters[name] for name in moment.gradients)
    return [part * size / length for part in RELATIVE] if length > 0.0 and size > 0.0 else []
