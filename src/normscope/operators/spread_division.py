"""Normalizers of activations: each is centring, division by a spread, then an affine map.

Only the division is nonlinear. It becomes an atom; centring and the affine map stay linear and are measured together
with their neighbours.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.operators.arithmetic import times, total
from normscope.operators.expression import Expr, LinearOp, linear
from normscope.operators.layout import kept_axes, reshaped, scaled, shifted
from normscope.operators.nonlinear import INF, Context, Lip, Nonlinear, Range
from normscope.operators.registry import Call


@dataclass(frozen=True)
class Spread:
    """How a normalizer divides: by ``sqrt(k m2 + eps)``, ``sqrt(k m2) + eps`` or ``max(sqrt(k m2), eps)``."""

    view: tuple[int, ...]  #: shape under which the groups are whole axes
    axes: tuple[int, ...]  #: the axes of the view that make up one group
    eps: float  #: the stabilizer
    centered: bool  #: m2 is the variance (biased), otherwise the mean square
    #: k; 1 for LayerNorm and RMSNorm, n/(n-1) for an unbiased variance, n for division by the l2 norm
    factor: float = 1.0
    where: str = "inside"  #: ``inside``, ``outside`` or ``max``
    #: the axis of the view that holds channels or channel groups, if groups of different channels are kept apart;
    #: groups of different samples and tokens never are
    channel_axis: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.eps < math.inf:
            raise InputError(
                f"Expected the eps of a normalizer to be a finite number >= 0, got {self.eps}. Correct the layer."
            )

    @property
    def size(self) -> int:
        """Return n, the number of entries of a group."""
        return math.prod(self.view[a] for a in self.axes)

    def of(self, x: Tensor) -> Tensor:
        """Return sqrt(m2) of every group, in the view's shape with the group axes kept at size one."""
        x = x.reshape(self.view)
        if self.centered:
            x = x - x.mean(self.axes, keepdim=True)
        return x.square().mean(self.axes, keepdim=True).sqrt()

    def denominator(self, s: Tensor) -> Tensor:
        """Return what a group of spread s is divided by."""
        if self.where == "inside":
            return (self.factor * s.square() + self.eps).sqrt()
        scaled_spread = math.sqrt(self.factor) * s
        return scaled_spread + self.eps if self.where == "outside" else scaled_spread.clamp_min(self.eps)

    def normalize(self, x: Tensor) -> Tensor:
        """Return the normalized tensor without affine map."""
        view = x.reshape(self.view)
        centered = view - view.mean(self.axes, keepdim=True) if self.centered else view
        return (centered / self.denominator(self.of(x))).reshape(x.shape)


@statement("normscope", "F3", holds="all pairs of inputs whose group spreads are at least s; no convexity needed")
def division_constant(spread: Spread, s: Tensor) -> Tensor:
    """Return the Lipschitz constant of dividing a (centred) group by its spread, where the spread is at least s.

    ``1 / sqrt(k s^2 + eps)``: the division is radial, ``y -> phi(r) y/r``, and both ``phi(r)/r`` and ``phi'(r)`` are
    at most this for ``r >= sqrt(n) s``. Zero for a centred group of one entry.

    >>> spread = Spread((4,), (0,), 1e-5, True)
    >>> round(float(division_constant(spread, torch.tensor(0.0))), 4)
    316.2278
    """
    if spread.centered and spread.size == 1:
        return torch.zeros_like(s)
    return (1.0 + 1e-14) / spread.denominator(s)


class Division(Nonlinear):
    """The nonlinear core of a normalizer: each group divided by its spread, kept above the floor of the domain.

    Where a group lies within one channel (BatchNorm on the batch, InstanceNorm), the channel's scale belongs to the
    core: each channel is then ``|gamma_c| / s_c``-Lipschitz, and all of them fold into the linear map before.
    """

    def __init__(self, x: Expr, spread: Spread, kind: str, gain: Tensor | None = None) -> None:
        self.inputs, self.spread, self.kind, self.gain = (x,), spread, kind, gain

    def constant(self, context: Context) -> Lip:
        """Return the constant on the domain's floors, folded into the linear map before it."""
        x, spread = self.inputs[0], self.spread
        floor = torch.as_tensor(context.floor(self.name), dtype=torch.float64)
        constants = division_constant(spread, floor)
        if self.gain is not None:
            # A scale of zero leaves nothing, even of a division by zero.
            constants = torch.where(self.gain == 0, 0.0, constants * self.gain.abs())
        if constants.numel() == 1 or bool((constants == constants.flatten()[0]).all()):
            return context.lipschitz(x).times(float(constants.flatten()[0]))
        whole = context.lipschitz(x).times(float(constants.max()))
        if bool(torch.isinf(constants).any()):
            return whole
        return context.lipschitz(_folded(x, constants, spread)).minimum(whole)

    def image(self, context: Context) -> Range:
        """Return the range: a group of n entries has norm at most ``sqrt(n/k)``."""
        x = self.inputs[0]
        n, k = self.spread.size, self.spread.factor
        largest = (1 + 1e-14) * (1.0 if self.gain is None else float(self.gain.abs().max()))
        group = math.sqrt(n / k) * largest
        entry = math.sqrt(max(n - 1, 0) / k) * largest if self.spread.centered else group
        groups = math.prod(self.spread.view) // n
        row = group if self._group_holds_row(x) else INF
        return Range(-entry, entry, row, group * math.sqrt(groups))

    def _group_holds_row(self, x: Expr) -> bool:
        """Return whether a slice along the last axis lies within one group."""
        view, axes = self.spread.view, self.spread.axes
        inner = 1
        for axis in range(len(view) - 1, -1, -1):
            if axis not in axes and view[axis] > 1:
                return False
            inner *= view[axis]
            if inner >= x.shape[-1]:
                return inner % x.shape[-1] == 0
        return False


