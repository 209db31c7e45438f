"""The effective learning rate of weights whose scale does not matter."""

import math

from normscope.core.statement import statement
from normscope.monitor.quantities.gradient import norm
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


@statement("normscope", "Effective step", holds="L(c w) = L(w) for c > 0; one gradient step without momentum")
def effective_rate(rate: float, weight_norm: float) -> float:
    r"""Return ``eta/||w||^2``, the learning rate with which the direction ``w/||w||`` moves on the unit sphere.

    Args:
        rate: the learning rate ``eta``.
        weight_norm: ``||w||``.

    >>> effective_rate(0.1, 2.0)
    0.025
    """
    return rate / weight_norm**2 if weight_norm else math.inf


class EffectiveRates(Quantity):
    """``eta/||w||^2`` of each layer's weight, which determines how fast weights before a normalizer turn."""

    name = "effective_rate"
    preset = "economy"
    cost = 6
    charts = (Chart("effective-rate", "Effective learning rate of each layer", "log", ("effective_rate/*",), 220),)
    describes = (
        Description(
            "effective_rate/*",
            Kind.ESTIMATE,
            "learning rate over the squared norm of a layer's weight",
            "normscope Effective step",
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the rate of each layer whose learning rate is known."""
        return {
            f"effective_rate/{layer.name}": effective_rate(
                moment.rates[layer.parameter], norm(moment.parameters[layer.parameter])
            )
            for layer in moment.layers
            if layer.parameter in moment.rates
        }
