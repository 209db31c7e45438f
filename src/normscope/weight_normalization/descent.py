r"""Gradient descent on the square loss: smoothness, restricted strong convexity, and a certificate for each step.

The loss is :math:`\hat L(\theta) = \frac1n \sum_i \|y_i - f(\theta; x_i)\|^2`. Let :math:`\varrho` bound the Jacobian
of ``f`` in the parameters and :math:`c_H` its Hessian (:mod:`normscope.weight_normalization.predictor`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement


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
    r"""What is proved about one step of gradient descent.

    Attributes:
        smoothness: ``beta`` on the segment of the step.
        ratio: ``mu = ||grad L||^2/L``.
        contraction: the loss after the step is at most this times the loss before it; above 1, nothing is proved.
        step_size: ``eta``.
    """

    smoothness: float
    ratio: float
    contraction: float
    step_size: float

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