def _folded(x: Expr, constants: Tensor, spread: Spread) -> Expr:
    """Return ``diag(constants) x`` with one constant per group."""
    full = constants.expand([1 if i in spread.axes else v for i, v in enumerate(spread.view)])
    scale = full.expand(spread.view).reshape(x.shape)
    op = LinearOp("diagonal", lambda z: z * scale.to(z), None, {"scale": compact(scale)})
    return linear(op, [x], x.shape)


def compact(values: Tensor, *, nearly: bool = False) -> Tensor:
    """Return a tensor with every axis along which it is constant, exactly or nearly, reduced to size one."""
    for axis in range(values.ndim):
        first = values.narrow(axis, 0, 1)
        if torch.allclose(values, first.expand_as(values), rtol=1e-9 if nearly else 0.0, atol=0.0):
            values = first
    return values


def centered(call: Call, x: Expr, spread: Spread) -> Expr:
    """Subtract the mean of every group: an orthogonal projection."""
    view, axes, shape = spread.view, spread.axes, x.shape

    def apply(z: Tensor) -> Tensor:
        v = z.reshape(view)
        return (v - v.mean(axes, keepdim=True)).reshape(shape)

    kept: Any = None
    if view == shape:
        kept = kept_axes(x, axes)
    elif shape[0] == view[0] and 0 not in axes:
        kept = lambda a: a if a == 0 else None  # noqa: E731
    data: dict[str, Any] = {"rowwise": view == shape and axes == (len(shape) - 1,), "centring": (view, axes, shape)}
    return call.linear("contraction", apply, [x], shape=shape, axes=kept, projection=True, **data)


def normalizer(call: Call, x: Expr, spread: Spread, kind: str, gamma: Any = None, beta: Any = None) -> Expr:
    """Return ``gamma * (x - mean)/spread + beta`` as centring, division and affine map."""
    inner = centered(call, x, spread) if spread.centered else x
    if gamma is not None and spread.channel_axis is not None and spread.view == x.shape:
        groups = [n if i == spread.channel_axis else 1 for i, n in enumerate(spread.view)]
        gain = gamma.detach().to(torch.float64).flatten().reshape(groups)
        out = call.atom(Division(inner, spread, kind, gain), x.shape)
        return out if beta is None else shifted(call, out, beta.detach())
    out = call.atom(Division(inner, spread, kind), x.shape)
    if spread.centered:
        out = centered(call, out, spread)  # nothing changes, but the next operator sees that the mean is zero
    if gamma is not None:
        return scaled(call, out, gamma.detach(), None if beta is None else beta.detach())
    return out if beta is None else shifted(call, out, beta.detach())


def rescaled(call: Call, x: Expr, gamma: Any, beta: Any, *, per_channel: bool) -> Expr:
    """Return ``gamma x + beta`` where scale or shift depend on the input, one entry per channel or as x's last axes."""
    for factor, join in ((gamma, times), (beta, lambda c, a, b: total(c, ((a, 1.0), (b, 1.0))))):
        if isinstance(factor, Expr) and per_channel:
            factor = reshaped(call, factor, (*factor.shape, *(1,) * (len(x.shape) - 2)))
        elif isinstance(factor, Tensor) and per_channel:
            factor = factor.detach().reshape(-1, *(1,) * (len(x.shape) - 2))
        x = x if factor is None else join(call, x, factor)
    return x


def normalized(call: Call, x: Expr, spread: Spread, kind: str, gamma: Any = None, beta: Any = None) -> Any:
    """Return :func:`normalizer`, followed by its statistics as opaque if the operation returns them."""
    return with_statistics(call, normalizer(call, x, spread, kind, gamma, beta))


def with_statistics(call: Call, result: Expr) -> Any:
    """Return a result, followed by its statistics as opaque if the operation returns them."""
    return call.with_rest(result, "statistics of a normalizer used outside it", known=False)


def per_channel(parameter: Tensor | None, rank: int) -> Tensor | None:
    """Return a per-channel parameter with axes for the trailing spatial ones."""
    return None if parameter is None else parameter.detach().reshape(-1, *(1,) * (rank - 2))


def fixed_statistics(
    call: Call, x: Expr, mean: Tensor, var: Tensor, eps: float, gamma: Tensor | None, beta: Tensor | None
) -> Expr:
    """Return normalization by fixed statistics: ``gamma (x - mean)/sqrt(var + eps) + beta``."""
    places = (-1, *(1,) * (len(x.shape) - 2))
    mean, var = (t.detach().to(torch.float64).reshape(places) for t in (mean, var))
    scale = (var + eps).rsqrt()
    if gamma is not None:
        scale = scale * gamma.to(torch.float64)
    bias = -mean * scale
    if beta is not None:
        bias = bias + beta.to(torch.float64)
    found = scaled(call, x, scale, bias)
    if found.op is not None and found.op.kind == "diagonal":
        found.op.data["statistics"] = (mean, var, eps, gamma, beta)  # what its rounded factors are made of
    return found
