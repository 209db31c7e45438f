"""Corollary 11 of than2025 at its worst: LayerNorm near a constant input, whose constant is no reduction."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.core.rounding import down, up
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS, Kind, Value
from normscope.papers.than2025.extremal.extremal import Extremal, linear

_ACTIVATIONS = {"relu": nn.ReLU, "identity": nn.Identity}
#: How far below its bound the spread of every layer's input stays, so that eps decides alone.
_BELOW = 1e-4


@statement(
    "than2025", "Corollary 11", holds="attained up to a factor: LayerNorm multiplies the constant by 1/sqrt(eps)"
)
def layer_norm_blow_up(
    width: int, depth: int, eps: float = 1e-5, activation: str = "relu", dtype: torch.dtype = torch.float64
) -> Extremal:
    """Return a network of weights ``I`` with LayerNorm whose constant is nearly ``eps^(-K/2)``; without it, one.

    With ReLU and ``v = (1, -1/(n - 1), ...)``: at ``t v`` the Jacobian goes to ``(1 - 1/n)^(K - 1) eps^(-K/2) e_1
    e_1^T P`` as ``t`` goes to zero, so the constant is at least ``sqrt(1 - 1/n) (1 - 1/n)^(K - 1) eps^(-K/2)``, and
    at most ``eps^(-K/2)``. With the identity it is ``eps^(-K/2)``, attained at zero.

    Args:
        width: ``n >= 2``.
        depth: ``K``, layers of weight, LayerNorm and activation.
        eps: of LayerNorm, positive.
        activation: ``relu`` or ``identity``.
        dtype: of the weights.

    Returns:
        The network; ``constant`` is the upper bound and ``attained`` the lower one. ``point`` is zero where floats end
        before ``t`` is small enough; the constant is then approached where floats cannot follow.

    Raises:
        InputError: if an argument is out of range.

    >>> net = layer_norm_blow_up(16, 4)
    >>> f"{net.attained.value:.5g} {net.constant.value:.5g}"
    '7.9781e+09 1e+10'
    """
    for n, least, name in ((width, 2, "width"), (depth, 1, "depth")):
        if isinstance(n, bool) or not isinstance(n, int) or n < least:
            raise InputError(f"Expected {name} to be an integer of at least {least}, got {n!r}.")
    if not (math.isfinite(eps) and eps > 0):
        raise InputError(f"Expected eps > 0 (LayerNorm has no constant without it), got {eps}.")
    if activation not in _ACTIVATIONS:
        raise InputError(f"Expected activation to be {' or '.join(_ACTIVATIONS)}, got {activation!r}.")
    layers: list[nn.Module] = []
    for _ in range(depth):
        norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        layers += [linear(torch.eye(width, dtype=dtype)), norm, _ACTIVATIONS[activation]()]
    label = "than2025 Corollary 11"
    each = Value.of(up(1 / math.sqrt(eps), 4.0), Kind.CERTIFIED)
    constant = Value((each**depth).log, Kind.CERTIFIED, ALL_INPUTS, statement=label)
    attained = Value(_least_log(width, depth, eps, activation), Kind.LOWER, ALL_INPUTS, statement=label)
    direction = torch.full((width,), -1.0 / (width - 1), dtype=dtype)
    direction[0] = 1.0
    point = _size(width, depth, eps, activation, dtype) * direction
    return Extremal(nn.Sequential(*layers), constant, attained, point, direction / torch.linalg.vector_norm(direction))


def _least_log(n: int, depth: int, eps: float, activation: str) -> float:
    """Return a lower bound of the logarithm of the constant."""
    each = Value.of(down(1 / math.sqrt(eps), 4.0), Kind.LOWER) ** depth
    if activation == "identity":
        return each.log
    share = Fraction(n - 1, n)
    half = Value.of(down(float(share), 2.0), Kind.LOWER) ** (depth - 0.5)
    return (each * half).log


def _size(n: int, depth: int, eps: float, activation: str, dtype: torch.dtype) -> float:
    """Return ``t`` so small that every layer's input has a spread far below ``sqrt(eps)``; zero where floats end."""
    if activation == "identity":
        return 0.0
    size = _BELOW * math.exp(0.5 * depth * math.log(eps) if depth * math.log(eps) > -1400 else -math.inf)
    return size if size > n * float(torch.finfo(dtype).tiny) else 0.0
