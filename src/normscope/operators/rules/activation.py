"""Entrywise functions: their exact slopes come from :mod:`normscope.operators.activations`."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from normscope.operators.activations import image, slope
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import INF, Pointwise
from normscope.operators.registry import Call, rule
from normscope.operators.rules.layout import _first, scaled

#: Functions whose slope is bounded on the whole line: their constant does not need a range.
_GLOBAL = (
    "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "mish", "elu", "celu", "selu", "softplus", "softsign",
    "hardtanh", "hardsigmoid", "hardswish", "leaky_relu", "log_sigmoid_forward", "log_sigmoid",
    "erf", "atan", "sin", "cos", "abs", "softshrink", "tanhshrink", "rrelu",
)  # fmt: skip
#: Functions that may have no finite slope unless their argument stays in a range.
_LOCAL = ("exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "expm1", "log1p", "log2", "hardshrink", "threshold",
          "sinh", "cosh", "tan", "asin", "acos", "exp2", "log10", "erfc", "asinh", "sinc", "erfinv", "logit",
          "special_expit", "relu_", "acosh", "atanh", "lgamma", "digamma")  # fmt: skip
#: Arguments that shape a function, by the name its schema gives them.
_PARAMETERS = ("negative_slope", "alpha", "scale", "input_scale", "approximate", "beta", "threshold", "lambd",
               "min_val", "max_val", "value", "lower", "upper")  # fmt: skip


@rule(*_GLOBAL, *_LOCAL)
def pointwise(call: Call) -> Any:
    """An entrywise function of one argument."""
    name = call.node.op.split(".")[1]
    name = {"log_sigmoid_forward": "log_sigmoid"}.get(name, name)
    parameters = {key: call[key] for key in _PARAMETERS if call.arguments.get(key) is not None}
    if name == "rrelu":
        if call.get("training", False):
            return call.opaque("rrelu in training is random")
        name, parameters = "leaky_relu", {"negative_slope": (parameters["lower"] + parameters["upper"]) / 2}
    atom = function(call, _first(call), name, parameters)
    return [atom, None] if isinstance(call.value, tuple | list) else atom


def function(call: Call, x: Expr, name: str, parameters: dict[str, Any] | None = None) -> Expr:
    """Return an entrywise function of an expression, or an opaque one if it is unknown."""
    given = parameters or {}
    try:
        fixed = slope(name, given)
    except KeyError:
        return call.opaque(f"no rule for the entrywise function {name}")
    if math.isinf(fixed) and name in ("hardshrink", "threshold"):
        return call.opaque(f"{name} jumps", known=True)
    low, high = image(name, given, 0.0, 0.0)
    return call.atom(
        Pointwise(
            x,
            lambda a, b: slope(name, given, a, b),
            lambda a, b: image(name, given, a, b),
            needs_range=math.isinf(fixed),
            vanishing=low == 0.0 == high,
        ),
        x.shape,
    )


@rule("prelu", "_prelu_kernel")
def prelu(call: Call) -> Expr:
    """``max(x, 0) + a min(x, 0)`` with a slope per channel: exact per channel is ``max(1, |a|)``."""
    x, weight = _first(call), call["weight"]
    if isinstance(weight, Expr):
        return call.opaque("prelu with an input-dependent slope")
    largest = max(1.0, float(weight.detach().abs().max()))
    return function(call, x, "leaky_relu", {"negative_slope": largest if largest > 1 else float(weight.min())})


@rule("clamp", "clamp_min", "clamp_max", "clip")
def clamp(call: Call) -> Expr:
    """Cut off below and above: 1-Lipschitz."""
    x = _first(call)
    low, high = call.arguments.get("min"), call.arguments.get("max")
    if isinstance(low, Expr) or isinstance(high, Expr):
        return call.opaque("clamp with input-dependent limits")
    return clamped(
        call, x, _least(low, -INF), _largest(high, INF), loose=isinstance(low, Tensor) or isinstance(high, Tensor)
    )


def clamped(call: Call, x: Expr, low: float, high: float, *, loose: bool = False) -> Expr:
    """Return x cut off at constants; with one limit per entry the enclosure is the union of all."""

    def enclosure(a: float, b: float) -> tuple[float, float]:
        return min(max(a, low), high) if not loose else min(a, high), max(min(b, high), low)

    return call.atom(Pointwise(x, lambda a, b: 1.0, enclosure, needs_range=False), x.shape)


def _least(limit: Any, default: float) -> float:
    """Return the least of a limit that may be a tensor."""
    if limit is None:
        return default
    return float(limit.min()) if isinstance(limit, Tensor) else float(limit)


def _largest(limit: Any, default: float) -> float:
    """Return the largest of a limit that may be a tensor."""
    if limit is None:
        return default
    return float(limit.max()) if isinstance(limit, Tensor) else float(limit)


@rule("pow")
def power(call: Call) -> Expr:
    """``x^p`` for a constant exponent."""
    x, exponent = call["self"], call["exponent"]
    if isinstance(exponent, Expr) or (isinstance(exponent, Tensor) and exponent.numel() != 1):
        return call.opaque("a power with a varying exponent has no rule")
    p = float(exponent)
    if p == 1.0:
        return scaled(call, x, call.value.new_ones(()).double())
    return function(call, x, "pow", {"exponent": p})


@rule("glu")
def glu(call: Call) -> Expr:
    """``a * sigmoid(b)`` of the two halves."""
    from normscope.operators.rules.arithmetic import Product
    from normscope.operators.rules.layout import _piece

    x = _first(call)
    dim = int(call.get("dim", -1)) % len(x.shape)
    half = x.shape[dim] // 2
    shape = call.shape
    a, b = (_piece(call, x, dim, start, half, shape, False) for start in (0, half))
    return call.atom(Product(a, function(call, b, "sigmoid")))
