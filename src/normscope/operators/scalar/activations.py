"""Activations: exact suprema of their slopes and certified images, on the line and on intervals.

Each is a curve of formulas. The points where a function or its slope turns are given here if they are obvious, and
found by :mod:`normscope.operators.scalar.curve` otherwise.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT, product_up
from normscope.core.statement import statement
from normscope.operators.scalar.curve import Curve, Piece, line
from normscope.operators.scalar.formula import ACTIVATIONS as FORMULAS
from normscope.operators.scalar.formula import ONE, Formula, X, apply, constant

_INF = math.inf
#: Value and derivative in the limits at both ends.
Limits = tuple[tuple[float, float], tuple[float, float]]


class UnknownActivationError(InputError, KeyError):
    """No rule is known for an activation: its constant must not be guessed."""

    def __str__(self) -> str:
        return str(self.args[0])


def _line(low: float, high: float, slope: float, offset: float = 0.0) -> Piece:
    """Return the piece ``slope x + offset``."""
    return line(low, high, constant(slope) * X + constant(offset))


def _whole(formula: Formula, **known: Any) -> Curve:
    """Return the curve of one formula on the line."""
    caps = {name: known.pop(name) for name in ("least", "most", "steepest") if name in known}
    low, high = known.pop("domain", (-_INF, _INF))
    return Curve((Piece(low, high, formula, **known),), **caps)


def _leaky(slope: float) -> Curve:
    """Return ``slope x`` below zero and ``x`` above."""
    return Curve((_line(-_INF, 0.0, slope), _line(0.0, _INF, 1.0)))


def _prelu(weight: Any = 0.25) -> Curve:
    """Return the curve of the steepest and of the flattest slope together: it bounds every channel."""
    listed = weight.reshape(-1).tolist() if hasattr(weight, "reshape") else weight
    slopes = [float(w) for w in (listed if isinstance(listed, list | tuple) else [listed])]
    if not slopes or not all(map(math.isfinite, slopes)):
        raise InputError(f"Expected finite slopes for prelu, got {slopes[:4]}.")
    return Curve((_line(-_INF, 0.0, min(slopes)), _line(-_INF, 0.0, max(slopes)), _line(0.0, _INF, 1.0)))


def _exponential(height: Formula, rate: Formula, limits: tuple[float, float]) -> Piece:
    """Return the piece ``height (exp(rate x) - 1)`` on ``x <= 0``, the left half of ELU and CELU."""
    below = height * (apply("exp", rate * X) + constant(-1.0))
    return Piece(-_INF, 0.0, below, (), (), left=limits)


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Curve:
    height, size = scale * alpha, product_up(scale, alpha)
    if input_scale > 0 or height == 0:
        far = (-math.copysign(size, height), 0.0)
    elif input_scale == 0:
        far = (0.0, 0.0)
    else:
        far = (math.copysign(_INF, height), math.copysign(_INF, height * input_scale))
    below = _exponential(constant(scale) * constant(alpha), constant(input_scale), far)
    steepest = max(abs(scale), product_up(scale, alpha, input_scale)) if input_scale >= 0 else _INF
    bounded = scale >= 0 and alpha >= 0 and input_scale > 0
    return Curve((below, _line(0.0, _INF, scale)), least=-size if bounded else -_INF, steepest=steepest)


def _celu(alpha: float = 1.0) -> Curve:
    if alpha == 0:
        raise InputError("Expected alpha != 0 for celu.")
    below = _exponential(
        constant(alpha), apply("inverse", constant(alpha)), (-alpha, 0.0) if alpha > 0 else (-_INF, _INF)
    )
    pieces = (below, _line(0.0, _INF, 1.0))
    return Curve(pieces, least=-alpha, steepest=1.0) if alpha > 0 else Curve(pieces)


#: The constants of self-normalizing networks, as in PyTorch.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _gelu(approximate: str = "none") -> Curve:
    """Return ``x Phi(x)``, or its tanh form ``x s(2 sqrt(2/pi) (x + 0.044715 x^3))``."""
    if approximate == "none":
        return _whole(constant(0.5) * X * apply("erfc", -apply("rsqrt", constant(2.0)) * X))
    if approximate == "tanh":
        # pi = 4 atan(1)
        scale = apply("rsqrt", constant(0.5) * apply("atan", ONE))
        return _whole(X * apply("sigmoid", scale * (X + constant(0.044715) * X**3)))
    raise InputError(f"Expected approximate to be 'none' or 'tanh', got {approximate!r}.")


def _hardsigmoid() -> Curve:
    middle = line(-3.0, 3.0, apply("inverse", constant(6.0)) * X + constant(0.5))
    return Curve((_line(-_INF, -3.0, 0.0), middle, _line(3.0, _INF, 0.0, 1.0)), least=0.0, most=1.0)


def _hardswish() -> Curve:
    middle = X * (X + constant(3.0)) / constant(6.0)
    pieces = (_line(-_INF, -3.0, 0.0), Piece(-3.0, 3.0, middle, (-1.5,), ()), _line(3.0, _INF, 1.0))
    return Curve(pieces, least=-0.375, steepest=1.5)


def _clamp(min: float | None = None, max: float | None = None) -> Curve:
    low, high = (-_INF if min is None else float(min)), (_INF if max is None else float(max))
    if low >= high:  # PyTorch returns the maximum everywhere
        return Curve((_line(-_INF, _INF, 0.0, high),))
    below = [_line(-_INF, low, 0.0, low)] if low > -_INF else []
    above = [_line(high, _INF, 0.0, high)] if high < _INF else []
    return Curve((*below, _line(low, high, 1.0), *above))


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Curve:
    """Return ``log(1 + exp(beta x))/beta``, and ``x`` itself where ``beta x > threshold``, as PyTorch does.

    The branches differ by ``log(1 + exp(-threshold))/beta`` where they meet. At the default threshold of 20 that is
    ``1e-10`` of the value, less than the rounding of float32, and taken for rounding; a larger one is a discontinuity.
    """
    if not beta > 0:
        raise InputError(f"Expected beta > 0 for softplus, got {beta}.")
    formula = apply("softplus", constant(beta) * X) / constant(beta)
    piece = Piece(-_INF, _INF, formula, (), (), (0.0, 0.0), (_INF, 1.0))
    switch = threshold / beta
    start, stop = switch - 4.0 * UNIT * abs(switch), switch + 4.0 * UNIT * abs(switch)
    jumps = () if jump_is_rounding(threshold) else tuple(itertools.product((start, switch, stop), (True, False)))
    return Curve((piece, _line(start, _INF, 1.0)), jumps=jumps, steepest=1.0)


def jump_is_rounding(threshold: float) -> bool:
    """Return whether softplus jumps at its threshold by at most one unit of float32 in the last place.

    >>> jump_is_rounding(20.0), jump_is_rounding(1.0)
    (True, False)
    """
    return threshold > 0 and math.log1p(math.exp(-threshold)) <= 2.0**-24 * threshold


def _softshrink(lambd: float = 0.5) -> Curve:
    if lambd < 0:
        raise InputError(f"Expected lambd >= 0 for softshrink, got {lambd}.")
    middle = _line(-lambd, lambd, 0.0)
    return Curve((_line(-_INF, -lambd, 1.0, lambd), middle, _line(lambd, _INF, 1.0, -lambd)))


def _hardshrink(lambd: float = 0.5) -> Curve:
    if lambd <= 0:  # only x = 0 is shrunk, to zero: the identity
        return Curve((_line(-_INF, _INF, 1.0),))
    pieces = (_line(-_INF, -lambd, 1.0), _line(-lambd, lambd, 0.0), _line(lambd, _INF, 1.0))
    return Curve(pieces, jumps=((-lambd, False), (lambd, True)))


def _threshold(threshold: float = 0.0, value: float = 0.0) -> Curve:
    pieces = (_line(-_INF, threshold, 0.0, value), _line(threshold, _INF, 1.0))
    return Curve(pieces, jumps=() if value == threshold else ((threshold, True),))


def _softsign() -> Curve:
    """Return ``x/(1 + |x|)``."""
    left = Piece(-_INF, 0.0, X / (ONE - X), (), (), left=(-1.0, 0.0))
    right = Piece(0.0, _INF, X / (ONE + X), (), (), right=(1.0, 0.0))
    return Curve((left, right), least=-1.0, most=1.0, steepest=1.0)


def _steepest_at_zero(name: str, ends: Limits, **known: Any) -> Curve:
    return _whole(apply(name, X), turns=(), bends=(0.0,), left=ends[0], right=ends[1], **known)


def _monotone(formula: Formula, ends: Limits, **known: Any) -> Curve:
    """Return a monotone elementary function with a monotone slope."""
    return _whole(formula, turns=(), bends=(), left=ends[0], right=ends[1], **known)


def _logarithm(inner: Formula, base: float | None = None) -> Curve:
    """Return a logarithm, to a base if there is one, of ``x`` or ``1 + x``."""
    formula = apply("log", inner) if base is None else apply("log", inner) / apply("log", constant(base))
    start = 0.0 if inner == X else -1.0
    return _monotone(formula, ((-_INF, _INF), (_INF, 0.0)), domain=(start, _INF))


def power(exponent: float = 2.0) -> Curve:
    r"""Return ``x^p``.

    Its domain is the line for an integer ``p`` (without zero if negative), and ``x >= 0`` otherwise. The derivative,
    ``|g'| = |p| |x|^{p-1}``, is monotone in ``|x|``: its supremum is at an end of the interval, infinite at zero for
    ``p < 1`` (``p`` not 0) and at infinity for ``p > 1``.

    Raises:
        InputError: if it is not finite.

    >>> power(2.0).slope(-3.0, 1.0), power(0.5).slope(0.0, 1.0), power(-1.0).slope(-1.0, 1.0)
    (6.0, inf, inf)
    """
    p = float(exponent)
    if not math.isfinite(p):
        raise InputError(f"Expected a finite exponent, got {p}.")
    if p in (0.0, 1.0):
        return Curve((_line(-_INF, _INF, p, 1.0 - p),))
    formula, whole = X**p, p.is_integer()
    sign = -1.0 if whole and p % 2 else 1.0
    zero = None if whole and p > 0 else (0.0 if p > 0 else _INF, 0.0 if p > 1 else math.copysign(_INF, p))
    far = (_INF if p > 0 else 0.0, _INF if p > 1 else 0.0)
    right = Piece(0.0, _INF, formula, (), (), zero, far)
    if not whole:
        return Curve((right,), least=0.0)
    pole = None if p > 0 else (sign * _INF, sign * _INF)
    left = Piece(-_INF, 0.0, formula, (), (), (sign * far[0], -sign * far[1]), pole)
    return Curve((left, right), jumps=() if p > 0 else ((0.0, True), (0.0, False)), least=0.0 if sign > 0 else -_INF)


_HALF_PI = math.nextafter(math.pi / 2, _INF)

#: Every activation that has a rule, by the name of its PyTorch operator: its curve for given parameters.
ACTIVATIONS: dict[str, Callable[..., Curve]] = {
    "identity": lambda: Curve((_line(-_INF, _INF, 1.0),)),
    "neg": lambda: Curve((_line(-_INF, _INF, -1.0),)),
    "abs": lambda: _leaky(-1.0),
    "relu": lambda: _leaky(0.0),
    "selu": lambda: _elu(SELU_ALPHA, SELU_SCALE),
    "silu": lambda: _whole(FORMULAS["silu"](X)),
    "mish": lambda: _whole(FORMULAS["mish"](X)),
    "sigmoid": lambda: _steepest_at_zero("sigmoid", ((0.0, 0.0), (1.0, 0.0)), least=0.0, most=1.0, steepest=0.25),
    "log_sigmoid": lambda: _monotone(FORMULAS["log_sigmoid"](X), ((-_INF, 1.0), (0.0, 0.0)), most=0.0, steepest=1.0),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "relu6": lambda: _clamp(0.0, 6.0),
    "tanh": lambda: _steepest_at_zero("tanh", ((-1.0, 0.0), (1.0, 0.0)), least=-1.0, most=1.0, steepest=1.0),
    "tanhshrink": lambda: _whole(
        FORMULAS["tanhshrink"](X), turns=(), bends=(0.0,), left=(-_INF, 1.0), right=(_INF, 1.0), steepest=1.0
    ),
    "softsign": _softsign,
    "erf": lambda: _steepest_at_zero("erf", ((-1.0, 0.0), (1.0, 0.0)), least=-1.0, most=1.0),
    "erfc": lambda: _steepest_at_zero("erfc", ((2.0, 0.0), (0.0, 0.0)), least=0.0, most=2.0),
    "atan": lambda: _steepest_at_zero(
        "atan", ((-_HALF_PI, 0.0), (_HALF_PI, 0.0)), least=-_HALF_PI, most=_HALF_PI, steepest=1.0
    ),
    "asinh": lambda: _steepest_at_zero("asinh", ((-_INF, 0.0), (_INF, 0.0)), steepest=1.0),
    "sinh": lambda: _whole(apply("sinh", X), turns=(), bends=(0.0,), left=(-_INF, _INF), right=(_INF, _INF)),
    "cosh": lambda: _whole(apply("cosh", X), turns=(0.0,), bends=(), left=(_INF, -_INF), right=(_INF, _INF), least=1.0),
    "sin": lambda: _whole(apply("sin", X), least=-1.0, most=1.0, steepest=1.0),
    "cos": lambda: _whole(apply("cos", X), least=-1.0, most=1.0, steepest=1.0),
    "asin": lambda: _whole(apply("asin", X), turns=(), bends=(0.0,), domain=(-1.0, 1.0)),
    "acos": lambda: _whole(apply("acos", X), turns=(), bends=(0.0,), domain=(-1.0, 1.0)),
    "acosh": lambda: _monotone(apply("acosh", X), ((0.0, _INF), (_INF, 0.0)), domain=(1.0, _INF)),
    "atanh": lambda: _whole(
        apply("atanh", X), turns=(), bends=(0.0,), left=(-_INF, _INF), right=(_INF, _INF), domain=(-1.0, 1.0)
    ),
    "exp": lambda: _monotone(apply("exp", X), ((0.0, 0.0), (_INF, _INF)), least=0.0),
    "exp2": lambda: _monotone(apply("exp", apply("log", constant(2.0)) * X), ((0.0, 0.0), (_INF, _INF)), least=0.0),
    "expm1": lambda: _monotone(FORMULAS["expm1"](X), ((-1.0, 0.0), (_INF, _INF)), least=-1.0),
    "log": lambda: _logarithm(X),
    "log2": lambda: _logarithm(X, 2.0),
    "log10": lambda: _logarithm(X, 10.0),
    "log1p": lambda: _logarithm(ONE + X),
    "sqrt": lambda: power(0.5),
    "rsqrt": lambda: power(-0.5),
    "square": lambda: power(2.0),
    "reciprocal": lambda: power(-1.0),
    # with parameters
    "leaky_relu": lambda negative_slope=0.01: _leaky(float(negative_slope)),
    "prelu": _prelu,
    "elu": _elu,
    "celu": _celu,
    "gelu": _gelu,
    "hardtanh": lambda min_val=-1.0, max_val=1.0: _clamp(min_val, max_val),
    "clamp": _clamp,
    "softplus": _softplus,
    "softshrink": _softshrink,
    "hardshrink": _hardshrink,
    "threshold": _threshold,
    "pow": power,
}


def curve_of(name: str, parameters: Mapping[str, Any] | None = None) -> Curve:
    """Return the curve of an activation for these parameters, defaults for the rest.

    Raises:
        UnknownActivationError: if there is no rule for the name.
        InputError: if a parameter is unknown.
    """
    if name not in ACTIVATIONS:
        raise UnknownActivationError(
            f"No rule for the activation {name!r}. Known activations: {', '.join(sorted(ACTIVATIONS))}."
        )
    given, known = dict(parameters or {}), inspect.signature(ACTIVATIONS[name]).parameters
    if not set(given) <= set(known):
        unknown = sorted(set(given) - set(known))
        raise InputError(f"Unknown parameters {unknown}: {name} has {sorted(known) or 'none'}.")
    return ACTIVATIONS[name](**given)


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
        InputError: if a parameter is unknown, or the interval is not valid.

    >>> round(slope("gelu"), 6), round(slope("silu"), 6), slope("relu", None, -2.0, -1.0), slope("hardshrink")
    (1.128904, 1.099839, 0.0, inf)
    """
    return curve_of(name, params).slope(low, high)


@statement("normscope", "Proposition ACT-2", holds="real arithmetic; both branches of softplus are covered")
def image(
    name: str, params: Mapping[str, Any] | None = None, low: float = -_INF, high: float = _INF
) -> tuple[float, float]:
    """Return a certified enclosure ``(lo, hi)`` of an activation's values on [low, high].

    Raises:
        UnknownActivationError: if there is no rule for the name.
        InputError: if a parameter is unknown, or the interval is not valid.

    >>> image("relu", None, -1.0, 2.0), image("sigmoid")
    ((0.0, 2.0), (0.0, 1.0))
    """
    return curve_of(name, params).image(low, high)
