r"""How training changes the norm of scale-invariant weights, whose gradients are orthogonal: ``<w, grad L(w)> = 0``."""

import math

from normscope.core.errors import InputError
from normscope.core.rounding import require_nonnegative
from normscope.core.statement import statement


@statement("akbar2025", "Lemma 5.1 (steps)", holds="corrected: steps of any size grow the norm; decoupled weight decay")
@statement("cisneros2025", "Open Question 1", holds="gradient steps on any batch, no momentum; decay = 0 for monotony")
def square_after_step(square: float, gradient_square: float, step: float, decay: float = 0.0) -> float:
    r"""Return ``||w+||^2 = (1 - eta lambda)^2 ||w||^2 + eta^2 ||grad||^2`` after one step.

    The step is ``w+ = (1 - eta lambda) w - eta grad`` with ``<w, grad> = 0``.

    Without decay the norm never falls, whatever the batch and the step: ``min_i ||v_i||`` of weight normalization stays
    above its initial value.

    Args:
        square: ``||w||^2``.
        gradient_square: the squared norm of the (mini-)batch gradient.
        step: the learning rate ``eta``.
        decay: the decoupled weight decay ``lambda``.

    >>> square_after_step(4.0, 9.0, 0.5)
    6.25
    """
    shrink = 1.0 - step * require_nonnegative(decay, "decay")
    return shrink**2 * require_nonnegative(square, "square") + step**2 * gradient_square


@statement("akbar2025", "Section 9.5 (momentum)", holds="heavy ball, fixed step, started at rest; scale-invariant loss")
def growth_after_heavy_ball(last_growth: float, last_move_square: float, move_square: float, momentum: float) -> float:
    r"""Return ``||w_{t+1}||^2 - ||w_t||^2 = mu (||w_t||^2 - ||w_{t-1}||^2) + mu ||p_t||^2 + ||p_{t+1}||^2``.

    ``p_{t+1} = w_{t+1} - w_t = mu p_t - eta grad``. Proof: ``<w_t, grad> = 0`` gives ``2 <w_t, p_{t+1}> = 2 mu <w_t,
    p_t>``, and ``2 <w_t, p_t> = ||w_t||^2 - ||w_{t-1}||^2 + ||p_t||^2``. Hence a start at rest never loses norm.

    Args:
        last_growth: ``||w_t||^2 - ||w_{t-1}||^2``, 0 at the start.
        last_move_square: ``||p_t||^2``, 0 at the start.
        move_square: ``||p_{t+1}||^2``.
        momentum: ``mu``, in [0, 1).

    >>> growth_after_heavy_ball(1.0, 1.0, 2.0, 0.5)
    3.0
    """
    return momentum * (last_growth + last_move_square) + move_square


@statement("akbar2025", "Section 5.1 (weight decay)", holds="corrected by the factor 2; scale-invariant loss, eps = 0")
def square_after_flow(square: float, decay: float, time: float) -> float:
    r"""Return ``||w(t)||^2 = exp(-2 lambda t) ||w(0)||^2`` under ``dw/dt = -grad L(w) - lambda w``.

    >>> round(square_after_flow(1.0, 0.05, 20.0), 5)
    0.13534
    """
    return require_nonnegative(square, "square") * math.exp(-2.0 * decay * time)


@statement("akbar2025", "Section 5.1 (equilibrium)", holds="decoupled weight decay, constant spherical gradient norm G")
def equilibrium_norm(step: float, decay: float, spherical_gradient: float) -> float:
    r"""Return the norm at which growth and decay balance: ``||w||^4 = eta G^2/(2 lambda - eta lambda^2)``.

    Args:
        step: the learning rate ``eta``.
        decay: the weight decay ``lambda``, with ``0 < eta lambda < 2``.
        spherical_gradient: ``G = ||w|| ||grad||``, the gradient norm on the unit sphere.

    Raises:
        InputError: if ``eta lambda`` is not in (0, 2), where there is no balance.

    >>> round(equilibrium_norm(0.1, 0.01, 2.0), 4)
    2.115
    """
    if not 0.0 < step * decay < 2.0:
        raise InputError(f"Growth and decay balance only for 0 < step * decay < 2, got {step * decay}.")
    return math.sqrt(math.sqrt(step * spherical_gradient**2 / (2.0 * decay - step * decay**2)))


@statement(
    "normscope", "Equilibrium angle", holds="decay added to the gradient, at equilibrium, to first order in eta lambda"
)
def equilibrium_angle(step: float, decay: float, momentum: float = 0.0) -> float:
    r"""Return the angle by which a scale-invariant weight turns at equilibrium: ``sqrt(2 eta lambda/(1 + mu))``.

    At equilibrium the growth ``eta^2 ||grad||^2`` makes up for the decay ``2 eta lambda ||w||^2``, and the angle of one
    step is ``eta ||grad||/||w||``. With momentum the decay is part of what is accumulated, as in ``torch.optim.SGD``; a
    decay that is applied to the weights apart from it gives ``sqrt(2 eta lambda (1 - mu)/(1 + mu))``.

    Args:
        step: the learning rate ``eta``.
        decay: the weight decay ``lambda``, added to the gradient.
        momentum: ``mu`` of the heavy ball.

    >>> round(equilibrium_angle(0.1, 0.05), 6)
    0.1
    """
    return math.sqrt(2.0 * step * require_nonnegative(decay, "decay") / (1.0 + momentum))
