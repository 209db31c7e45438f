"""Outputs past the range of floats: a unit vector and a logarithm, by positive homogeneity."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.statement import statement

#: Maps with ``f(c x) = c f(x)`` for ``c >= 0``.
HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.PReLU, nn.Flatten)


class Scaled(NamedTuple):
    """A vector as ``exp(log) * unit``; ``log`` is ``-inf`` for zero.

    Attributes:
        unit: a vector of norm one, or zero.
        log: natural logarithm of the norm.
    """

    unit: Tensor
    log: float


@statement("normscope", "Proposition EXT-1", holds="layers without bias and positively homogeneous activations")
def scaled_output(network: nn.Sequential, x: Tensor) -> Scaled:
    """Return ``h(x)`` as a unit vector and the logarithm of its norm, however large or small it is.

    Each layer is applied to a unit vector and the norm of what comes out is added as a logarithm. Since ``h`` is
    positively homogeneous, ``||h(x)||/||x||`` is a quotient that it attains.

    Args:
        network: linear layers without bias, and ReLU or its like.
        x: an input, not batched.

    Returns:
        The output; exactly zero if the network is dead there.

    Raises:
        InputError: if a layer is not positively homogeneous.

    >>> from normscope.papers.than2025.extremal.extremal import relu_network, scaled_identity
    >>> deep = relu_network([scaled_identity(2, 2, 3.0, torch.float64)] * 3000)
    >>> round(scaled_output(deep, torch.tensor([1.0, 0.0], dtype=torch.float64)).log - 3000 * math.log(3), 9)
    0.0
    """
    wrong = [
        type(m).__name__
        for m in network
        if not (isinstance(m, nn.Linear) and m.bias is None) and not isinstance(m, HOMOGENEOUS)
    ]
    if wrong:
        raise InputError(f"layers must be linear without bias, or ReLU and its like; got {wrong[0]}")
    logs: list[float] = []
    with torch.no_grad():
        unit = _unit(x.detach(), logs)
        for module in network:
            if logs[-1] == -math.inf:
                return Scaled(unit, -math.inf)
            unit = _unit(module(unit), logs)
    return Scaled(unit, math.fsum(logs) if logs[-1] != -math.inf else -math.inf)


def _unit(x: Tensor, logs: list[float]) -> Tensor:
    """Return a vector divided by its norm, the logarithm of which is appended; its squares stay in range."""
    largest = float(x.abs().max()) if x.numel() else 0.0
    if largest == 0:
        logs.append(-math.inf)
        return x
    moderate = x / largest
    norm = float(torch.linalg.vector_norm(moderate))
    logs.extend((math.log(largest), math.log(norm)))
    return moderate / norm
