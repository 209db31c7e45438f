"""Networks whose constant is known exactly, and their parts.

Theorem 6 allows any widths, depth and product of norms; Corollary 11 is at its worst for LayerNorm near a constant
input, where LayerNorm does not reduce the constant.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.numbers import check_count
from normscope.core.rounding import down, up
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS, Kind, Value, product
from normscope.lipschitz.loss.reduction import root_up


@dataclass(frozen=True)
class Extremal:
    """A network whose constant is known exactly."""

    module: nn.Module  #: the network
    constant: Value  #: its Lipschitz constant, rounded up
    attained: Value  #: the same constant, rounded down: no tool may report less as an upper bound
    point: Tensor  #: the input at which it is attained, or near which it is approached
    direction: Tensor  #: the direction there along which it is: of the input, or of the weight of ``layer``
    #: the layer with respect to whose weight it is the constant, from one; ``None`` for the input
    layer: int | None = None
    printed: Value | None = None  #: what the paper prints for it


def checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Return the widths ``n_0, ..., n_K`` of a network."""
    given = tuple(widths)
    if len(given) < 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in given):
        raise InputError(f"Expected at least two positive integers (input first) as widths, got {given}.")
    return given


def checked_scales(scales: Sequence[float] | float, depth: int, dtype: torch.dtype) -> tuple[float, ...]:
    """Return one scale per layer, rounded to a dtype; a single number is used for all layers."""
    given = (float(scales),) * depth if isinstance(scales, int | float) else tuple(float(a) for a in scales)
    if len(given) != depth:
        raise InputError(f"Expected one scale for each of the {depth} layers, got {len(given)}.")
    held = tuple(float(torch.tensor(a, dtype=dtype)) for a in given)
    for a, b in zip(given, held, strict=True):
        if not (math.isfinite(b) and a >= 0) or (b == 0) != (a == 0):
            raise InputError(f"Expected finite scales >= 0 within the range of {dtype}, got {a}.")
    return held


def check_layer(layer: int, depth: int) -> None:
    """Raise unless a layer is one of ``1, ..., K``."""
    if isinstance(layer, bool) or not isinstance(layer, int) or not 1 <= layer <= depth:
        raise InputError(f"Expected a layer from 1 to {depth}, got {layer}.")


def scaled_identity(rows: int, columns: int, scale: float, dtype: torch.dtype) -> Tensor:
    """Return ``a I``: a rectangular identity, padded with zeros, times ``a``.

    >>> scaled_identity(2, 3, 5.0, torch.float64).tolist()
    [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    """
    return scale * torch.eye(rows, columns, dtype=dtype)


def scaled_identities(widths: Sequence[int], scales: Sequence[float], dtype: torch.dtype) -> list[Tensor]:
    """Return ``a_k I_k`` for every layer."""
    sizes = zip(widths[1:], widths[:-1], scales, strict=True)
    return [scaled_identity(rows, columns, a, dtype) for rows, columns, a in sizes]


