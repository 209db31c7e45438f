"""Tests that every run makes of its own products: symmetry, and a difference of gradients."""

import torch
from torch import Tensor

from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.linalg.accumulated import dot, length

#: Step of a difference of gradients relative to the parameters; the best of them counts.
STEPS = (1e-4, 1e-7, 1e-10)


def random_vector(problem: Problem, seed: int) -> Tensor:
    """Return a Gaussian vector of the size of the parameters, the same for every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(problem.dimension, generator=generator, dtype=torch.float64).to(problem.device, problem.dtype)


def symmetry_gap(products: Products, seed: int = 0) -> float:
    r"""Return :math:`|u^T A v - v^T A u| / (\|u\| \|A v\|)` for random vectors: zero up to rounding.

    Args:
        products: the matrix.
        seed: of the vectors.
    """
    u, v = random_vector(products.problem, seed), random_vector(products.problem, seed + 1)
    image = products(v)
    scale = length(u) * length(image)
    return abs(dot(u, image) - dot(v, products(u))) / scale if scale else 0.0


def difference_gap(problem: Problem, vector: Tensor, image: Tensor) -> float:
    r"""Return how far ``H v`` is from a central difference of gradients along ``v``, relative to :math:`\|H v\|`.

    The least over several steps. Activations with kinks need steps so short that none is crossed, which only float64
    can resolve.

    Args:
        problem: the loss, entered as a context, in float64.
        vector: the direction ``v``; the largest eigenvector shows the most.
        image: the product ``H v`` to be tested.
    """
    point, direction = problem.point(), vector.to(problem.dtype)
    norm, scale = length(vector), length(image)
    if not norm or not scale:
        return 0.0
    best = float("inf")
    for step in STEPS:
        h = step * max(length(point), 1.0) / norm
        ahead, behind = (problem.gradient(point + sign * h * direction)[1].double() for sign in (1, -1))
        best = min(best, length((ahead - behind) / (2 * h) - image.double()) / scale)
    return best
