"""Constants of other libraries, on all inputs and around a point."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout

import torch
from torch import Tensor, nn

from benchmarks.machine import Clock


def eclipse(model: nn.Module, method: str) -> tuple[float, float]:
    """Return what eclipse-nn proves on all inputs and its CPU time.

    Args:
        model: linear layers and ReLUs.
        method: ``ECLipsE`` or ``ECLipsE_Fast``.
    """
    from eclipse_nn.LipConstEstimator import LipConstEstimator

    start = Clock.now()
    with redirect_stdout(io.StringIO()):
        value = float(LipConstEstimator(model=model.double()).estimate(method=method))
    return value, start.since().cpu


def lirpa(model: nn.Module, x: Tensor, radius: float) -> tuple[float, float]:
    """Return an l2 constant on a ball from auto_LiRPA's bounds of every entry of the Jacobian, and its CPU time.

    With bounds ``[l, u]`` it is the smaller of ``|max(|l|, |u|)|`` and ``|(l + u)/2| + |(u - l)/2|``.
    """
    from auto_LiRPA import BoundedModule, BoundedTensor
    from auto_LiRPA.jacobian import JacobianOP
    from auto_LiRPA.perturbations import PerturbationLpNorm

    class Jacobian(nn.Module):
        """The Jacobian of a model."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, z: Tensor) -> Tensor:
            """Return the Jacobian at a point."""
            return JacobianOP.apply(self.model(z), z)

    start = Clock.now()
    with redirect_stdout(io.StringIO()):
        bounded = BoundedModule(Jacobian(), x, device="cpu")
        ball = BoundedTensor(x, PerturbationLpNorm(norm=2, eps=radius))
        low, high = (b.detach().sum(0).double() for b in bounded.compute_jacobian_bounds(ball))
    largest, middle, half = torch.maximum(low.abs(), high.abs()), (low + high) / 2, (high - low) / 2
    norms = [float(torch.linalg.matrix_norm(m, 2)) for m in (largest, middle, half)]
    return min(norms[0], norms[1] + norms[2]), start.since().cpu


def tried(peer: Callable[[], tuple[float, float]]) -> tuple[float, float, str]:
    """Return a peer's value and CPU time, or its error."""
    try:
        return *peer(), ""
    except Exception as error:  # whatever stops a peer is shown beside its name
        return float("nan"), 0.0, f"{type(error).__name__}: {error}"[:200]
