"""The smallest norm of a weight vector, by which the bounds of weight normalization divide."""

import math

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


@statement("cisneros2025", "Mechanism 3 (norm)", holds="a measurement; the paper's bounds shrink as it grows")
def minimum_row_norm(weight: Tensor) -> float:
    r"""Return ``min_i ||W_i||`` over the weight vectors, one for each output.

    Args:
        weight: the weight, outputs along the first axis.

    >>> minimum_row_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    1.0
    """
    rows = weight.detach().reshape(weight.shape[0], -1)
    return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).min())


class MinimumNorms(Quantity):
    """The smallest norm of a weight vector in each layer, and in all layers but the last, as in the paper."""

    name = "minimum_norm"
    preset = "economy"
    cost = 5
    charts = (
        Chart(
            "minimum-norm",
            "Smallest norm of a weight vector",
            "log",
            ("weight/minimum_norm", "weight/minimum_norm/*"),
            240,
        ),
    )
    describes = (
        Description(
            "weight/minimum_norm/*",
            Kind.ESTIMATE,
            "smallest norm of a weight vector of a layer; with weight normalization, of its directions",
            "cisneros2025 Mechanism 3 (norm)",
        ),
        Description(
            "weight/minimum_norm",
            Kind.ESTIMATE,
            "smallest norm of a weight vector over all layers but the last",
            "cisneros2025 Mechanism 3 (norm)",
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the smallest norm of each layer, and of all hidden layers."""
        norms = {
            layer.name: minimum_row_norm(moment.weights[layer.name].movedim(layer.output_axis, 0))
            for layer in moment.layers
            if layer.name in moment.weights and moment.weights[layer.name].ndim > 1
        }
        found = {f"weight/minimum_norm/{name}": value for name, value in norms.items()}
        hidden = list(norms.values())[:-1]
        least = math.nan if any(map(math.isnan, hidden)) else min(hidden, default=math.nan)
        return found | ({"weight/minimum_norm": least} if hidden else {})
