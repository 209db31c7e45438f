"""Activations: exact suprema of their slopes and certified images, on the line and on intervals.

The supremum of ``|g'|`` is attained where ``g'' = 0``, at a kink, at an end of the interval or in a limit. Zeros of
``g''`` and ``g'`` are found by bisection of the defining equation; values are rounded up by their proved error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT, product_up
from normscope.core.statement import statement
from normscope.operators.scalar import elementary, gated, power, smooth
from normscope.operators.scalar.curve import Curve, Piece, affine, points

_INF = math.inf


class UnknownActivationError(InputError, KeyError):
    """No rule is known for an activation: its constant must not be guessed."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Activation:
    """A scalar function by name.

    Attributes:
        name: the name, that of the PyTorch operator.
        slope: supremum of ``|g'|`` on its whole domain for the default parameters, rounded up; infinite if unbounded.
        build: the curve for given parameters.
        defaults: the parameters and their defaults.
    """

    name: str
    slope: float
    build: Callable[..., Curve]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def curve(self, parameters: Mapping[str, Any] | None = None) -> Curve:
        """Return the curve for these parameters, defaults for the rest.

        Raises:
            InputError: if a parameter is unknown.
        """
        given = dict(parameters or {})
        unknown = set(given) - set(self.defaults)
        if unknown:
            raise InputError(f"{self.name} has the parameters {sorted(self.defaults) or 'none'}, got {sorted(unknown)}")
        return self.build(**{**self.defaults, **given})


def _leaky(slope: float) -> Curve:
    """Return ``slope x`` below zero and ``x`` above."""
    return Curve((affine(-_INF, 0.0, slope), affine(0.0, _INF, 1.0)))


def _relu() -> Curve:
    return _leaky(0.0)


def _leaky_relu(negative_slope: float) -> Curve:
    return _leaky(float(negative_slope))


def _prelu(weight: Any) -> Curve:
    """Return the curve of the steepest and of the flattest slope together: it bounds every channel."""
    slopes = [float(w) for w in (weight.reshape(-1).tolist() if hasattr(weight, "reshape") else _listed(weight))]
    if not slopes or not all(map(math.isfinite, slopes)):
        raise InputError(f"prelu needs finite slopes, at least one, got {slopes[:4]}")
    return Curve((affine(-_INF, 0.0, min(slopes)), affine(-_INF, 0.0, max(slopes)), affine(0.0, _INF, 1.0)))


def _listed(weight: Any) -> list[Any]:
    return list(weight) if isinstance(weight, list | tuple) else [weight]


def _rrelu(lower: float, upper: float, training: bool) -> Curve:
    """Return the mean slope of evaluation, or both extreme slopes of training."""
    if training:
        return _prelu([lower, upper])
    mean = (lower + upper) / 2
    return Curve((affine(-_INF, 0.0, mean, error=2.0 * UNIT * abs(mean)), affine(0.0, _INF, 1.0)))


def _elu(alpha: float, scale: float, input_scale: float) -> Curve:
    below = smooth.exponential_below_zero(scale * alpha, input_scale, product_up(scale, alpha))
    steepest = max(abs(scale), product_up(scale, alpha, input_scale)) if input_scale >= 0 else _INF
    bounded = scale >= 0 and alpha >= 0 and input_scale > 0
    least = -product_up(scale, alpha) if bounded else -_INF
    return Curve((below, affine(0.0, _INF, scale)), least=least, steepest=steepest)


def _celu(alpha: float) -> Curve:
    if alpha == 0:
        raise InputError("celu needs alpha != 0")
    below = smooth.exponential_below_zero(alpha, 1.0 / alpha, abs(alpha))
    if alpha < 0:
        return Curve((below, affine(0.0, _INF, 1.0)))
    return Curve((below, affine(0.0, _INF, 1.0)), least=-alpha, steepest=1.0)


#: The constants of self-normalizing networks, as PyTorch has them.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _selu() -> Curve:
    return _elu(SELU_ALPHA, SELU_SCALE, 1.0)


def _hardsigmoid() -> Curve:
    middle = affine(-3.0, 3.0, 1.0 / 6.0, 0.5, error=UNIT / 4)
    return Curve((affine(-_INF, -3.0, 0.0), middle, affine(3.0, _INF, 0.0, 1.0)), least=0.0, most=1.0)


