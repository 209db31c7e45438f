r"""Gradient descent on the square loss: smoothness, restricted strong convexity, and what is proved of the next step.

The loss is :math:`\hat L(\theta) = \frac1n \sum_i \|y_i - f(\theta; x_i)\|^2`. Let :math:`\varrho` bound the Jacobian
of ``f`` in the parameters and :math:`c_H` its Hessian (:mod:`normscope.weight_normalization.derivative_bounds`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.weight_normalization.chain import in_float64, read_chain
from normscope.weight_normalization.derivative_bounds import (
    activation_norm_bounds,
    activation_norms_nearby,
    gradient_bound,
    hessian_bound,
)
from normscope.weight_normalization.measure import activation_norms, loss_and_gradient_norm, square_targets


@statement("normscope", "Proposition WN-8", holds="the square loss")
def smoothness_bound(loss: float, gradient: float, hessian: float) -> float:
    r"""Return :math:`\beta = 2 \varrho^2 + 2 \sqrt{\hat L}\, c_H`, an upper bound of :math:`\|\nabla^2 \hat L\|`.

    Args:
        loss: the largest loss on the segment of interest.
        gradient: ``varrho`` there.
        hessian: ``c_H`` there.

    >>> round(smoothness_bound(4.0, 1.0, 0.5), 9)
    4.0
    """
    if not loss >= 0:
        raise InputError(f"Expected a loss of at least zero, got {loss}.")
    return up(2.0 * gradient**2 + (2.0 * math.sqrt(loss) * hessian if loss else 0.0), 16.0)


@statement("normscope", "Proposition WN-9", holds="the square loss")
def restricted_strong_convexity(
    loss: float, loss_gradient: float, cosine: float, distance: float, gradient: float, hessian: float
) -> float:
    r"""Return ``alpha``, the curvature of a parabola that stays below the loss on the way to another point.

    .. math::
        \hat L(\theta') &\ge \hat L(\theta) + \langle\nabla\hat L, d\rangle + \tfrac\alpha2 \|d\|^2, \\
        \alpha &= \frac{\kappa^2 \|\nabla \hat L(\theta)\|^2}{2 \hat L(\theta)} - 4 \varrho\, c_H \|d\|
                 - 2 \left(\sqrt{\hat L(\theta)} + \varrho \|d\|\right) c_H

    with :math:`d = \theta' - \theta` and :math:`\kappa = |\cos(d, \nabla \hat L)|`. It is useful where it is positive.

    Args:
        loss: the loss at ``theta``, positive.
        loss_gradient: norm of its gradient.
        cosine: ``kappa``.
        distance: ``||d||``.
        gradient: ``varrho`` on the segment.
        hessian: ``c_H`` on the segment.

    >>> restricted_strong_convexity(0.5, 2.0, 1.0, 0.0, 1.0, 0.0)
    4.0
    """
    if not loss > 0:
        raise InputError(f"Expected a positive loss, got {loss}.")
    first = cosine**2 * loss_gradient**2 / (2.0 * loss)
    far = math.sqrt(loss) + gradient * distance
    return first - up(4.0 * gradient * hessian * distance + 2.0 * far * hessian, 16.0)


@dataclass(frozen=True)
class StepCertificate:
    r"""What is proved about one step of gradient descent."""

    smoothness: float  #: ``beta`` on the segment of the step
    ratio: float  #: ``mu = ||grad L||^2/L``
    contraction: float  #: the loss after the step is at most this times the loss before it; above 1, nothing is proved
    step_size: float  #: ``eta``

    @property
    def proved(self) -> bool:
        """Whether the step is short enough for the certificate to say anything: ``eta <= 1/beta``."""
        return self.step_size * self.smoothness <= 1.0


@statement("normscope", "Proposition WN-10", holds="plain steps with eta <= 1/beta, on the whole data")
def step_certificate(loss: float, loss_gradient: float, smoothness: float, step_size: float) -> StepCertificate:
    r"""Return what is proved about a step: :math:`\hat L_{t+1} \le (1 - \eta (1 - \eta\beta/2) \mu_t) \hat L_t`.

    Here :math:`\mu_t = \|\nabla\hat L\|^2/\hat L`. Along the step the loss never exceeds its start while
    :math:`\eta \le 1/\beta`, so ``beta`` at the loss of the start holds on the whole segment; weight vectors
    never get shorter, because their gradients are orthogonal to them.

    Args:
        loss: the loss before the step, positive.
        loss_gradient: norm of its gradient.
        smoothness: ``beta`` on the segment.
        step_size: ``eta``.

    Returns:
        The certificate; its contraction is infinite where the step is too long for it.

    >>> step_certificate(1.0, 1.0, 2.0, 0.5).contraction <= 0.75 + 1e-12
    True
    >>> step_certificate(1.0, 1.0, 2.0, 5.0).proved
    False
    """
    if not loss > 0 or not step_size > 0:
        raise InputError(f"Expected a positive loss and step size, got {loss} and {step_size}.")
    ratio = loss_gradient**2 / loss
    if not step_size * smoothness <= 1.0:
        return StepCertificate(smoothness, ratio, math.inf, step_size)
    decrease = step_size * (1.0 - step_size * smoothness / 2.0) * ratio
    return StepCertificate(smoothness, ratio, 1.0 - decrease * (1.0 - 1e-14) + 1e-16, step_size)


@dataclass(frozen=True)
class Moment:
    r"""Losses, norms and constants at one moment of training on the square loss."""

    loss: float  #: the mean square loss on the data
    gradient_norm: float  #: norm of its gradient
    least_norm: float  #: the least norm of a weight vector
    output_norm: float  #: ``rho``, the norm of the output layer
    predictor_gradient: float  #: ``varrho``, a bound of the Jacobian in the parameters, on the segment of the next step
    predictor_hessian: float  #: ``c_H`` there
    certificate: StepCertificate  #: what is proved about the next plain step of this size
    strong_convexity: float  #: ``alpha`` between this point and the next plain step
    largest_certified_step: float  #: the largest step size for which the loss is proved to decrease

    @property
    def ratio(self) -> float:
        r"""``mu = ||grad L||^2/L``, on which the paper's condition for convergence rests."""
        return self.certificate.ratio


def certify_step(
    model: nn.Module, inputs: Tensor, targets: Tensor, step_size: float | None = None, *, measured: bool = True
) -> Moment:
    r"""Return what is proved about the next step of gradient descent on the mean square loss over these data.

    Args:
        model: weight-normalized (:func:`~normscope.weight_normalization.chain.read_chain`); it is not changed.
        inputs: all data the loss is over.
        targets: of the shape of the predictions, or class numbers, which become rows with a single one.
        step_size: of the plain step that is judged; ``None`` for the largest one that can be certified.
        measured: use the norms of the activations at the data (a bound for these data); otherwise those that hold for
            every input no longer than these.

    Raises:
        InputError: if the model is not one the theory covers, or the targets do not fit.

    >>> import torch
    >>> from normscope.weight_normalization.network import WeightNormNetwork
    >>> net = WeightNormNetwork(3, width=8, depth=2, seed=0)
    >>> now = certify_step(net, torch.eye(3), torch.ones(3, 1))
    >>> now.certificate.proved, now.certificate.contraction < 1
    (True, True)
    """
    chain, plain = read_chain(model, inputs), in_float64(model)
    inputs, targets = inputs.detach().double(), square_targets(targets, len(chain.output))
    loss, gradient = loss_and_gradient_norm(plain, inputs, targets)
    if not math.isfinite(loss):
        raise InputError("The loss is not finite.")
    norms = activation_norms(chain, plain, inputs)

    def constants(distance: float) -> tuple[float, float]:
        layers, rho = chain.constants(gradient_step=distance), chain.output_norm(moved=distance)
        near = (
            activation_norms_nearby(layers, norms, distance) if measured else activation_norm_bounds(layers, norms[0])
        )
        return gradient_bound(layers, rho, near, output_bias=chain.output_bias), hessian_bound(layers, rho, near)

    def beta(size: float) -> float:
        return smoothness_bound(loss, *constants(size * gradient))

    largest = _largest_step(beta)
    size = largest if step_size is None else step_size
    varrho, hessian = constants(size * gradient)
    smoothness = smoothness_bound(loss, varrho, hessian)
    if not loss > 0 or not size > 0:
        ratio = gradient**2 / loss if loss else 0.0
        certificate = StepCertificate(smoothness, ratio, 1.0 if loss == 0 else math.inf, size)
        alpha = -math.inf
    else:
        certificate = step_certificate(loss, gradient, smoothness, size)
        alpha = restricted_strong_convexity(loss, gradient, 1.0, size * gradient, varrho, hessian)
    return Moment(loss, gradient, chain.least_norm, chain.output_norm(), varrho, hessian, certificate, alpha, largest)


def _largest_step(beta: Callable[[float], float]) -> float:
    """Return the largest step found with ``eta beta(eta) <= 1``, to 1 %; 0 if the theory gives none."""
    at_rest = beta(0.0)
    if not (math.isfinite(at_rest) and at_rest > 0):
        return 0.0
    low, high = 0.0, 1.0 / at_rest  # beta grows with the step, so no step beyond 1/beta(0) is certified
    while high - low > 0.01 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if middle * beta(middle) <= 1.0 else (low, middle)
        if high < 1e-300:
            return 0.0
    return low
