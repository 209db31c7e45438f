"""Power-average pooling, ``(sum over a window of x^p)^(1/p)``, found where torch writes it out of parts."""

from __future__ import annotations

import math
from typing import Any

from normscope.core.statement import statement
from normscope.core.value import log_of
from normscope.graph.ir import Graph, Node, Ref
from normscope.operators.convolution import _tuple
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.pooling import window_overlap
from normscope.operators.registry import Call, bind


@statement("normscope", "LP-1", holds="p is an even whole number")
def power_pool_constant(overlap: int) -> float:
    r"""Return the constant of ``y_i = (sum_{j in w_i} x_j^p)^{1/p}`` if an entry lies in at most r windows.

    .. math:: |y_i - y_i'| \le \|(x - x')_{w_i}\|_p \le \|(x - x')_{w_i}\|_2, \qquad \|y - y'\| \le \sqrt r\, \|x - x'\|

    >>> power_pool_constant(4)
    2.0
    """
    return math.sqrt(overlap)


class PowerPool(Nonlinear):
    """``p``-norms of windows of n entries, times a factor."""

    def __init__(self, x: Expr, overlap: int, count: int, order: float, factor: float) -> None:
        self.inputs, self.overlap, self.count, self.order, self.factor = (x,), overlap, count, order, factor

    def constant(self, context: Context) -> Lip:
        """Return the constant above times that of the input."""
        slope = self.factor * power_pool_constant(self.overlap) * (1 + 1e-12)
        return context.lipschitz(self.inputs[0]).scaled(log_of(slope))

    def image(self, context: Context) -> Range:
        """Return zero to the norm of a window of the largest entries."""
        inside = context.range(self.inputs[0])
        largest = min(product(inside.sup, self.count ** (1 / self.order)), inside.norm)
        norm = product(inside.norm, power_pool_constant(self.overlap))
        return Range(0.0, outward(0.0, product(largest, self.factor))[1], norm=outward(0.0, norm * self.factor)[1])


def _reads(graph: Graph, node: Node | None, *names: str) -> Node | None:
    """Return the node, if its operation has one of some names."""
    return node if node is not None and node.op.split(".")[1:2] and node.op.split(".")[1] in names else None


def _argument(graph: Graph, node: Node | None, place: int = 0) -> Node | None:
    """Return the node an argument of a node refers to."""
    given = node.args[place] if node is not None and len(node.args) > place else None
    return graph[given.name] if isinstance(given, Ref) else None


def power_pool(graph: Graph, call: Call, exprs: dict[str, Any]) -> Expr | None:
    """Return the pooling a node ends: ``(sign(a) relu(|a|) k)^(1/p)`` with ``a = mean(x^p)``, or ``None``.

    Args:
        graph: the model.
        call: the last step.
        exprs: what is known of each node.
    """
    root = call.arguments.get("exponent")
    scaled = _reads(graph, _argument(graph, call.node), "mul")
    signed = _reads(graph, _argument(graph, scaled), "mul")
    sign, size = (_argument(graph, signed, i) for i in (0, 1))
    absolute = _argument(graph, _reads(graph, size, "relu"))
    pool = _reads(graph, _argument(graph, _reads(graph, sign, "sign")), "avg_pool1d", "avg_pool2d", "avg_pool3d")
    if scaled is None or pool is None or _argument(graph, _reads(graph, absolute, "abs")) is not pool:
        return None
    power = _reads(graph, _argument(graph, pool), "pow")
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