def _hardswish() -> Curve:
    middle = Piece(
        -3.0,
        3.0,
        lambda x: (x * (x + 3.0) / 6.0, 8.0 * UNIT * abs(x * (x + 3.0))),
        lambda x: ((2.0 * x + 3.0) / 6.0, 0.0 if abs(x) == 3.0 else 4.0 * UNIT),
        turns=points(-1.5),
    )
    return Curve((affine(-_INF, -3.0, 0.0), middle, affine(3.0, _INF, 1.0)), least=-0.375)


def _clamp(min: float | None, max: float | None) -> Curve:
    low, high = (-_INF if min is None else float(min)), (_INF if max is None else float(max))
    if low >= high:  # PyTorch returns the maximum everywhere
        return Curve((affine(-_INF, _INF, 0.0, high),))
    parts = [affine(low, high, 1.0)]
    if low > -_INF:
        parts.insert(0, affine(-_INF, low, 0.0, low))
    if high < _INF:
        parts.append(affine(high, _INF, 0.0, high))
    return Curve(tuple(parts))


def _hardtanh(min_val: float, max_val: float) -> Curve:
    return _clamp(min_val, max_val)


def _relu6() -> Curve:
    return _clamp(0.0, 6.0)


def _softshrink(lambd: float) -> Curve:
    if lambd < 0:
        raise InputError(f"softshrink needs lambd >= 0, got {lambd}")
    outer = (affine(-_INF, -lambd, 1.0, lambd), affine(lambd, _INF, 1.0, -lambd))
    return Curve((outer[0], affine(-lambd, lambd, 0.0), outer[1]))


def _hardshrink(lambd: float) -> Curve:
    if lambd <= 0:  # only x = 0 is shrunk, to zero: the identity
        return _identity()
    pieces = (affine(-_INF, -lambd, 1.0), affine(-lambd, lambd, 0.0), affine(lambd, _INF, 1.0))
    return Curve(pieces, jumps=((-lambd, False), (lambd, True)))


def _threshold(threshold: float, value: float) -> Curve:
    pieces = (affine(-_INF, threshold, 0.0, value), affine(threshold, _INF, 1.0))
    return Curve(pieces, jumps=() if value == threshold else ((threshold, True),))


def _identity() -> Curve:
    return Curve((affine(-_INF, _INF, 1.0),))


def _neg() -> Curve:
    return Curve((affine(-_INF, _INF, -1.0),))


def _abs() -> Curve:
    return _leaky(-1.0)


def _square() -> Curve:
    return power.power(2.0)


def _sqrt() -> Curve:
    return power.power(0.5)


def _reciprocal() -> Curve:
    return power.power(-1.0)


def _rsqrt() -> Curve:
    return power.power(-0.5)


def _pow(exponent: float) -> Curve:
    return power.power(float(exponent))


#: How each activation is built, and its default parameters.
_BUILDERS: dict[str, tuple[Callable[..., Curve], dict[str, Any]]] = {
    "identity": (_identity, {}),
    "relu": (_relu, {}),
    "leaky_relu": (_leaky_relu, {"negative_slope": 0.01}),
    "prelu": (_prelu, {"weight": 0.25}),
    "rrelu": (_rrelu, {"lower": 0.125, "upper": 1.0 / 3.0, "training": False}),
    "elu": (_elu, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}),
    "celu": (_celu, {"alpha": 1.0}),
    "selu": (_selu, {}),
    "gelu": (gated.gelu, {"approximate": "none"}),
    "silu": (gated.silu, {}),
    "mish": (gated.mish, {}),
    "sigmoid": (smooth.sigmoid, {}),
    "log_sigmoid": (smooth.log_sigmoid, {}),
    "hardsigmoid": (_hardsigmoid, {}),
    "hardswish": (_hardswish, {}),
    "hardtanh": (_hardtanh, {"min_val": -1.0, "max_val": 1.0}),
    "clamp": (_clamp, {"min": None, "max": None}),
    "relu6": (_relu6, {}),
    "tanh": (smooth.tanh, {}),
    "tanhshrink": (smooth.tanhshrink, {}),
    "softplus": (smooth.softplus, {"beta": 1.0, "threshold": 20.0}),
    "softsign": (smooth.softsign, {}),
    "softshrink": (_softshrink, {"lambd": 0.5}),
    "hardshrink": (_hardshrink, {"lambd": 0.5}),
    "threshold": (_threshold, {"threshold": 0.0, "value": 0.0}),
    "erf": (elementary.erf, {}),
    "atan": (elementary.atan, {}),
    "sin": (elementary.sin, {}),
    "cos": (elementary.cos, {}),
    "abs": (_abs, {}),
    "neg": (_neg, {}),
    "erfc": (elementary.erfc, {}),
    "asin": (elementary.asin, {}),
    "acos": (elementary.acos, {}),
    "sinh": (elementary.sinh, {}),
    "cosh": (elementary.cosh, {}),
    "asinh": (elementary.asinh, {}),
    "acosh": (elementary.acosh, {}),
    "atanh": (elementary.atanh, {}),
    "exp2": (elementary.exp2, {}),
    "log2": (elementary.log2, {}),
    "log10": (elementary.log10, {}),
    "exp": (elementary.exp, {}),
    "expm1": (elementary.expm1, {}),
    "log": (elementary.log, {}),
    "log1p": (elementary.log1p, {}),
    "sqrt": (_sqrt, {}),
    "rsqrt": (_rsqrt, {}),
    "square": (_square, {}),
    "reciprocal": (_reciprocal, {}),
    "pow": (_pow, {"exponent": 2.0}),
}


