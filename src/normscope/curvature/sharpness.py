"""Sharpness: how much the loss rises around the weights, worst case and average, raw and scale-invariant."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.curvature.problem import Problem
from normscope.curvature.trace import Estimate
from normscope.graph.objective import class_scores
from normscope.linalg.accumulated import dot, length

#: Unit of a perturbation: one, the magnitude of each weight, the norm of each filter, the norm of each tensor.
METRICS = ("plain", "elementwise", "filter", "tensor")
#: Added to seeds, so that the noise is independent of other random vectors.
NOISE = 104729


def metric(problem: Problem, kind: str = "plain", floor: float = 1e-12) -> Tensor:
    r"""Return the diagonal ``T`` by which a perturbation :math:`e = T u` is measured.

    Args:
        problem: the loss.
        kind: ``plain`` (ones), ``elementwise`` (:math:`|w_i|`), ``filter`` (norm of the row of a weight, size of
            the entry of a vector) or ``tensor`` (norm of the tensor over the root of its size).
        floor: the least entry.

    Raises:
        InputError: if the kind is unknown.
    """
    if kind not in METRICS:
        raise InputError(f"Unknown metric {kind!r}. Known metrics: {', '.join(METRICS)}.")
    found = torch.ones(problem.dimension, dtype=torch.float64, device=problem.device)
    if kind == "plain":
        return found
    for block, value in zip(problem.blocks, problem.split(problem.point().double()).values(), strict=True):
        place = block.place
        if kind == "elementwise" or (kind == "filter" and value.ndim < 2):
            found[place] = value.abs().reshape(-1)
        elif kind == "filter":
            rows = value.reshape(len(value), -1)
            found[place] = rows.norm(dim=1, keepdim=True).expand_as(rows).reshape(-1)
        else:
            found[place] = float(value.norm()) / value.numel() ** 0.5
    return found.clamp(min=floor)


def worst_rise(problem: Problem, radius: float, *, kind: str = "plain", steps: int = 10) -> float:
    r"""Return :math:`\max_{\|T^{-1} e\| \le \rho} L(w + e) - L(w)` by projected gradient ascent.

    The largest rise that was found is attained, so a lower bound of the true one.

    The first step is that of SAM; with ``kind="elementwise"`` it is adaptive SAM, which elementwise rescaling of the
    network does not change.

    Args:
        problem: the loss, entered as a context.
        radius: ``rho``.
        kind: the metric ``T``, see :func:`metric`.
        steps: gradients to take.
    """
    scale, point = metric(problem, kind), problem.point().double()
    base, gradient = problem.gradient()
    slope = scale * gradient.double()
    best, u = 0.0, torch.zeros_like(slope)
    for step in range(steps):
        norm = length(slope)
        if norm == 0.0:
            break
        u = u + (radius if step == 0 else 0.5 * radius) * slope / norm
        u = u * min(1.0, radius / max(length(u), 1e-300))
        value, gradient = problem.gradient((point + scale * u).to(problem.dtype))
        best = max(best, value - base)
        slope = scale * gradient.double()
    return best


def average_rise(problem: Problem, radius: float, *, kind: str = "plain", samples: int = 20, seed: int = 0) -> Estimate:
    r"""Return :math:`E\,L(w + \rho T \xi) - L(w)`, ``xi`` Gaussian with unit entries, with a 95 % interval.

    Pairs of opposite signs are used, so that the slope cancels. For small ``rho`` it is
    :math:`\tfrac12 \rho^2\, tr(T H T)`.

    Args:
        problem: the loss, entered as a context.
        radius: ``rho``, the standard deviation of the noise in units of ``T``.
        kind: the metric ``T``.
        samples: pairs of noise vectors.
        seed: of the noise.
    """
    scale, point, base = metric(problem, kind), problem.point().double(), problem.value()
    rises = []
    for sample in range(samples):
        noise = radius * scale * problem.random(NOISE + seed + sample, torch.float64)
        values = [problem.value((point + sign * noise).to(problem.dtype)) for sign in (1, -1)]
        rises.append(sum(values) / 2 - base)
    return Estimate.of(0.0, np.array(rises))


def noise_accuracy(
    problem: Problem, radii: Sequence[float], *, kind: str = "plain", samples: int = 10, seed: int = 0
) -> list[float]:
    """Return the accuracy on the data under noise of several sizes on the parameters, the mean over noise vectors.

    Args:
        problem: the loss of a classifier, entered as a context.
        radii: standard deviations of the noise in units of the metric.
        kind: the metric, see :func:`metric`; ``filter`` makes it independent of the scale of normalized weights.
        samples: noise vectors.
        seed: of the noise.

    Raises:
        InputError: if the data have no classes.
    """
    scale, point = metric(problem, kind), problem.point().double()
    found = []
    for radius in radii:
        right = [
            accuracy(problem, (point + radius * scale * noise).to(problem.dtype))
            for noise in (problem.random(NOISE + seed + s, torch.float64) for s in range(samples if radius else 1))
        ]
        found.append(float(np.mean(right)))
    return found


def accuracy(problem: Problem, vector: Tensor | None = None) -> float:
    """Return the share of samples whose class has the largest score at a vector of parameters.

    Raises:
        InputError: if the data have no classes.
    """
    right = total = 0
    with torch.no_grad():
        for term in problem.terms:
            pair = class_scores(problem.outputs(problem.leaves(vector), term), term.inputs.labels)
            if pair is None:
                raise InputError("Accuracy needs class numbers as labels.")
            right += int((pair[0].argmax(1) == pair[1]).sum())
            total += len(pair[1])
    return right / total


def fisher_rao(products_image: Tensor, point: Tensor) -> float:
    r"""Return :math:`w^T G w`, the Fisher-Rao norm; scale groups contribute nothing to it.

    Args:
        products_image: ``G w``, the product of the Gauss-Newton matrix with the parameters.
        point: ``w``.

    >>> fisher_rao(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 1.0]))
    6.0
    """
    return dot(point, products_image)


@statement("normscope", "Stability thresholds", holds="a quadratic loss; full-batch steps with a constant rate")
def stability_threshold(rate: float, *, momentum: float = 0.0, betas: tuple[float, float] | None = None) -> float:
    r"""Return the eigenvalue above which steps of an optimizer diverge on a quadratic loss.

    Gradient descent: :math:`2/\eta`; heavy ball: :math:`(2 + 2\beta)/\eta`; Adam with a frozen preconditioner ``P``,
    for the eigenvalues of :math:`P^{-1} H`: :math:`(2 + 2\beta_1)/((1 - \beta_1)\eta)`.

    Args:
        rate: the learning rate.
        momentum: of the heavy ball.
        betas: of Adam.

    Raises:
        InputError: if the rate is not positive.

    >>> round(stability_threshold(0.1), 6), round(stability_threshold(1.0, momentum=0.9), 6)
    (20.0, 3.8)
    >>> round(stability_threshold(1.0, betas=(0.9, 0.999)), 6)
    38.0
    """
    if not rate > 0:
        raise InputError(f"Expected a positive learning rate, got {rate}.")
    if betas is not None:
        return (2 + 2 * betas[0]) / ((1 - betas[0]) * rate)
    return (2 + 2 * momentum) / rate
