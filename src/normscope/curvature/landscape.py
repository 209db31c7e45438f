"""Slices of the loss: along one or two directions, straight or on the spheres of scale groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.curvature.directions import Directions
from normscope.curvature.problem import Problem
from normscope.curvature.sharpness import metric
from normscope.linalg.accumulated import length, orthogonalized


@dataclass(frozen=True)
class Landscape:
    """The loss on a grid."""

    axes: tuple[np.ndarray, ...]  #: the coordinates along each direction
    loss: np.ndarray  #: on the grid, one axis per direction
    mode: str  #: what BatchNorm did; in ``batch`` mode its statistics are those of the weights of each grid point
    geodesic: bool  #: whether scale groups moved on their spheres


def filter_direction(problem: Problem, seed: int = 0) -> Tensor:
    r"""Return a random direction whose filters have the norms of the weight's filters; vectors (biases) stay fixed.

    Args:
        problem: the loss.
        seed: of the direction.
    """
    random, lengths = problem.random(seed, torch.float64), metric(problem, "filter")
    found = torch.zeros_like(random)
    for block in problem.blocks:
        if len(block.shape) < 2:
            continue
        rows = random[block.place].reshape(block.shape[0], -1)
        wanted = lengths[block.place].reshape(block.shape[0], -1)[:, :1]
        found[block.place] = (rows / rows.norm(dim=1, keepdim=True) * wanted).reshape(-1)
    return found.to(problem.dtype)


def moved(point: Tensor, step: Tensor, spheres: Directions | None = None) -> Tensor:
    r"""Return the parameters after a step, straight or along geodesics of the spheres of scale groups.

    A group ``w`` goes to :math:`\cos(a) w + \sin(a) \|w\| \hat t`, where ``t`` is the part of the step across ``w`` and
    :math:`a = \|t\|/\|w\|`: its length does not change, so that no part of the step is spent on moving along an orbit.

    Args:
        point: the parameters.
        step: the step.
        spheres: scale groups.

    >>> point, step = torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.pi / 2])
    >>> moved(point, step, Directions(point, torch.tensor([0, 0]))).round(decimals=6).abs().tolist()
    [0.0, 1.0]
    """
    wide, step = point.double(), step.double()
    if spheres is None:
        return (wide + step).to(point.dtype)
    inside = spheres.inside
    across = torch.where(inside, spheres.project(step), 0.0)
    size = spheres.sums(across.square()).sqrt()
    angle = size / spheres.lengths
    turned = torch.cos(angle) * wide + torch.where(size > 0, torch.sin(angle) * spheres.lengths / size * across, 0.0)
    return torch.where(inside, turned, wide + step).to(point.dtype)


def landscape(
    problem: Problem,
    directions: Sequence[Tensor],
    *,
    span: float = 1.0,
    points: int = 21,
    spheres: Directions | None = None,
    progress: Callable[[str], None] | None = None,
) -> Landscape:
    """Return the loss on a line or a plane through the parameters.

    Whether BatchNorm sees new statistics at each grid point is a matter of the problem's mode: in ``batch`` mode they
    are those of the moved weights, in ``running`` mode the stored ones.

    Args:
        problem: the loss, entered as a context.
        directions: one or two, such as :func:`filter_direction` or eigenvectors.
        span: largest coordinate along each, both ways.
        points: grid points along each.
        spheres: move scale groups along geodesics.
        progress: called with a line of text at each grid point.

    Raises:
        InputError: if there are not one or two directions.
    """
    if not 1 <= len(directions) <= 2:
        raise InputError(f"Expected one or two directions, got {len(directions)}.")
    axis = np.linspace(-span, span, points)
    shape = (points,) * len(directions)
    values, point = np.zeros(shape), problem.point()
    for number, place in enumerate(np.ndindex(*shape)):
        if progress is not None:
            progress(f"landscape: point {number + 1} of {values.size}")
        step = sum(float(axis[i]) * d.double() for i, d in zip(place, directions, strict=True))
        assert isinstance(step, Tensor)
        values[place] = problem.value(moved(point, step, spheres))
    return Landscape((axis,) * len(directions), values, problem.mode, spheres is not None)


def trajectory(point: Tensor, path: Sequence[Tensor], directions: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the coordinates of a path of parameters in a plane, and the share of each step outside it.

    A drawn trajectory is a shadow in the plane: the share :math:`\|r\|/\|w_t - w\|` outside says what it hides.

    Args:
        point: the origin ``w`` of the plane.
        path: vectors of parameters :math:`w_t`.
        directions: of the plane; they need not be orthogonal.

    >>> p = torch.zeros(3)
    >>> [a.tolist() for a in trajectory(p, [torch.tensor([3.0, 0.0, 4.0])], [torch.tensor([1.0, 0.0, 0.0])])]
    [[[3.0]], [0.8]]
    """
    frame = torch.stack([d.double() for d in directions])
    basis = torch.linalg.qr(frame.mT)[0].mT.contiguous()
    coordinates, outside = [], []
    for at in path:
        difference = at.double() - point.double()
        found = torch.linalg.lstsq(frame.mT, difference[:, None]).solution[:, 0]
        coordinates.append(found.tolist())
        left = orthogonalized(difference.clone(), basis)
        outside.append(length(left) / max(length(difference), 1e-300))
    return np.array(coordinates), np.array(outside)
