"""How a loss of one sample becomes a loss of a batch: sum, mean, or none; and roots of rationals, rounded up.

A loss maps the stacked outputs of a batch to a number, so its constant is the norm of its gradient on the stack. Its
square is a rational number of the parameters, which floats hold exactly: it is kept as a fraction until the end.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS, Kind, Value

REDUCTIONS = ("mean", "sum", "none")


def root_up(square: Fraction) -> float:
    """Return the least float known to be at least ``sqrt(square)``; exact where the root is a float.

    >>> root_up(Fraction(9, 4)), root_up(Fraction(0)), Fraction(root_up(Fraction(2))) ** 2 >= 2
    (1.5, 0.0, True)
    """
    if square < 0:
        raise ValueError(f"Expected the square of a constant to be at least 0, got {square}.")
    # Scaled by an even power of two, so that the float of a huge or a tiny fraction exists.
    shift = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    scaled = square / Fraction(4) ** shift
    root = math.sqrt(float(scaled))
    while Fraction(root) ** 2 < scaled:
        root = math.nextafter(root, math.inf)
    below = math.nextafter(root, 0.0)
    while root > 0 and Fraction(below) ** 2 >= scaled:
        root, below = below, math.nextafter(below, 0.0)
    try:
        found = math.ldexp(root, shift)
    except OverflowError:
        return math.inf
    return found if Fraction(found) ** 2 >= square else math.nextafter(found, math.inf)  # rounded where subnormal


def positive_count(n: int, name: str) -> int:
    """Return a count of at least one."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"Expected {name} to be an integer of at least 1, got {n!r}.")
    return n


def nonnegative(x: float, name: str) -> Fraction:
    """Return a finite number of at least zero as an exact fraction."""
    if not (math.isfinite(x) and x >= 0):
        raise InputError(f"Expected {name} to be a finite number >= 0, got {x}.")
    return Fraction(x)


def per_output(weight: Sequence[float] | None, outputs: int, name: str) -> tuple[Fraction, ...] | None:
    """Return weights of at least zero, one for each output, as fractions; ``None`` stands for ones."""
    if weight is None:
        return None
    if len(weight) != outputs:
        raise InputError(f"Expected {name} to have one number for each of the {outputs} outputs, got {len(weight)}.")
    return tuple(nonnegative(float(w), name) for w in weight)


@statement("normscope", "Proposition LOSS-1", holds="a loss that is a sum over outputs")
def elementwise(slopes: Sequence[Fraction] | Fraction, outputs: int, batch: int, reduction: str) -> Fraction:
    """Return the squared constant of a loss ``sum_ij phi_j(h_ij)`` of a batch, ``|phi_j'| <= s_j``.

    The gradient has the entries ``phi_j'(h_ij)``. With ``S = sum_j s_j^2`` over the ``n`` outputs of one of ``m``
    samples its square is at most ``m S`` for the sum, ``m S/(m n)^2`` for the mean over all entries, and the Jacobian
    of the unreduced loss is diagonal, with ``max_j s_j^2``.

    Args:
        slopes: ``s_j``, one for each output, or one for all.
        outputs: ``n``.
        batch: ``m``.
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        InputError: if the reduction is unknown or a count is not positive.

    >>> elementwise(Fraction(1), 4, 1, "sum"), elementwise(Fraction(1), 4, 1, "mean")
    (Fraction(4, 1), Fraction(1, 4))
    """
    n, m = positive_count(outputs, "outputs"), positive_count(batch, "batch")
    total = n * slopes**2 if isinstance(slopes, Fraction) else sum((s**2 for s in slopes), Fraction(0))
    if reduction == "none":
        return slopes**2 if isinstance(slopes, Fraction) else max(s**2 for s in slopes)
    return _known(reduction, m * total, m * n)


@statement("normscope", "Proposition LOSS-1", holds="a loss of whole samples")
def samplewise(square: Fraction, batch: int, reduction: str) -> Fraction:
    """Return the squared constant of ``m`` samples, each of squared constant ``q``: ``m q``, ``q/m`` or ``q``.

    >>> samplewise(Fraction(2), 8, "mean"), samplewise(Fraction(2), 8, "sum"), samplewise(Fraction(2), 8, "none")
    (Fraction(1, 4), Fraction(16, 1), Fraction(2, 1))
    """
    m = positive_count(batch, "batch")
    return square if reduction == "none" else _known(reduction, m * square, m)


@statement("normscope", "Proposition LOSS-2", holds="q a sum of squares of affine functions of the weight")
def weighted_mean(weights: Sequence[Fraction], square: Callable[[Fraction], Fraction], batch: int) -> Fraction:
    """Return the largest ``sum_i q(w_i)/(sum_i w_i)^2`` over ``m`` of some weights, as for weights of classes.

    ``sqrt(sum q)/sum w`` is a norm of affine functions over a positive linear one, so it is quasi-convex and over a box
    of weights largest at a corner: ``j`` weights largest, the others least. Batches of total weight zero have no mean:
    where zero is a weight, one of the ``m`` is positive, the least or the largest.

    Args:
        weights: those that may occur, >= 0.
        square: ``q``, the squared gradient of a sample of some weight.
        batch: ``m``.

    Raises:
        InputError: if no weight is positive.

    >>> weighted_mean([Fraction(1)], lambda w: 2 * w**2, 8)
    Fraction(1, 4)
    """
    m, positive = positive_count(batch, "batch"), [w for w in weights if w > 0]
    if not positive:
        raise InputError("Expected a positive class weight: the mean divides by their sum.")
    low, high = min(weights), max(weights)
    starts = (
        ((Fraction(0), Fraction(0), m),) if low > 0 else tuple((square(w), w, m - 1) for w in (min(positive), high))
    )
    return max(
        _best_count(q + n * square(low), square(high) - square(low), w + n * low, high - low, n) for q, w, n in starts
    )


def _best_count(a: Fraction, rise: Fraction, b: Fraction, step: Fraction, most: int) -> Fraction:
    """Return the largest ``(a + j rise)/(b + j step)^2`` over ``0 <= j <= most``: ends, or near its extremum."""
    counts = {0, most}
    if rise * step != 0:
        at = math.floor((b * rise - 2 * a * step) / (rise * step))
        counts |= {min(max(j, 0), most) for j in (at, at + 1)}
    return max((a + j * rise) / (b + j * step) ** 2 for j in counts)


def _known(reduction: str, square: Fraction, count: int) -> Fraction:
    """Return the squared constant of a sum, or of a mean over ``count`` terms."""
    if reduction not in ("sum", "mean"):
        raise InputError(f"Expected a reduction ({', '.join(REDUCTIONS)}), got {reduction!r}.")
    return square / count**2 if reduction == "mean" else square


def constant(square: Fraction, number: str, domain: str = ALL_INPUTS, assumptions: tuple[str, ...] = ()) -> Value:
    """Return a certified constant from its square.

    >>> round(constant(Fraction(4), "LOSS-1").value, 9)
    2.0
    """
    return Value.of(
        root_up(square),
        Kind.CERTIFIED,
        domain=domain,
        statement=f"normscope Proposition {number}",
        assumptions=assumptions,
    )


def unbounded(reason: str, number: str) -> Value:
    """Return "no bound" with the reason: the loss has no constant on all outputs."""
    return Value(math.inf, Kind.CERTIFIED, statement=f"normscope Proposition {number}", assumptions=(reason,))
