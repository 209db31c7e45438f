r"""Every guarantee of the theory for one network and its data, next to the quantity it bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.core.display import Shown
from normscope.core.files import Stored
from normscope.core.number_text import number_text
from normscope.core.rounding import up
from normscope.core.value import Kind, Value
from normscope.weight_normalization import measure
from normscope.weight_normalization.certified_step import Moment, certify_step, smoothness_bound
from normscope.weight_normalization.chain import Chain, in_float64, read_chain
from normscope.weight_normalization.derivative_bounds import (
    activation_norm_bounds,
    gradient_bound,
    hessian_bound,
    hessian_bound_closed,
    lipschitz_bound,
)
from normscope.weight_normalization.rademacher import generalization_gap_bound, grid_radius, rademacher_bound

#: Examples at which derivatives are measured.
POINTS = 4


@dataclass(frozen=True)
class Guarantee:
    """One bound of the theory."""

    name: str  #: the quantity
    bound: Value  #: for every input no longer than the longest of the data
    #: with the activations measured on the data, for these data; ``None`` where that changes nothing
    tight: Value | None
    measured: Value | None  #: the quantity itself, measured on the data
    note: str = ""  #: what the bound assumes or why there is none


@dataclass(frozen=True, repr=False)
class Guarantees(Stored, Shown):
    """The guarantees for a weight-normalized network, beside measured values."""

    _kind = "weight-normalization"
    _layout = ("normscope.report.weight_normalization", "weight_normalization_sections")
    _rows = "rows"

    rows: tuple[Guarantee, ...]  #: the guarantees
    moment: Moment  #: the loss, and what is proved about the next step of gradient descent
    paper_form: bool  #: whether the network is exactly of the paper's form

    def __getitem__(self, name: str) -> Guarantee:
        return next(row for row in self.rows if row.name == name)

    def step_lines(self) -> list[str]:
        """Return the guarantee for the next step as lines of text."""
        step = self.moment
        return [
            f"Loss {step.loss:.4g}, |grad L|^2/L = {step.ratio:.4g}, shortest weight vector {step.least_norm:.4g}.",
            f"A plain gradient step of size {step.largest_certified_step:.4g} is proved to multiply the loss by at "
            f"most {step.certificate.contraction:.9g}."
            if step.certificate.proved and step.largest_certified_step > 0
            else "No step size is certified: the activation is not smooth, or the loss is zero.",
        ]


def shown(value: Value | None) -> str:
    """Format a value for display."""
    if value is None:
        return "-"
    return "no bound" if value.log == math.inf else f"{number_text(value.log10)} ({value.kind.value})"


def verify(model: nn.Module, inputs: Tensor, targets: Tensor, *, delta: float = 0.05) -> Guarantees:
    r"""Return every bound of the theory for a network and its training data, beside what is measured.

    Args:
        model: weight-normalized; it is not changed.
        inputs: the training inputs.
        targets: of the shape of the predictions, or class numbers, which become rows with a single one.
        delta: probability with which the generalization bound may fail.

    Raises:
        InputError: if the model is not one the theory covers; the message says why.

    >>> from normscope.weight_normalization.network import WeightNormNetwork
    >>> found = verify(WeightNormNetwork(3, width=8, depth=2, seed=0), torch.eye(3), torch.ones(3, 1))
    >>> row = found["Hessian of the predictor"]
    >>> row.measured.value <= row.tight.value <= row.bound.value
    True
    """
    chain, plain = read_chain(model, inputs), in_float64(model)
    x, y = inputs.detach().double(), measure.square_targets(targets, len(chain.output))
    now = certify_step(model, x, y)
    layers, rho = chain.constants(), chain.output_norm()
    norms = measure.activation_norms(chain, plain, x)
    worst = activation_norm_bounds(layers, norms[0])

    def attained(norm: Callable[[nn.Module, Tensor], float]) -> Value:
        return _attained(max(norm(plain, point) for point in x[:POINTS]))

    steepest = gradient_bound(layers, rho, worst, output_bias=chain.output_bias)
    steep = gradient_bound(layers, rho, norms, output_bias=chain.output_bias)
    curved, curve = hessian_bound(layers, rho, worst), hessian_bound(layers, rho, norms)
    smooth = all(layer.activation.smooth for layer in chain.layers)
    rough = "" if smooth else "the activation is not smooth, so there is no second derivative to bound"
    ball, data = f"inputs with |x| <= {norms[0]:.4g}", "these data points"
    rows = [
        Guarantee("Lipschitz constant in the input", _upper(lipschitz_bound(layers, rho), "all inputs", "WN-4"), None,
                  attained(measure.input_jacobian_norm)),
        Guarantee("norm of the last activation", _upper(worst[-1], ball, "WN-3"), None,
                  _attained(norms[-1] * (1 - 1e-9))),
        Guarantee("Jacobian in the parameters", _upper(steepest, ball, "WN-5"), _upper(steep, data, "WN-5"),
                  attained(measure.parameter_jacobian_norm)),
        Guarantee("Hessian of the predictor", _upper(curved, ball, "WN-6"), _upper(curve, data, "WN-6"),
                  attained(measure.prediction_hessian_norm) if smooth else None, rough),
        *_closed(chain, rho, norms[0], ball),
        Guarantee("Hessian of the loss (smoothness)",
                  _upper(smoothness_bound(now.loss, steepest, curved), data, "WN-8"),
                  _upper(smoothness_bound(now.loss, steep, curve), data, "WN-8"),
                  _attained(measure.loss_hessian_norm(plain, x, y)) if smooth else None, rough),
        gap_guarantee(model, inputs, targets, delta=delta),
    ]  # fmt: skip
    return Guarantees(tuple(rows), now, chain.paper_form)


def _upper(x: float, domain: str, number: str) -> Value:
    return Value.of(x, Kind.CERTIFIED, domain=domain, statement=f"normscope Proposition {number}")


def _attained(x: float) -> Value:
    return Value.of(x, Kind.LOWER, domain="these data points")


def _closed(chain: Chain, rho: float, size: float, ball: str) -> list[Guarantee]:
    """Return the Hessian bound as one formula, where the network is of the paper's form with one width."""
    widths = {len(layer.gains) for layer in chain.layers}
    curvature = max(layer.activation.curvature for layer in chain.layers)
    if not chain.paper_form or len(widths) > 1 or not math.isfinite(curvature):
        return []
    found = hessian_bound_closed(chain.depth, widths.pop(), chain.least_norm * (1 - 1e-12), rho, size, curvature)
    bound = Value.of(found, Kind.CERTIFIED, domain=ball, statement="normscope Corollary WN-7")
    return [Guarantee("Hessian of the predictor (one formula)", bound, None, None, "depth enters as L^2/m")]


