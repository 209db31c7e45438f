"""The squared gradient over the loss, which the convergence proof for weight normalization bounds from below."""

import math

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.monitor.quantities.gradient import total_norm
from normscope.monitor.quantity import Description, Kind, Quantity, Snapshot


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
    preset = "standard"
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
