"""The radial part of an update, which is zero for plain SGD on a weight before a normalizer."""

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


@statement(
    "akbar2025", "Lemma 5.1 (live)", holds="an identity; zero for a step along the gradient of an invariant loss"
)
def radial_update(before: Tensor, after: Tensor) -> float:
    r"""Return ``(||w+||^2 - ||w||^2 - ||w+ - w||^2)/||w||^2 = 2 <w, w+ - w>/||w||^2``.

    The law of scale-invariant weights says that SGD makes this zero: the length grows by the squared step alone. Weight
    decay makes it ``-2 eta lambda``, and eps leaves a small remainder.

    Args:
        before: the weight before the update.
        after: the weight after it.

    >>> radial_update(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.5])), radial_update(torch.ones(2), torch.zeros(2))
    (0.0, -2.0)
    """
    w, moved = before.detach().double().flatten(), after.detach().double().flatten()
    size = float(w.square().sum())
    return 2 * float(torch.dot(w, moved - w)) / size if size else float("nan")


class RadialUpdates(Quantity):
    """The conservation law of each layer's weight: measured growth minus the growth that the law predicts."""

    name = "radial"
    cost = 7
    previous = True
    charts = (
        Chart("radial", "Part of the gradient along the weights of a scale-invariant layer", "log", ("radial/*",), 250),
    )
    describes = (
        Description(
            "radial/*",
            Kind.ESTIMATE,
            "change of a squared norm beyond the squared step, relative; 0 by the law of scale-invariant weights",
            "akbar2025 Lemma 5.1 (live)",
            signed=True,
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return this part for each layer whose weight before the last update is known and not zero."""
        found = {f"radial/{name}": radial_update(*pair) for name, pair in moment.updates.items()}
        return {name: value for name, value in found.items() if value == value}
