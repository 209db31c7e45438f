"""Gradient norms on the probe, and their ratio to the weights."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm of all entries, summed in float64.

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
    preset = "standard"
    cost = 12
    gradient = True
    charts = (
        Chart("gradient-norm", "Gradient of each layer", "log", ("gradient/norm/*",), 190),
        Chart("gradient-ratio", "Gradient of each layer over its weight", "log", ("gradient/ratio/*",), 200),
        Chart("gradient", "Gradient of all parameters", "log", ("gradient/*",), 210, whole=True),
    )
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
