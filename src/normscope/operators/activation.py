"""Entrywise functions: their exact slopes come from :mod:`normscope.operators.scalar.activations`."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.arithmetic import Product
from normscope.operators.expression import Expr
from normscope.operators.joining import piece
from normscope.operators.layout import broadcast, scaled
from normscope.operators.nonlinear import INF, Pointwise
from normscope.operators.registry import Call, rule
from normscope.operators.scalar.activations import ACTIVATIONS, curve_of, image, slope

#: Activations that have a rule elsewhere, and functions without one.
_OTHERS, _UNKNOWN = (
    {"identity", "neg", "prelu", "clamp", "pow"},
    {"tan", "sinc", "erfinv", "logit", "lgamma", "digamma"},
)
#: Other names that torch has for them.
_ALIASES = {
    "log_sigmoid_forward": "log_sigmoid", "special_expit": "sigmoid", "absolute": "abs", "arctan": "atan",
    "arcsin": "asin", "arccos": "acos", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "special_erf": "erf", "special_erfc": "erfc", "special_exp2": "exp2", "special_expm1": "expm1",
    "special_log1p": "log1p", "special_erfinv": "erfinv", "special_logit": "logit", "special_sinc": "sinc",
}  # fmt: skip
#: Functions that torch differentiates with 1/6 rounded to float32, too large by less than this: a Jacobian measured
#: with its derivative must not exceed the constant.
_SIXTHS = {"hardsigmoid": 1 + 2.0**-24, "hardswish": 1 + 2.0**-24}


@rule(*set(ACTIVATIONS) - _OTHERS, *_UNKNOWN, *_ALIASES, "rrelu")
def pointwise(call: Call) -> Any:
    """An entrywise function of one argument."""
    name = _ALIASES.get(call.name, call.name)
    shapes = inspect.signature(ACTIVATIONS[name]).parameters if name in ACTIVATIONS else ()
    parameters = {key: value for key, value in call.arguments.items() if key in shapes and value is not None}
    if name == "rrelu":
        if call.get("training", False):
            return call.opaque("rrelu in training is random")
        name, parameters = "leaky_relu", {"negative_slope": (call["lower"] + call["upper"]) / 2}
    return call.with_rest(function(call, call.first, name, parameters), "kept for the derivative")


def function(
    call: Call,
    x: Expr,
    name: str,
    parameters: dict[str, Any] | None = None,
    apply: Callable[[Tensor], Tensor] | None = None,
) -> Expr:
    """Return an entrywise function of an expression, or an opaque one if it is unknown."""
    given = parameters or {}
    try:
        fixed = slope(name, given)
    except KeyError:
        return call.opaque(f"no rule for the entrywise function {name}", shape=x.shape)
    except InputError as error:  # PyTorch accepts parameters for which there is no constant
        return call.opaque(str(error), shape=x.shape)
    if math.isinf(fixed) and name in ("hardshrink", "threshold", "softplus"):
        return call.opaque(f"{name} jumps", known=True, shape=x.shape)
    low, high = image(name, given, 0.0, 0.0)
    room = _SIXTHS.get(name, 1.0)
    curve = curve_of(name, given)
    return call.atom(
        Pointwise(
            x,
            lambda a, b: curve.slope(a, b) * room,
            lambda a, b: image(name, given, a, b),
            needs_range=math.isinf(fixed),
            vanishing=low == 0.0 == high,
            curve=curve,
            apply=apply or on_tensors(name, given),
            inexact=room - 1.0,
        ),
        x.shape,
    )


def on_tensors(name: str, parameters: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """Return an entrywise function by the name of its operation, with its parameters.

    >>> on_tensors("leaky_relu", {"negative_slope": 0.5})(torch.tensor([-2.0, 1.0])).tolist()
    [-1.0, 1.0]
    """
    if name == "pow":
        return lambda z: z.pow(parameters["exponent"])
    found: Callable[..., Tensor] = getattr(torch.ops.aten, name, None) or getattr(torch.nn.functional, name)
    return lambda z: found(z, **parameters)


@rule("prelu", "_prelu_kernel")
def prelu(call: Call) -> Expr:
    """``max(x, 0) + a min(x, 0)`` with a slope per channel: the least and the largest slope bound all."""
    x, weight = call.first, call["weight"]
    if isinstance(weight, Expr) or not isinstance(x, Expr) or weight.numel() == 0:
        return call.opaque("prelu with an input-dependent slope")
    weight = weight.detach().double()
    places = weight.flatten() if len(x.shape) < 2 else weight.reshape(-1, *(1,) * (len(x.shape) - 2))
    ends = {"weight": [float(weight.min()), float(weight.max())]}
    return function(call, x, "prelu", ends, lambda z: torch.where(z > 0, z, z * places.to(z)))


@rule("pow", "float_power")
def power(call: Call) -> Expr:
    """``x^p`` for a constant exponent, or ``c^x`` for a constant base."""
    x, exponent = call["self"], call["exponent"]
    if isinstance(exponent, Expr):
        return _exponential(call, x, exponent)
    if isinstance(exponent, Tensor) and exponent.numel() != 1:
        return call.opaque("a power with a varying exponent has no rule")
    p = float(exponent)
    return broadcast(x, call.shape, call) if p == 1.0 else function(call, x, "pow", {"exponent": p})


def _exponential(call: Call, base: Any, exponent: Expr) -> Expr:
    """Return ``c^x = exp(x log c)`` for one constant base c > 0."""
    if isinstance(base, Expr) or torch.as_tensor(base).numel() != 1 or not float(base) > 0:
        return call.opaque("a power of a varying base has no rule")
    log = torch.tensor(math.log(float(base)), dtype=torch.float64)
    return function(call, scaled(call, exponent, log), "exp")


@rule("glu")
def glu(call: Call) -> Expr:
    """``a * sigmoid(b)`` of the two halves."""
    x = call.first
    dim = int(call.get("dim", -1)) % len(x.shape)
    half = x.shape[dim] // 2
    a, b = (piece(call, x, dim, start, call.shape) for start in (0, half))
    return call.atom(Product(a, function(call, b, "sigmoid")))


@rule("nan_to_num")
def nan_to_num(call: Call) -> Expr:
    """Keep finite numbers; the replacements of NaN and infinity may lie outside their range."""
    widest = torch.finfo(getattr(torch, call.node.dtype, torch.float64)).max
    given = {name: call.arguments.get(name) for name in ("nan", "posinf", "neginf")}
    nan = 0.0 if given["nan"] is None else float(given["nan"])
    above = widest if given["posinf"] is None else float(given["posinf"])
    below = -widest if given["neginf"] is None else float(given["neginf"])

    def enclosure(a: float, b: float) -> tuple[float, float]:
        met = [nan, *([below] if a == -INF else ()), *([above] if b == INF else ())]
        return min(a, *met), max(b, *met)

    x = call.first
    return call.atom(Pointwise(x, lambda a, b: 1.0, enclosure, needs_range=False, vanishing=nan == 0.0), x.shape)