def linear(weight: Tensor) -> nn.Linear:
    """Return a linear layer without bias that holds a weight; nothing random is drawn.

    >>> linear(torch.ones(2, 3))(torch.ones(3)).tolist()
    [3.0, 3.0]
    """
    rows, columns = weight.shape
    layer = nn.Linear(columns, rows, bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


def relu_network(weights: Sequence[Tensor]) -> nn.Sequential:
    """Return ``relu W_K ... relu W_1``, with an activation after every layer as in Definition 4 of than2025."""
    return nn.Sequential(*(module for weight in weights for module in (linear(weight), nn.ReLU())))


def both_sides(
    factors: Sequence[float], statement: str, domain: str, norm: Fraction | None = None
) -> tuple[Value, Value]:
    """Return ``prod factors`` times the root of ``norm``, as a value rounded up and as one rounded down.

    Factors and ``norm``, a square, are exact.
    """
    upper = [Value.of(a, Kind.CERTIFIED) for a in factors]
    lower = [Value.of(a, Kind.LOWER) for a in factors]
    if norm is not None and norm != 1:
        root = root_up(norm)
        exact = Fraction(root) ** 2 == norm
        upper.append(Value.of(root, Kind.CERTIFIED))
        lower.append(Value.of(root if exact else math.nextafter(root, 0.0), Kind.LOWER))
    high, low = product(upper), product([Value(0.0, Kind.LOWER), *lower])
    return replace(high, domain=domain, statement=statement), replace(low, domain=domain, statement=statement)


def square_norm(x: Tensor) -> Fraction:
    """Return ``||x||^2``, exact.

    >>> square_norm(torch.tensor([3.0, 4.0]))
    Fraction(25, 1)
    """
    return sum((Fraction(v) ** 2 for v in x.reshape(-1).tolist()), Fraction(0))


def checked_input(x: Tensor | None, width: int, dtype: torch.dtype) -> Tensor:
    """Return an input of the network, by default the first unit vector."""
    if x is None:
        return scaled_identity(1, width, 1.0, dtype)[0]
    if x.shape != (width,) or x.is_complex():
        raise InputError(f"Expected a real vector of {width} numbers, got shape {tuple(x.shape)}.")
    held = x.detach().to("cpu", dtype)
    if not bool(torch.isfinite(held).all()):
        raise NonFiniteError("The input contains NaN or infinity.")
    return held


@statement("than2025", "Theorem 6")
def theorem_6(widths: Sequence[int], scales: Sequence[float] | float, dtype: torch.dtype = torch.float64) -> Extremal:
    """Return the ReLU network with ``W_k = a_k I_k``, whose Lipschitz constant is ``prod a_k``, exactly.

    It keeps the first ``r = min n_k`` coordinates, so it is ``(prod a_k) relu`` of them. The constant is attained
    between zero and the first unit vector, and at every input with a positive coordinate among the first ``r``.

    Args:
        widths: ``n_0, ..., n_K``, input first.
        scales: ``a_1, ..., a_K >= 0``, or one number for all.
        dtype: of the weights; the constant is that of the scales as it holds them.

    Returns:
        The network and its constant, a logarithm where it is past the range of floats.

    >>> net = theorem_6([5, 3, 7, 2, 4], [2.0, 0.5, 3.0, 1.5])
    >>> round(net.constant.value, 12), net.module(net.point).norm().item()
    (4.5, 4.5)
    >>> round(theorem_6([2] * 5001, 3.0).constant.log10, 6)
    2385.606274
    """
    shape = checked_widths(widths)
    held = checked_scales(scales, len(shape) - 1, dtype)
    constant, attained = both_sides(held, "than2025 Theorem 6", ALL_INPUTS)
    point = checked_input(None, shape[0], dtype)
    return Extremal(relu_network(scaled_identities(shape, held, dtype)), constant, attained, point, point)


@statement("than2025", "Remark 7", holds="scales bounded away from one: all >= 1 + c, or all <= 1 - c, with c > 0")
def remark_7(scales: Sequence[float]) -> tuple[float, float]:
    """Return the rates between which a product grows: ``min`` and ``max`` of ``log a_k``.

    ``exp(K low) <= prod a_k <= exp(K high)``. Only a positive ``low`` (or negative ``high``) that does not depend on
    the depth makes growth (or decay) exponential: scales above one are not enough, ``prod (1 + 2^-k)`` is
    below 2.385.

    Args:
        scales: ``a_1, ..., a_K``, positive.

    Returns:
        ``(low, high)``.

    >>> remark_7([2.0, 2.0]) == (math.log(2), math.log(2))
    True
    >>> remark_7([1 + 2.0**-k for k in range(1, 40)])[0] < 1e-11
    True
    """
    if not scales or not all(a > 0 and math.isfinite(a) for a in scales):
        raise InputError(f"Expected positive scales, at least one; got {list(scales)[:4]}.")
    return min(map(math.log, scales)), max(map(math.log, scales))


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

    >>> net = layer_norm_blow_up(16, 4)
    >>> f"{net.attained.value:.5g} {net.constant.value:.5g}"
    '7.9781e+09 1e+10'
    """
    check_count(width, "width", least=2)
    check_count(depth, "depth", least=1)
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
