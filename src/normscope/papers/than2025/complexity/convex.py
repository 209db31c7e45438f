"""Convex problems: iterations that suffice for the subgradient method, and that any such method needs at worst."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.papers.than2025.complexity.positive import factor, positive

_CONVEX = "the loss is convex, with a minimizer within R of the start"
_STRONG = "the loss is strongly convex with modulus mu, on a ball on which it is L-Lipschitz"
_WORST = "for the worst function of its class, of at least as many dimensions as iterations"


@statement("normscope", "Proposition OPT-1", holds="convex, a minimizer within R of the start")
def convex_upper(lipschitz: Value, radius: float, alpha: float) -> Value:
    """Return ``(L R/alpha)^2``: iterations after which the subgradient method is within ``alpha`` of the minimum.

    Args:
        lipschitz: ``L``.
        radius: ``R``, distance of the start from a minimizer.
        alpha: accuracy of the value.

    Raises:
        InputError: if a number is not positive.

    >>> round(convex_upper(Value.of(2.0, Kind.CERTIFIED), 3.0, 0.5).value, 9)
    144.0
    """
    ratio = factor(Fraction(positive(radius, "radius")) / Fraction(positive(alpha, "alpha")), lipschitz.kind)
    return _said(product((lipschitz, ratio)) ** 2, "OPT-1", _CONVEX)


@statement("normscope", "Proposition OPT-2", holds="for the worst convex function; subgradients span the iterates")
def convex_lower(lipschitz: Value, radius: float, alpha: float) -> Value:
    """Return ``(L R/(2 alpha) - 1)^2``, or zero: iterations before which no such method is within ``alpha``, at worst.

    After ``t`` of them the worst function is still ``L R/(2 (1 + sqrt(t)))`` above its minimum. It says nothing about a
    given function: a start at a minimizer needs none.

    Args:
        lipschitz: ``L``.
        radius: ``R``, of the ball that holds a minimizer.
        alpha: accuracy of the value.

    Raises:
        InputError: if a number is not positive.

    >>> round(convex_lower(Value.of(2.0, Kind.CERTIFIED), 3.0, 0.5).value, 9)
    25.0
    """
    terms = (lipschitz.log, math.log(positive(radius, "radius")), -math.log(positive(alpha, "alpha")), -math.log(2))
    log = math.fsum(terms)
    if math.isfinite(log):  # moved down by more than the rounding of these logarithms, before and after
        log -= 1e-14 * (1 + math.fsum(map(abs, terms)))
    count = -math.inf if log <= 0 else 2 * (log + math.log1p(-math.exp(-log)))
    count = math.nextafter(count - 1e-14 * abs(count), -math.inf) if math.isfinite(count) else count
    lower = Value(math.inf if log == math.inf else count, Kind.LOWER, assumptions=lipschitz.assumptions)
    return _said(lower, "OPT-2", _WORST)


@statement("normscope", "Proposition OPT-3", holds="strongly convex")
def strongly_convex_upper(lipschitz: Value, modulus: float, alpha: float) -> Value:
    """Return ``2 L^2/(mu alpha)``: iterations after which the subgradient method is within ``alpha`` of the minimum.

    Args:
        lipschitz: ``L``.
        modulus: ``mu``, of strong convexity.
        alpha: accuracy of the value.

    Raises:
        InputError: if a number is not positive.

    >>> round(strongly_convex_upper(Value.of(3.0, Kind.CERTIFIED), 0.5, 0.25).value, 9)
    144.0
    """
    ratio = Fraction(2) / (Fraction(positive(modulus, "modulus")) * Fraction(positive(alpha, "alpha")))
    return _said(product((lipschitz**2, factor(ratio, lipschitz.kind))), "OPT-3", _STRONG)


@statement(
    "normscope", "Proposition OPT-4", holds="for the worst strongly convex function; subgradients span the iterates"
)
def strongly_convex_lower(lipschitz: Value, modulus: float, alpha: float) -> Value:
    """Return ``L^2/(8 mu alpha)``: iterations before which no such method is within ``alpha``, at worst.

    than2025 prints ``L/alpha``: a square and the modulus are missing.

    Raises:
        InputError: if a number is not positive.

    >>> round(strongly_convex_lower(Value.of(4.0, Kind.CERTIFIED), 0.5, 0.25).value, 9)
    16.0
    """
    ratio = Fraction(1, 8) / (Fraction(positive(modulus, "modulus")) * Fraction(positive(alpha, "alpha")))
    lower = Value(lipschitz.log, Kind.LOWER, assumptions=lipschitz.assumptions) ** 2
    return _said(product((lower, factor(ratio, Kind.LOWER))), "OPT-4", _WORST)


def _said(value: Value, number: str, assumption: str) -> Value:
    """Return a count with its statement and what it assumes."""
    assumptions = tuple(dict.fromkeys((*value.assumptions, assumption)))
    return replace(value, statement=f"normscope Proposition {number}", assumptions=assumptions)
