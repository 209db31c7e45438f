r"""Gated activations ``g(x) = x w(x)`` with a gate ``w`` that rises from 0 to 1: GELU, SiLU, Mish.

``g' = w + x w'`` and ``g'' = 2 w' + x w''``. Each has two zeros of ``g''``, one on each side of zero; between them
``g'`` rises from its minimum (negative) to its maximum (above one), and one zero of ``g'``, where ``g`` is smallest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from normscope.core.errors import InputError
from normscope.operators.scalar.curve import Curve, Enclosed, Piece, bisect, points
from normscope.operators.scalar.smooth import ERROR, FLOOR, logistic, near

#: Value of the gate, value of its derivative, and how much their relative error grows with the argument.
Gate = Callable[[float], tuple[float, float, float]]


def _gated(gate: Gate, bends: tuple[float, ...], turn: float) -> Curve:
    """Return the curve of ``x w(x)`` from its gate, the zeros of ``g''`` and the zero of ``g'``."""

    def value(x: float) -> Enclosed:
        w, _, condition = gate(x)
        return near(x * w, condition)

    def slope(x: float) -> Enclosed:
        w, derivative, condition = gate(x)
        return w + x * derivative, ERROR * condition * (w + abs(x) * derivative) + FLOOR

    piece = Piece(
        -math.inf,
        math.inf,
        value,
        slope,
        bends=points(*bends),
        turns=points(turn),
        left=(0.0, 0.0),
        right=(math.inf, 1.0),
    )
    return Curve((piece,))


def _turn(gate: Gate, low: float, high: float) -> float:
    """Return the zero of ``g' = w + x w'`` in a bracket."""
    return bisect(lambda x: gate(x)[0] + x * gate(x)[1], low, high)


def _normal_gate(x: float) -> tuple[float, float, float]:
    """Return the gate of GELU: the normal distribution function, its density, and the condition ``1 + x^2``."""
    square = min(x * x, 1480.0)
    density = math.exp(-square / 2) / math.sqrt(2.0 * math.pi)
    return math.erfc(-x / math.sqrt(2.0)) / 2, density, 1.0 + square


_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBE = 0.044715


def _tanh_gate(x: float) -> tuple[float, float, float]:
    """Return the gate of tanh-GELU, ``s(2k(x + c x^3))``, its derivative and its condition."""
    inner = 2.0 * _TANH_SCALE * (x + _TANH_CUBE * x**3)
    share = logistic(inner) * logistic(-inner)
    return logistic(inner), 2.0 * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x) * share, 1.0 + min(abs(inner), 750.0)


def _tanh_bend(x: float) -> float:
    """Return ``g''`` of tanh-GELU up to a positive factor: ``1 + 6 c x^2 - x k (1 + 3 c x^2)^2 tanh(u)``."""
    inner = _TANH_SCALE * (x + _TANH_CUBE * x**3)
    return (1.0 + 6.0 * _TANH_CUBE * x * x) - x * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x) ** 2 * math.tanh(inner)


@cache
def gelu(approximate: str = "none") -> Curve:
    r"""Return ``x Phi(x)``, or its tanh form ``x s(2 sqrt(2/pi) (x + 0.044715 x^3))``.

    Exact form: ``g'' = phi(x)(2 - x^2)``, zeros at ``+-sqrt(2)``. Tanh form: ``g''`` is even and, for ``x > 0``, has
    the sign of ``1/k - x tanh(u) (1 + 3 c x^2)^2/(1 + 6 c x^2)``, which decreases: one zero on each side.

    Args:
        approximate: ``"none"`` or ``"tanh"``.

    Raises:
        InputError: for another name.

    >>> round(gelu().slope(), 6), round(gelu("tanh").slope(), 6), round(gelu().image()[0], 6)
    (1.128904, 1.128993, -0.169971)
    """
    if approximate == "none":
        return _gated(_normal_gate, (-math.sqrt(2.0), math.sqrt(2.0)), _turn(_normal_gate, -1.0, -0.5))
    if approximate == "tanh":
        bend = bisect(_tanh_bend, 1.0, 2.0)
        return _gated(_tanh_gate, (-bend, bend), _turn(_tanh_gate, -1.0, -0.5))
    raise InputError(f"gelu is 'none' or 'tanh', got approximate={approximate!r}")


def _logistic_gate(x: float) -> tuple[float, float, float]:
    """Return the gate of SiLU: the logistic function and its derivative."""
    return logistic(x), logistic(x) * logistic(-x), 1.0


@cache
def silu() -> Curve:
    """Return ``x s(x)``: ``g''`` has the sign of ``2 - x tanh(x/2)``, one zero on each side.

    >>> round(silu().slope(), 6), round(silu().image()[0], 6)
    (1.099839, -0.278465)
    """
    bend = bisect(lambda x: 2.0 - x * math.tanh(x / 2), 2.0, 3.0)
    return _gated(_logistic_gate, (-bend, bend), _turn(_logistic_gate, -2.0, -1.0))


def _mish_gate(x: float) -> tuple[float, float, float]:
    """Return the gate of Mish, ``tanh(log(1 + E)) = (E^2 + 2E)/(E^2 + 2E + 2)``, ``E = exp(x)``, and its derivative."""
    if x <= 0:
        e = math.exp(max(x, -745.0))
        below = e * e + 2.0 * e + 2.0
        return (e * e + 2.0 * e) / below, 4.0 * e * (e + 1.0) / below**2, 1.0
    e = math.exp(-min(x, 745.0))
    below = 1.0 + 2.0 * e + 2.0 * e * e
    return (1.0 + 2.0 * e) / below, 4.0 * e * e * (1.0 + e) / below**2, 1.0


def _mish_bend(x: float) -> float:
    """Return ``g''`` of Mish up to a positive factor, with ``E = exp(x)``."""
    e = math.exp(x)
    return 2 * e**3 + 6 * e**2 + 8 * e + 4 + x * (-2 * e**3 - 3 * e**2 + 2 * e + 2)


@cache
def mish() -> Curve:
    r"""Return ``x tanh(log(1 + exp x))``.

    With ``E = exp(x)``, ``g''`` has the sign of ``2E^3 + 6E^2 + 8E + 4 + x (-2E^3 - 3E^2 + 2E + 2)``: positive between
    its two zeros and negative outside.

    >>> round(mish().slope(), 6), round(mish().image()[0], 6)
    (1.088498, -0.308843)
    """
    bends = (bisect(_mish_bend, -3.0, -2.0), bisect(_mish_bend, 1.0, 2.0))
    return _gated(_mish_gate, bends, _turn(_mish_gate, -2.0, -1.0))
