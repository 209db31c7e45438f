"""Small networks of many seeds at once: every tensor has the seeds along its first axis."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import Loss, Point

#: What networks are called in charts: with BatchNorm, and without.
NAMES = {True: "BatchNorm", False: "plain"}


def seeded_normal(seed: int, seeds: int, *shape: int) -> Tensor:
    """Return Gaussian numbers in float64, one generator per seed: a seed gives the same numbers in any batch.

    >>> bool((seeded_normal(0, 3, 2)[1] == seeded_normal(1, 1, 2)[0]).all())
    True
    """
    rows = []
    for k in range(seeds):
        generator = torch.Generator().manual_seed(1_000_003 * (seed + k) + 17)
        rows.append(torch.randn(shape, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def weights(seed: int, seeds: int, widths: Sequence[int], gain: float = 1.0) -> dict[str, Tensor]:
    """Return weights of variance gain^2/inputs: W0, W1, ... of hidden layers and V of the last one.

    >>> {name: tuple(value.shape) for name, value in weights(0, 2, (3, 4, 1)).items()}
    {'W0': (2, 4, 3), 'V': (2, 1, 4)}
    """
    found = {}
    for k, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        name = f"W{k}" if k < len(widths) - 2 else "V"
        found[name] = gain * seeded_normal(seed + 1000 * (k + 1), seeds, outputs, inputs) / math.sqrt(inputs)
    return found


def output(point: Point, x: Tensor, *, norm: bool, activation: Callable[[Tensor], Tensor], eps: float = 1e-5) -> Tensor:
    """Return the outputs of networks without biases, optionally with BatchNorm (not affine) after each hidden layer.

    >>> output(weights(0, 2, (3, 4, 1)), seeded_normal(5, 2, 6, 3), norm=True, activation=torch.tanh).shape
    torch.Size([2, 6, 1])
    """
    h = x
    for k in range(len(point) - 1):
        z = h @ point[f"W{k}"].mT
        h = activation(standardized(z, eps, -2)[0] if norm else z)
    return h @ point["V"].mT


def square_losses(x: Tensor, target: Tensor, *, norm: bool, activation: Callable[[Tensor], Tensor]) -> Loss:
    """Return half the mean squared error of every seed, as a function of the weights.

    >>> start, x = weights(0, 2, (3, 4, 1)), seeded_normal(5, 2, 6, 3)
    >>> square_losses(x, x[..., :1], norm=False, activation=torch.relu)(start).shape
    torch.Size([2])
    """
    return lambda p: (output(p, x, norm=norm, activation=activation) - target).square().mean((1, 2)) / 2


def length(point: Point) -> Tensor:
    """Return the Euclidean norm of all parameters, one number per seed.

    >>> length({"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([[4.0], [1.0]])}).tolist()
    [5.0, 1.0]
    """
    return torch.stack([value.flatten(1).square().sum(1) for value in point.values()]).sum(0).sqrt()


def module(point: Point, place: int, *, norm: bool, activation: type[nn.Module], eps: float = 1e-5) -> nn.Sequential:
    """Return the network of one seed as a module, for measurements of curvature.

    >>> len(module(weights(0, 2, (3, 4, 1)), 1, norm=True, activation=nn.Tanh))
    4
    """
    layers: list[nn.Module] = []
    for name, value in point.items():
        weight = value[place].detach().clone()
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        linear.weight = nn.Parameter(weight)
        layers.append(linear)
        if name != "V":
            layers += [nn.BatchNorm1d(len(weight), eps=eps, affine=False, dtype=weight.dtype)] if norm else []
            layers.append(activation())
    return nn.Sequential(*layers)


def seed_range(values: Any) -> dict[str, float]:
    """Return the median, minimum and maximum over seeds; NaN counts as infinite.

    >>> seed_range([1.0, 2.0, float("nan")])
    {'median': 2.0, 'least': 1.0, 'most': inf}
    """
    numbers = np.asarray(values, dtype=float)
    numbers = np.where(np.isnan(numbers), np.inf, numbers)
    return {"median": float(np.median(numbers)), "least": float(numbers.min()), "most": float(numbers.max())}
