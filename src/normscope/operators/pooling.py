"""Pooling and interpolation."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.convolution import _tuple
from normscope.operators.expression import Expr
from normscope.operators.layout import of_norm
from normscope.operators.matrix import matrix
from normscope.operators.nonlinear import Context, Range, Stretch, outward, product, product_above
from normscope.operators.registry import Call, bind, rule


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
      "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "upsample_linear1d", "upsample_bilinear2d",
      "upsample_trilinear3d")  # fmt: skip
def average(call: Call) -> Expr:
    """Average over windows, or interpolate with weights that are not negative, along the last axes."""
    lead = len(call.first.shape) - int(call.node.op.split("d.")[0][-1])
    kind = "generic" if int(call.get("divisor_override", 1)) < 0 else "nonnegative"
    return call.linear(kind, call.bound(), [call.first], axes=lambda axis: axis if axis < lead else None)


@rule("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
def interpolate_cubic(call: Call) -> Expr:
    """Interpolate with weights of either sign: a matrix on rows, then one on columns."""
    x = call.first
    apply, (height, width) = call.bound(), x.shape[-2:]
    lines = torch.eye(width, dtype=torch.float64).reshape(1, width, 1, width).expand(-1, -1, height, -1)
    columns = torch.eye(height, dtype=torch.float64).reshape(1, height, height, 1).expand(-1, -1, -1, width)
    room = 1 + 2e-13  # the coefficients are rounded
    # The weights of a point add up to one, so what is constant along an axis stays so.
    along = torch.cat([apply(part)[0, :, 0, :] for part in lines.split(16, 1)]).mT * room
    across = torch.cat([apply(part)[0, :, :, 0] for part in columns.split(16, 1)]).mT * room
    return matrix(call, matrix(call, x, along), across, axis=-2)


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sample(call: Call) -> Expr:
    """Sample at fixed places: linear; at places that depend on the input it has no rule."""
    x = call.first
    if not call.only_first_depends:
        return call.opaque("grid sampling at positions that depend on the input has no rule")
    if int(call.get("interpolation_mode", 0)) != 2:
        return call.linear("nonnegative", call.bound(), [x])
    return of_norm(call, call.bound(), x, _sampled_norm(call, x), call.shape)


def _sampled_norm(call: Call, x: Expr) -> float:
    """Return the Schur bound of a bicubic sampling: the root of the largest absolute row sum times column sum."""
    apply, (batch, _, *space) = call.bound(), x.shape
    size = math.prod(space)
    rows: Any = 0.0
    columns = 0.0
    for start in range(0, size, 256):
        stop = min(start + 256, size)
        basis = torch.zeros(stop - start, size, dtype=torch.float64)
        basis.diagonal(start).fill_(1.0)
        image = apply(basis.reshape(1, stop - start, *space).expand(batch, -1, *space)).abs()
        rows = rows + image.sum(1)
        columns = max(columns, float(image.flatten(2).sum(-1).max()))
    return math.sqrt(float(rows.max()) * columns) * (1 + 1e-10)


@rule("max_unpool2d", "max_unpool3d")
def unpool(call: Call) -> Expr:
    """Put entries at given places among zeros: linear if the places are fixed, and each is used once."""
    if not call.only_first_depends:
        return call.opaque("the positions of the largest entries are discontinuous", known=True)
    x, places = call.first, call["indices"]
    flat = places.reshape(*places.shape[: 2 if len(x.shape) > 3 else 1], -1).sort(-1).values
    if bool((flat[..., 1:] == flat[..., :-1]).any()):
        return call.opaque("two values are written to one position, and which one stays is undefined", known=True)
    return call.linear("embedding", call.bound(), [x])


class MaxPool(Stretch):
    """Largest entry of each window: ``sqrt(r)``-Lipschitz if an entry lies in at most r windows.

    Attributes:
        overlap: r.
        taps: for each place in a window, the index in the flat input that each window reads there; for a place outside
            the input, an index that the window reads elsewhere.
    """

    def __init__(self, x: Expr, overlap: int, taps: list[Tensor] | None = None) -> None:
        super().__init__(x, math.sqrt(overlap))
        self.overlap, self.taps = overlap, taps

    def image(self, context: Context) -> Range:
        """Return the range of the input; every entry is taken at most as often as windows overlap."""
        inside = context.range(self.inputs[0])
        return Range(inside.low, inside.high, norm=product_above(inside.norm, up(self.factor)))


def window_overlap(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return the largest number of windows one entry of an axis lies in.

    >>> window_overlap(size=8, out=4, kernel=3, stride=2, padding=1, dilation=1)
    2
    """
    read = (window * stride - padding + tap * dilation for window in range(out) for tap in range(kernel))
    return max(Counter(place for place in read if 0 <= place < size).values(), default=0)


