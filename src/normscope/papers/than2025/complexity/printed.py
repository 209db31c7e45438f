"""Iteration counts as than2025 and its slides print them. None of them is a bound; each says what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.papers.than2025.complexity.positive import positive

_NOT_THIS = "printed of every method and this loss; lower bounds are for the worst function: weights of zero need none"
_RATE = "printed as L/alpha^2; the cited rate is L^2/(delta alpha^3), for Goldstein points"


@statement("than2025", "Section 5.1", holds="printed; the first holds for the worst convex function, the others do not")
def printed_lower_bounds(lipschitz: Value, alpha: float) -> dict[str, Value]:
    """Return the lower bounds printed before Corollary 18: convex ``L^2/alpha^2``, the others ``L/alpha``.

    Args:
        lipschitz: ``L``.
        alpha: accuracy.

    Raises:
        InputError: if ``alpha`` is not positive.

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

    Raises:
        InputError: if ``alpha`` is not positive.

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

    Raises:
        InputError: if ``alpha`` is not positive.

    >>> after = [Value.of(2.0, Kind.CERTIFIED)] * 3
    >>> round(corollary_19(after, 0.5).value, 9)
    32.0
    >>> round(corollary_19(after, 0.5, Value.of(0.5, Kind.PRINTED), 4).value, 9)
    2.0
    """
    reduced = 0.0 if inverse_std is None or count == 0 else count * inverse_std.log
    log = product(after).log - 2 * math.log(positive(alpha, "alpha")) + reduced
    return _printed(log, "Corollary 19", _RATE)


@statement(
    "than2025slides", "Convergence rate", holds="printed without what the error is of; non-convex at fixed delta"
)
def slides_rates(lipschitz: Value, alpha: float) -> dict[str, Value]:
    """Return iterations after which the printed errors are ``alpha``: ``(L^2/T)^(1/3)``, and ``L/sqrt(T)`` if convex.

    So ``T = L^2/alpha^3`` and ``T = L^2/alpha^2``: the first disagrees with ``L/alpha^2`` of Corollary 19.

    Raises:
        InputError: if ``alpha`` is not positive.

    >>> [round(v.value, 9) for v in slides_rates(Value.of(4.0, Kind.CERTIFIED), 0.5).values()]
    [128.0, 64.0]
    """
    log = math.log(positive(alpha, "alpha"))
    said = "printed as an error after T iterations"
    return {
        "non-convex": _printed(2 * lipschitz.log - 3 * log, "Convergence rate", said, "than2025slides"),
        "convex": _printed(2 * lipschitz.log - 2 * log, "Convergence rate", said, "than2025slides"),
    }


def _printed(log: float, number: str, assumption: str, paper: str = "than2025") -> Value:
    """Return a printed number with what is wrong with it."""
    return Value(log, Kind.PRINTED, statement=f"{paper} {number}", assumptions=(assumption,))
