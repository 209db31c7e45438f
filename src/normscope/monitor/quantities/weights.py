"""Lengths of weights and how updates turn them: what matters where a normalizer follows."""

import math

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.core.value import Kind
from normscope.monitor.quantities.gradient import norm
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot


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
    """``eta/||w||^2`` of each layer's weight; it rules how fast weights before a normalizer turn."""

    name = "effective_rate"
    cost = 6
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
    """The least norm of a weight vector of each layer, and over all layers but the last, as in the paper."""

    name = "minimum_norm"
    cost = 5
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
        """Return the least norm of each layer, and over the hidden ones."""
        norms = {
            layer.name: minimum_row_norm(moment.weights[layer.name].movedim(layer.output_axis, 0))
            for layer in moment.layers
            if layer.name in moment.weights and moment.weights[layer.name].ndim > 1
        }
        found = {f"weight/minimum_norm/{name}": value for name, value in norms.items()}
        hidden = list(norms.values())[:-1]
        least = math.nan if any(map(math.isnan, hidden)) else min(hidden, default=math.nan)
        return found | ({"weight/minimum_norm": least} if hidden else {})


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
    cost = 7
    previous = True
    describes = (
        Description("angle/*", Kind.ESTIMATE, "angle by which the last update turned a layer's weight, in rad"),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the angle of each layer whose weight of one update before is known, of its shape and not zero."""
        found = {f"angle/{name}": angle_between(*pair) for name, pair in moment.updates.items()}
        return {name: angle for name, angle in found.items() if not math.isnan(angle)}


@statement(
    "akbar2025", "Lemma 5.1 (live)", holds="an identity; zero for a step along the gradient of an invariant loss"
)
def radial_update(before: Tensor, after: Tensor) -> float:
    r"""Return ``(||w+||^2 - ||w||^2 - ||w+ - w||^2)/||w||^2 = 2 <w, w+ - w>/||w||^2``.

    The law of scale-invariant weights says that SGD makes this zero: the length grows by the squared step alone. Weight
    decay makes it ``-2 eta lambda``, and eps leaves a small rest.

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
    """The conservation law of each layer's weight, live: measured growth minus the growth that the law allows."""

    name = "radial"
    cost = 7
    previous = True
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
        """Return it for each layer whose weight of one update before is known and not zero."""
        found = {f"radial/{name}": radial_update(*pair) for name, pair in moment.updates.items()}
        return {name: value for name, value in found.items() if value == value}
