"""Iteration counts of gradient descent and of stochastic gradients: as printed, and as the theorems behind them say."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product, safe_side


def positive(x: float, name: str) -> float:
    """Return a finite positive number."""
    if isinstance(x, bool) or not (math.isfinite(x) and x > 0):
        raise InputError(f"Expected {name} to be positive, got {x}.")
    return float(x)


def factor(x: Fraction | float, kind: Kind) -> Value:
    """Return a positive number as a value of some kind, rounded to its safe side.

    >>> factor(Fraction(1, 3), Kind.CERTIFIED).value >= 1 / 3
    True
    """
    exact = Fraction(x)
    near = float(exact)
    side = safe_side(kind)
    if not math.isnan(side) and Fraction(near) != exact and (Fraction(near) < exact) == (side > 0):
        near = math.nextafter(near, side)
    return Value.of(near, kind)


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

    >>> round(convex_upper(Value.of(2.0, Kind.CERTIFIED), 3.0, 0.5).value, 9)
    144.0
    """
    ratio = factor(Fraction(positive(radius, "radius")) / Fraction(positive(alpha, "alpha")), lipschitz.kind)
    return _said(product((lipschitz, ratio)) ** 2, "OPT-1", _CONVEX)


@statement("normscope", "Proposition OPT-2", holds="for the worst convex function; subgradients span the iterates")
def convex_lower(lipschitz: Value, radius: float, alpha: float) -> Value:
    """Return ``(L R/(2 alpha) - 1)^2``, or zero: iterations before which no such method is within ``alpha``, at worst.

    After ``t`` of them the worst function is still ``L R/(2 (1 + sqrt(t)))`` above its minimum. It says nothing about a
    given function: a start at a minimizer needs none. Arguments are those of :func:`convex_upper`.

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

    >>> round(strongly_convex_lower(Value.of(4.0, Kind.CERTIFIED), 0.5, 0.25).value, 9)
    16.0
    """
    ratio = Fraction(1, 8) / (Fraction(positive(modulus, "modulus")) * Fraction(positive(alpha, "alpha")))
    lower = Value(lipschitz.log, Kind.LOWER, assumptions=lipschitz.assumptions) ** 2
    return _said(product((lower, factor(ratio, Kind.LOWER))), "OPT-4", _WORST)


def _said(value: Value, number: str, assumption: str) -> Value:
    assumptions = tuple(dict.fromkeys((*value.assumptions, assumption)))
    return replace(value, statement=f"normscope Proposition {number}", assumptions=assumptions)


ORDER = "an order of magnitude: constants and logarithms are left out"
GOLDSTEIN = "some average of gradients within delta of the point is shorter than alpha"


@statement(
    "normscope", "Proposition OPT-5", holds="cited (Zhang et al. 2020, Davis et al. 2022), up to constants and logs"
)
def goldstein(lipschitz: Value, gap: float, delta: float, alpha: float) -> Value:
    """Return ``D L^2/(delta alpha^3)``: the order of gradients that find a (delta, alpha)-Goldstein stationary point.

    There some convex combination of gradients at points within ``delta`` has norm at most ``alpha``. A point whose own
    gradient is that small cannot be found in any finite number of steps for all Lipschitz functions.

    Args:
        lipschitz: ``L``.
        gap: ``D``, how far the start is above the infimum.
        delta: radius.
        alpha: length of the average gradient.

    Returns:
        An estimate, whatever the kind of ``L``: constants are not known here.

    >>> round(goldstein(Value.of(2.0, Kind.CERTIFIED), 1.0, 0.5, 0.5).value, 9)
    64.0
    """
    cube = Fraction(positive(alpha, "alpha")) ** 3
    ratio = Fraction(positive(gap, "gap")) / (Fraction(positive(delta, "delta")) * cube)
    count = product((lipschitz**2, factor(ratio, Kind.ESTIMATE)))
    assumptions = tuple(dict.fromkeys((*lipschitz.assumptions, GOLDSTEIN, ORDER)))
    kind = Kind.PRINTED if lipschitz.kind is Kind.PRINTED else Kind.ESTIMATE
    return Value(count.log, kind, lipschitz.domain, lipschitz.mode, "normscope Proposition OPT-5", assumptions)


_NOT_THIS = "printed of every method and this loss; lower bounds are for the worst function: weights of zero need none"
_RATE = "printed as L/alpha^2; the cited rate is L^2/(delta alpha^3), for Goldstein points"


@statement("than2025", "Section 5.1", holds="printed; the first holds for the worst convex function, the others do not")
def printed_lower_bounds(lipschitz: Value, alpha: float) -> dict[str, Value]:
    """Return the lower bounds printed before Corollary 18: convex ``L^2/alpha^2``, the others ``L/alpha``.

    Args:
        lipschitz: ``L``.
        alpha: accuracy.

    >>> bounds = printed_lower_bounds(Value.of(4.0, Kind.CERTIFIED), 0.5)
    >>> [round(v.value, 9) for v in bounds.values()]
    [64.0, 8.0, 8.0]
    """
    log = lipschitz.log - math.log(positive(alpha, "alpha"))
    wrong = {
        "convex": (2 * log, "holds for the worst convex function, up to the radius"),
        "strongly convex": (log, "true is L^2/(8 mu alpha)"),
        "non-convex": (log, "alpha-stationary points cannot be reached in finite time"),
    }
    return {name: _printed(x, "Section 5.1", said) for name, (x, said) in wrong.items()}


@statement("than2025", "Corollary 18", holds="printed; not a bound: a given loss may need no iteration at all")
def corollary_18(after: Sequence[Value], alpha: float) -> Value:
    """Return ``s_{i+1} ... s_K/alpha``, printed as what any method needs for the weight of layer ``i``.

    Args:
        after: norms ``s_{i+1}, ..., s_K`` of the layers after it.
        alpha: accuracy.

    >>> round(corollary_18([Value.of(2.0, Kind.CERTIFIED)] * 3, 0.5).value, 9)
    16.0
    """
    return _printed(product(after).log - math.log(positive(alpha, "alpha")), "Corollary 18", _NOT_THIS)


@statement(
    "than2025", "Corollary 19", holds="printed; the cited rate has L^2, delta and alpha^3, and other stationarity"
)
def corollary_19(after: Sequence[Value], alpha: float, inverse_std: Value | None = None, count: int = 0) -> Value:
    """Return ``sigma^(-(K - i + 1)) s_{i+1} ... s_K/alpha^2``, printed as what suffices for the weight of layer ``i``.

    Args:
        after: norms ``s_{i+1}, ..., s_K`` of the layers after it.
        alpha: accuracy.
        inverse_std: ``1/sigma`` of Corollary 10, the largest printed constant of a BatchNorm; none without normalizers.
        count: normalizers from layer ``i`` on, ``K - i + 1`` if each layer has one.

    >>> after = [Value.of(2.0, Kind.CERTIFIED)] * 3
    >>> round(corollary_19(after, 0.5).value, 9)
    32.0
    >>> round(corollary_19(after, 0.5, Value.of(0.5, Kind.PRINTED), 4).value, 9)
    2.0
    """
    reduced = 0.0 if inverse_std is None or count == 0 else count * inverse_std.log
    log = product(after).log - 2 * math.log(positive(alpha, "alpha")) + reduced
    return _printed(log, "Corollary 19", _RATE)


def _printed(log: float, number: str, assumption: str) -> Value:
    return Value(log, Kind.PRINTED, statement=f"than2025 {number}", assumptions=(assumption,))
