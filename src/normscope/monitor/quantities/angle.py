"""The angle by which one update turns a weight."""

import math

import torch
from torch import Tensor

from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


def angle_between(before: Tensor, after: Tensor) -> float:
    r"""Return the angle between two tensors as vectors, in radians, accurate also where it is tiny.

    Kahan's form ``2 atan2(||u - v||, ||u + v||)`` of the unit vectors; the arc cosine loses angles below 1e-8.

    >>> round(angle_between(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])), 6)
    0.785398
    """
    u, v = before.detach().double().flatten(), after.detach().double().flatten()
    first, second = torch.linalg.vector_norm(u), torch.linalg.vector_norm(v)
    if float(first) == 0.0 or float(second) == 0.0:
        return math.nan
    u, v = u / first, v / second
    return 2.0 * math.atan2(float(torch.linalg.vector_norm(u - v)), float(torch.linalg.vector_norm(u + v)))


class AngularUpdates(Quantity):
    """The angle between each layer's weight before and after one update."""

    name = "angle"
    preset = "economy"
    cost = 7
    previous = True
    charts = (Chart("angle", "Angle of the last update of each layer", "log", ("angle/*",), 230),)
    describes = (
        Description("angle/*", Kind.ESTIMATE, "angle by which the last update turned a layer's weight, in rad"),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the angle of each layer whose weight before the last update is known and not zero."""
        found = {f"angle/{name}": angle_between(*pair) for name, pair in moment.updates.items()}
        return {name: angle for name, angle in found.items() if not math.isnan(angle)}