def adaptive_overlap(size: int, out: int) -> int:
    """Return the largest number of adaptive windows one entry of an axis lies in."""
    windows = (range(i * size // out, -(-(i + 1) * size // out)) for i in range(out))
    return max(Counter(place for window in windows for place in window).values(), default=0)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
      "max_pool1d_with_indices", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")  # fmt: skip
def max_pool(call: Call) -> Any:
    """Take the largest entry of each window."""
    x, taps = call.first, None
    dims = int(call.node.op.split("max_pool")[1][0])
    sizes, outs = x.shape[-dims:], call.shape[-dims:]
    if "adaptive" in call.name:
        overlap = math.prod(adaptive_overlap(size, out) for size, out in zip(sizes, outs, strict=True))
    else:
        kernel = _tuple(call["kernel_size"], dims)
        stride = _tuple(call.get("stride") or kernel, dims)
        padding, dilation = _tuple(call.get("padding", 0), dims), _tuple(call.get("dilation", 1), dims)
        axes = list(zip(sizes, outs, kernel, stride, padding, dilation, strict=True))
        overlap = math.prod(window_overlap(*axis) for axis in axes)
        taps = window_taps(x.shape, [_places(*axis) for axis in axes])
    return call.with_rest(call.atom(MaxPool(x, overlap, taps)), "the position of a maximum is discontinuous")


def _places(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Tensor:
    """Return for each tap and window of an axis the place it reads; if outside, another place of the window inside."""
    places = torch.arange(out) * stride - padding + torch.arange(kernel)[:, None] * dilation
    inside = (places >= 0) & (places < size)
    first = places.gather(0, inside.int().argmax(0, keepdim=True))
    return torch.where(inside, places, first)


def window_taps(shape: Sequence[int], axes: Sequence[Tensor]) -> list[Tensor]:
    """Return for each tap of a window the flat places all windows read with it.

    >>> [t.tolist() for t in window_taps((4,), [torch.tensor([[0, 2], [1, 3]])])]
    [[0, 2], [1, 3]]
    """
    flat = torch.arange(math.prod(shape)).reshape(tuple(shape))
    lead = len(shape) - len(axes)
    taps = [flat]
    for axis, places in enumerate(axes):
        taps = [t.index_select(lead + axis, row) for t in taps for row in places]
    return taps


@statement("normscope", "LP-1", holds="p is an even whole number")
def power_pool_constant(overlap: int) -> float:
    r"""Return the constant of ``y_i = (sum_{j in w_i} x_j^p)^{1/p}`` if an entry lies in at most r windows, rounded up.

    .. math:: |y_i - y_i'| \le \|(x - x')_{w_i}\|_p \le \|(x - x')_{w_i}\|_2, \qquad \|y - y'\| \le \sqrt r\, \|x - x'\|

    >>> round(power_pool_constant(4), 9)
    2.0
    """
    return up(math.sqrt(overlap))


class PowerPool(Stretch):
    """``p``-norms of windows of n entries, times a weight."""

    def __init__(self, x: Expr, overlap: int, count: int, order: float, weight: float) -> None:
        super().__init__(x, weight * power_pool_constant(overlap) * (1 + 1e-12))
        self.overlap, self.count, self.order, self.weight = overlap, count, order, weight

    def image(self, context: Context) -> Range:
        """Return zero to the norm of a window of the largest entries."""
        inside = context.range(self.inputs[0])
        largest = min(product(inside.sup, self.count ** (1 / self.order)), inside.norm)
        norm = product(inside.norm, power_pool_constant(self.overlap))
        return Range(0.0, outward(0.0, product(largest, self.weight))[1], norm=outward(0.0, norm * self.weight)[1])


def _reads(node: Node | None, *names: str) -> Node | None:
    """Return the node if its operation has one of these names, or ``None``."""
    return node if node is not None and name_of(node) in names else None


def _argument(graph: Graph, node: Node | None, place: int = 0) -> Node | None:
    """Return the node an argument of a node refers to."""
    given = node.args[place] if node is not None and len(node.args) > place else None
    return graph[given.name] if isinstance(given, Ref) else None


def power_pool(graph: Graph, call: Call, exprs: dict[str, Any]) -> Expr | None:
    """Return the pooling that ends at a node: ``(sign(a) relu(|a|) k)^(1/p)`` with ``a = mean(x^p)``, or ``None``."""
    root = call.arguments.get("exponent")
    scaled = _reads(_argument(graph, call.node), "mul")
    signed = _reads(_argument(graph, scaled), "mul")
    sign, size = (_argument(graph, signed, i) for i in (0, 1))
    absolute = _argument(graph, _reads(size, "relu"))
    pool = _reads(_argument(graph, _reads(sign, "sign")), "avg_pool1d", "avg_pool2d", "avg_pool3d")
    if scaled is None or pool is None or _argument(graph, _reads(absolute, "abs")) is not pool:
        return None
    power = _reads(_argument(graph, pool), "pow")
    x = None if power is None else exprs.get(power.args[0].name)
    factor, order = scaled.args[1], None if power is None else power.args[1]
    if not isinstance(x, Expr) or not isinstance(factor, int | float) or not isinstance(order, int | float):
        return None
    if order <= 0 or order % 2 or not isinstance(root, int | float) or abs(root * order - 1) > 1e-12 or factor <= 0:
        return None
    given = bind(pool.op, list(pool.args), dict(pool.kwargs))
    dims = int(pool.op.split("d.")[0][-1])
    kernel = _tuple(given["kernel_size"], dims)
    stride = _tuple(given.get("stride") or kernel, dims)
    if any(_tuple(given.get("padding") or 0, dims)) or given.get("ceil_mode") or given.get("divisor_override"):
        return None
    axes = zip(x.shape[-dims:], call.shape[-dims:], kernel, stride, [0] * dims, [1] * dims, strict=True)
    overlap, count = math.prod(window_overlap(*axis) for axis in axes), math.prod(kernel)
    return call.atom(PowerPool(x, overlap, count, float(order), (factor / count) ** (1 / order)))
