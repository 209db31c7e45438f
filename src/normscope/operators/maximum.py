"""Maximum, minimum, clamping and the smooth maximum of two tensors."""

from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr, as_expr
from normscope.operators.layout import broadcast
from normscope.operators.nonlinear import INF, Context, Lip, Nonlinear, Pointwise, Range, outward
from normscope.operators.registry import Call, rule
from normscope.operators.scalar.activations import curve_of


class Maximum(Nonlinear):
    """``max(f, g)`` or ``min(f, g)`` entrywise: ``|max(a,b)-max(c,d)| <= max(|a-c|, |b-d|)``."""

    def __init__(self, left: Expr, right: Expr, largest: bool) -> None:
        self.inputs, self.largest = (left, right), largest

    def constant(self, context: Context) -> Lip:
        """Return the root of the sum of squares of both constants."""
        return context.lipschitz(self.inputs[0]).root_sum_square(context.lipschitz(self.inputs[1]))

    def image(self, context: Context) -> Range:
        """Return the larger or smaller ends."""
        f, g = (context.range(e) for e in self.inputs)
        choose = max if self.largest else min
        return Range(choose(f.low, g.low), choose(f.high, g.high))


@rule("maximum", "minimum", "fmax", "fmin", "max.other", "min.other")
def maximum(call: Call) -> Expr:
    """Take the larger or smaller entry of two tensors."""
    left, right = call["self"], call["other"]
    largest = "max" in call.name
    if isinstance(left, Expr) and isinstance(right, Expr):
        return call.atom(Maximum(broadcast(left, call.shape, call), broadcast(right, call.shape, call), largest))
    x, bound = (left, right) if isinstance(left, Expr) else (right, left)
    return clamped(call, broadcast(x, call.shape, call), bound if largest else None, None if largest else bound)


@rule("clamp", "clamp_min", "clamp_max", "clip")
def clamp(call: Call) -> Expr:
    """Clamp from below and above: 1-Lipschitz in the tensor and in limits that depend on the input."""
    x, low, high = call.first, call.arguments.get("min"), call.arguments.get("max")
    if not any(isinstance(part, Expr) for part in (low, high)):
        return clamped(call, broadcast(x, call.shape, call), low, high)
    for limit, largest in ((low, True), (high, False)):  # torch takes the maximum first
        if isinstance(limit, Expr) and isinstance(x, Expr):
            x = call.atom(Maximum(broadcast(x, call.shape, call), broadcast(limit, call.shape, call), largest))
        elif limit is not None and isinstance(x, Expr):
            x = clamped(call, broadcast(x, call.shape, call), *((limit, None) if largest else (None, limit)))
        elif limit is not None:
            return call.opaque("a constant clamped at limits that depend on the input")
    return x


def clamped(call: Call, x: Expr, low: Any, high: Any) -> Expr:
    """Return x clamped at constants, ``min(max(x, low), high)``, each a number, a tensor or ``None``."""
    (low_least, low_most), (high_least, high_most) = _ends(low, -INF), _ends(high, INF)

    def enclosure(a: float, b: float) -> tuple[float, float]:
        # min and max increase in every argument
        return min(max(a, low_least), high_least), min(max(b, low_most), high_most)

    ends = {"min": _number(low), "max": _number(high)}
    known = all(limit is None or _number(limit) is not None for limit in (low, high))
    return call.atom(
        Pointwise(
            x,
            lambda a, b: 1.0,
            enclosure,
            needs_range=False,
            curve=curve_of("clamp", ends) if known else None,
            apply=(lambda z: z.clamp(**ends)) if known else None,
        ),
        x.shape,
    )


def _number(limit: Any) -> float | None:
    """Return a limit that is one number, or ``None``."""
    if limit is None or (isinstance(limit, Tensor) and limit.numel() != 1):
        return None
    return float(limit)


def _ends(limit: Any, default: float) -> tuple[float, float]:
    """Return the smallest and the largest entry of a limit."""
    if limit is None:
        return default, default
    limit = torch.as_tensor(limit, dtype=torch.float64)
    return (float(limit.min()), float(limit.max())) if limit.numel() else (default, default)


class SoftMaximum(Maximum):
    """``log(exp f + exp g)`` or in base two: its gradient is a distribution, so ``|dz|^2 <= |df|^2 + |dg|^2``."""

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, True)

    def image(self, context: Context) -> Range:
        """Return the larger ends, raised by at most one."""
        inside = super().image(context)
        return Range(*outward(inside.low, inside.high + 1.0))


@rule("logaddexp", "logaddexp2")
def soft_maximum(call: Call) -> Expr:
    """Add in the log domain."""
    return call.atom(SoftMaximum(*(broadcast(as_expr(call[name]), call.shape, call) for name in ("self", "other"))))
