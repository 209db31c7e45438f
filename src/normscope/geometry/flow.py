r"""Gradient flow ``d theta/dt = -grad L(theta)`` of a loss of named parameters, integrated with error control."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

#: Parameters, or a direction of them, by name.
Point = Mapping[str, Tensor]
Loss = Callable[[Point], Tensor]


def gradient_of(loss: Loss, point: Point) -> dict[str, Tensor]:
    """Return the gradient of a loss with respect to every named parameter; the parameters themselves are not touched.

    >>> gradient_of(lambda p: (p["w"] ** 2).sum(), {"w": torch.tensor([3.0])})["w"].tolist()
    [6.0]
    """
    with torch.enable_grad():
        leaves = {name: value.detach().clone().requires_grad_() for name, value in point.items()}
        found = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {name: value.detach() for name, value in zip(leaves, found, strict=True)}


def packed(point: Point) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([value.reshape(-1) for value in point.values()])


def unpacked(flat: Tensor, like: Point) -> dict[str, Tensor]:
    """Return a vector as named parameters of the shapes of others.

    >>> unpacked(packed({"w": torch.ones(1, 2), "b": torch.zeros(1)}), {"w": torch.ones(1, 2), "b": torch.zeros(1)})
    {'w': tensor([[1., 1.]]), 'b': tensor([0.])}
    """
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def integrated(speed: Callable[[Tensor], Tensor], start: Tensor, time: float) -> Tensor:
    """Return the solution of ``dx/dt = speed(x)`` after a time: Runge-Kutta of order 8, relative tolerance 1e-10.

    >>> round(float(integrated(lambda x: -x, torch.ones(1).double(), 1.0)), 9)
    0.367879441
    """
    from scipy.integrate import solve_ivp

    def slope(_: float, x: np.ndarray) -> np.ndarray:
        return speed(torch.from_numpy(x.copy())).numpy()

    run = solve_ivp(slope, (0.0, time), start.numpy(), method="DOP853", rtol=1e-10, atol=1e-12)
    return torch.from_numpy(run.y[:, -1].copy())


def gradient_flow(loss: Loss, point: Point, time: float, decay: float = 0.0) -> dict[str, Tensor]:
    r"""Return where the flow ``d theta/dt = -grad L(theta) - lambda theta`` arrives after a time.

    Args:
        loss: a scalar function of the parameters.
        point: the start, in float64.
        time: how long to integrate.
        decay: the weight decay ``lambda``.

    >>> end = gradient_flow(lambda p: (p["w"] ** 2).sum() / 2, {"w": torch.ones(1, dtype=torch.float64)}, 1.0)
    >>> round(float(end["w"]), 9)
    0.367879441
    """

    def speed(at: Tensor) -> Tensor:
        return -packed(gradient_of(loss, unpacked(at, point))) - decay * at

    return unpacked(integrated(speed, packed(point).detach(), time), point)
