"""The gradient on the probe: its norms, its square over the loss, and the loss along it (Santurkar et al. 2018)."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Kind
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot

#: Steps along the gradient in learning rates, as in the paper.
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
#: Where no learning rate is known: lengths of the steps relative to the norm of the weights.
RELATIVE = (1e-3, 3e-3, 1e-2, 3e-2)

Gradient = dict[str, Tensor]


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm of all entries, summed in float64 beyond what float32 can hold.

    >>> norm(torch.tensor([3.0, 4.0]))
    5.0
    """
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def total_norm(tensors: Iterable[Tensor]) -> float:
    """Return the Euclidean norm of several tensors as one vector.

    >>> total_norm([torch.tensor([3.0]), torch.tensor([4.0])])
    5.0
    """
    return math.sqrt(math.fsum(norm(t) ** 2 for t in tensors))


class Gradients(Quantity):
    """``||dL/dw||`` and ``||dL/dw||/||w||`` of each layer's weight, and the norm of the whole gradient."""

    name = "gradient"
    cost = 12
    gradient = True
    describes = (
        Description("gradient/norm/*", Kind.ESTIMATE, "norm of the loss gradient of a layer's weight, on the probe"),
        Description("gradient/ratio/*", Kind.ESTIMATE, "the same divided by the norm of the weight"),
        Description("gradient/total", Kind.ESTIMATE, "norm of the loss gradient of all parameters, on the probe"),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return norms and ratios for each layer that is trained."""
        gradients = moment.gradients
        if not gradients:
            return {}
        found: dict[str, float] = {"gradient/total": total_norm(gradients.values())}
        for layer in moment.layers:
            if layer.parameter in gradients:
                size = norm(moment.parameters[layer.parameter])
                found[f"gradient/norm/{layer.name}"] = norm(gradients[layer.parameter])
                if size > 0:
                    found[f"gradient/ratio/{layer.name}"] = found[f"gradient/norm/{layer.name}"] / size
        return found


@statement("cisneros2025", "Mechanism 3 (ratio)", holds="a measurement; the paper asks for a lower bound on it")
def square_over_loss(gradient_norm: float, loss: float) -> float:
    r"""Return ``||grad L||^2 / L``, the quantity the paper's condition for convergence bounds from below.

    Args:
        gradient_norm: the norm of the gradient.
        loss: the loss, positive.

    Raises:
        InputError: if the loss is negative.

    >>> square_over_loss(2.0, 0.5)
    8.0
    """
    if loss < 0:
        raise InputError(f"Expected a loss above zero, got {loss}.")
    if loss == 0:
        return math.inf if gradient_norm else math.nan
    return gradient_norm**2 / loss


class SquareOverLoss(Quantity):
    """``||grad L||^2 / L`` on the probe."""

    name = "square_over_loss"
    cost = 13
    gradient = True
    describes = (
        Description(
            "gradient/square_over_loss",
            Kind.ESTIMATE,
            "squared norm of the gradient over the loss, on the probe",
            "cisneros2025 Mechanism 3 (ratio)",
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the ratio, if there is a gradient and the loss is not negative."""
        if not moment.gradients or moment.loss is None or moment.loss < 0:
            return {}
        return {"gradient/square_over_loss": square_over_loss(total_norm(moment.gradients.values()), moment.loss)}


def along_gradient(
    gradient: Gradient, at: Callable[[float], tuple[float, Gradient]], steps: Sequence[float]
) -> dict[str, float]:
    r"""Return what is met at ``w - s g`` for several step sizes ``s``; nothing if ``g`` is zero.

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
    cost = 14
    gradient = True
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