def _table() -> dict[str, Activation]:
    """Return every activation with its slope on the whole domain."""
    table = {}
    for name, (build, defaults) in _BUILDERS.items():
        curve = build(**defaults)
        whole = curve.slope(curve.pieces[0].low, curve.pieces[-1].high)
        table[name] = Activation(name, whole, build, defaults)
    return table


#: Every activation that has a rule, by the name of its PyTorch operator.
ACTIVATIONS: dict[str, Activation] = _table()


def _curve(name: str, parameters: Mapping[str, Any] | None) -> Curve:
    """Return the curve of an activation by name."""
    if name not in ACTIVATIONS:
        raise UnknownActivationError(f"no rule for the activation {name!r}: known are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name].curve(parameters)


@statement("normscope", "Proposition ACT-1", holds="real arithmetic; jumps of softplus below rounding left out")
def slope(name: str, params: Mapping[str, Any] | None = None, low: float = -_INF, high: float = _INF) -> float:
    """Return the Lipschitz constant of an activation on [low, high], ``sup |g'|``, rounded up.

    Assumption for ``softplus``: PyTorch returns ``x`` itself beyond ``threshold/beta``, a jump of about ``2e-9/beta``
    at the default threshold of 20. A jump below the rounding of float32 at that value is left out: the constant is that
    of the smooth function ``log(1 + exp(beta x))/beta``. A larger one, as at small thresholds, is a discontinuity.

    Args:
        name: the activation.
        params: its parameters by PyTorch's names, defaults for the rest.
        low: left end of the interval.
        high: right end of the interval; ``low == high`` gives the local constant at a point.

    Returns:
        The constant; infinity across a discontinuity, where it is unbounded, or outside the domain.

    Raises:
        UnknownActivationError: if there is no rule for the name.
        InputError: if a parameter is unknown, or the interval is not one.

    >>> round(slope("gelu"), 6), round(slope("silu"), 6), slope("relu", None, -2.0, -1.0), slope("hardshrink")
    (1.128904, 1.099839, 0.0, inf)
    """
    return _curve(name, params).slope(low, high)


@statement("normscope", "Proposition ACT-2", holds="real arithmetic; both branches of softplus are covered")
def image(
    name: str, params: Mapping[str, Any] | None = None, low: float = -_INF, high: float = _INF
) -> tuple[float, float]:
    """Return a certified enclosure ``(lo, hi)`` of an activation's values on [low, high].

    Args:
        name: the activation.
        params: its parameters by PyTorch's names, defaults for the rest.
        low: left end of the interval.
        high: right end of the interval.

    Returns:
        The enclosure, rounded outward; the whole line where the function is not defined on the interval.

    Raises:
        UnknownActivationError: if there is no rule for the name.
        InputError: if a parameter is unknown, or the interval is not one.

    >>> image("relu", None, -1.0, 2.0), image("sigmoid")
    ((0.0, 2.0), (0.0, 1.0))
    """
    return _curve(name, params).image(low, high)
