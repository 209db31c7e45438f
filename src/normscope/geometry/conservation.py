r"""Conservation laws of scale-invariant weights: what is predicted, what is measured, and where the difference is from.

``<w, grad L> = 0`` makes ``||w||^2`` a constant of gradient flow, and lets gradient descent change it by
``eta^2 ||grad L||^2`` a step exactly. With ``eps > 0`` in the normalizer a small radial gradient is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.discover import Symmetries
from normscope.geometry.flow import gradient_of
from normscope.geometry.growth import square_after_flow, square_after_step
from normscope.geometry.optim.spheres import blocks_of, spheres_of


@dataclass(frozen=True)
class Law:
    """The squared length of one weight vector after a run, as predicted and as measured.

    Attributes:
        parameter: the weight.
        block: which of its vectors.
        start: squared length before.
        predicted: squared length by the law.
        measured: squared length found.
        eps: the part of the difference that the radial gradient of the stabilizer makes.
        discretization: the part that the integrator of the flow makes; 0 for steps, whose law is exact.
        rounding: what is left.
    """

    parameter: str
    block: int
    start: float
    predicted: float
    measured: float
    eps: float
    discretization: float
    rounding: float

    @property
    def difference(self) -> float:
        """Return predicted minus measured."""
        return self.predicted - self.measured


def conservation(
    found: Symmetries,
    *,
    law: str = "steps",
    rate: float = 0.1,
    decay: float = 0.0,
    steps: int = 10,
    time: float = 1.0,
    targets: Sequence[Tensor] | None = None,
    exact: bool = False,
) -> list[Law]:
    """Run gradient descent or gradient flow in float64 and compare the lengths of scale-invariant weights with the law.

    Args:
        found: the symmetries of the model; its batch is the data.
        law: ``steps`` for gradient descent with decoupled weight decay, ``flow`` for gradient flow.
        rate: the learning rate of the steps.
        decay: the weight decay.
        steps: how many steps.
        time: how long the flow runs.
        targets: what the outputs are compared with; random by default.
        exact: set the eps of every normalizer to zero.

    Returns:
        One law for each weight vector.

    Raises:
        InputError: if the law is unknown.
    """
    if law not in ("steps", "flow"):
        raise InputError(f"Expected law 'steps' or 'flow', got {law!r}.")
    function = found.function.exact() if exact else found.function
    spheres = spheres_of(found)
    if not spheres:
        return []
    goal = function.targets() if targets is None else targets

    def loss(point: Mapping[str, Tensor]) -> Tensor:
        return function.value(point, goal)

    if law == "steps":
        return _steps(loss, function.point, spheres, rate, decay, steps)
    return _flow(loss, function.point, spheres, decay, time)


def _squares(point: Mapping[str, Tensor], spheres: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the squared length of every vector."""
    return {name: blocks_of(point[name], blocks).square().sum(1) for name, blocks in spheres.items()}


def _radial(point: Mapping[str, Tensor], other: Mapping[str, Tensor], spheres: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the inner products of weights with something else, vector by vector."""
    return {n: (blocks_of(point[n], b) * blocks_of(other[n], b)).sum(1) for n, b in spheres.items()}


def _steps(
    loss: Any, start: Mapping[str, Tensor], spheres: Mapping[str, int], rate: float, decay: float, steps: int
) -> list[Law]:
    """Run gradient descent and compare."""
    point = dict(start)
    before = _squares(point, spheres)
    predicted = {name: value.clone() for name, value in before.items()}
    eps = {name: torch.zeros_like(value) for name, value in before.items()}
    keep = 1 - rate * decay
    for _ in range(steps):
        gradient = gradient_of(loss, point)
        radial, sizes = _radial(point, gradient, spheres), _squares(gradient, spheres)
        for name in spheres:
            grown = [square_after_step(s, g, rate, decay) for s, g in zip(predicted[name], sizes[name], strict=True)]
            predicted[name] = torch.stack(grown)  # type: ignore[arg-type]
            eps[name] = keep**2 * eps[name] + 2 * rate * keep * radial[name]
        point = {name: keep * value - rate * gradient[name] for name, value in point.items()}
    return _laws(before, predicted, _squares(point, spheres), eps, None)


def _flow(loss: Any, start: Mapping[str, Tensor], spheres: Mapping[str, int], decay: float, time: float) -> list[Law]:
    """Integrate gradient flow with error control, the radial work beside it, and compare."""
    from scipy.integrate import solve_ivp

    sizes = [value.numel() for value in start.values()]
    count = sum(sizes)

    def unpacked(flat: np.ndarray) -> dict[str, Tensor]:
        parts = torch.from_numpy(flat[:count].copy()).split(sizes)
        return {name: p.reshape(start[name].shape) for name, p in zip(start, parts, strict=True)}

    def speed(_: float, flat: np.ndarray) -> np.ndarray:
        point = unpacked(flat)
        gradient = gradient_of(loss, point)
        moved = [(-gradient[name] - decay * value).reshape(-1) for name, value in point.items()]
        work = torch.cat([-2 * r for r in _radial(point, gradient, spheres).values()])
        work = work - 2 * decay * torch.from_numpy(flat[count:].copy())
        return torch.cat([*moved, work]).numpy()

    before = _squares(start, spheres)
    vectors = sum(len(value) for value in before.values())
    flat = torch.cat([*(value.reshape(-1) for value in start.values()), torch.zeros(vectors, dtype=torch.float64)])
    run = solve_ivp(speed, (0.0, time), flat.numpy(), method="DOP853", rtol=1e-10, atol=1e-12)
    end = run.y[:, -1]
    gained = torch.from_numpy(end[count:].copy()).split([len(value) for value in before.values()])
    predicted = {n: torch.tensor([square_after_flow(float(s), decay, time) for s in v]) for n, v in before.items()}
    eps = {name: -part for name, part in zip(before, gained, strict=True)}
    return _laws(before, {n: v.double() for n, v in predicted.items()}, _squares(unpacked(end), spheres), eps, time)


def _laws(
    before: Mapping[str, Tensor],
    predicted: Mapping[str, Tensor],
    measured: Mapping[str, Tensor],
    eps: Mapping[str, Tensor],
    time: float | None,
) -> list[Law]:
    """Return the laws, what eps does not explain going to the integrator of a flow, or to rounding."""
    found = []
    for name in before:
        for i in range(len(before[name])):
            gap = float(predicted[name][i] - measured[name][i])
            left = gap - float(eps[name][i])
            ulp = 8 * torch.finfo(torch.float64).eps * float(measured[name][i])
            rounding = left if time is None else max(-ulp, min(ulp, left))
            values = (float(before[name][i]), float(predicted[name][i]), float(measured[name][i]), float(eps[name][i]))
            found.append(Law(name, i, *values, left - rounding, rounding))
    return found