def gap_guarantee(model: nn.Module, inputs: Tensor, targets: Tensor, *, delta: float = 0.05) -> Guarantee:
    """Return the generalization bound of a network for the square loss, or why there is none.

    >>> from normscope.weight_normalization.network import WeightNormNetwork
    >>> found = gap_guarantee(WeightNormNetwork(3, width=8, depth=2, seed=0), torch.eye(3), torch.ones(3, 1))
    >>> found.bound.kind.value
    'probabilistic'
    """
    chain, x = read_chain(model, inputs), inputs.detach().double()
    y = measure.square_targets(targets, len(chain.output))
    longest = float(torch.linalg.vector_norm(x.flatten(1), dim=1).max()) * (1.0 + 1e-12)
    reasons = [
        f"{layer.name}: {why}"
        for layer in chain.layers
        for bad, why in (
            (layer.bias is not None, "a bias"),
            (layer.activation.at_zero != 0, "an activation that is not zero at zero"),
            (layer.window != 1.0, "a convolution"),
            (layer.gains_trained, "gains taken from the trained network"),
        )
        if bad
    ]
    name = f"expected minus training loss (probability {1 - delta:g})"
    if chain.output_bias:
        reasons.append("a bias of the output layer")
    if reasons:
        return Guarantee(name, _upper(math.inf, "", "WN-12"), None, None, "not covered: " + "; ".join(reasons[:3]))
    outputs = len(chain.output)
    row = float(torch.linalg.vector_norm(chain.output, dim=1).max())
    radius, share = grid_radius(row or 1.0, delta)  # of all rows of the output layer
    factors = [layer.peeling_factor() for layer in chain.layers]
    data_norm = float(torch.linalg.vector_norm(x))
    complexity = rademacher_bound(chain.depth, outputs * radius, data_norm, len(x), factors)
    # The bound is for all directions of the hidden layers: the norms of the trained ones must not enter it.
    steepest = math.prod(
        layer.activation.slope * float(torch.linalg.vector_norm(layer.gains)) for layer in chain.layers
    )
    size = up(math.sqrt(outputs) * radius * steepest * longest, 64.0 * (chain.depth + 1))
    target = float(torch.linalg.vector_norm(y.flatten(1), dim=1).max())
    gap = generalization_gap_bound(complexity, size, len(x), share, target_norm=target, outputs=outputs)
    assumed = ("examples drawn independently", "inputs and targets of the population no longer than those of the data")
    value = Value.of(gap, Kind.PROBABILISTIC, domain="the population", statement="normscope Proposition WN-12",
                     assumptions=assumed, delta=delta)  # fmt: skip
    return Guarantee(name, value, None, None, "assumes " + " and ".join(assumed))
