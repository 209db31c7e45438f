"""Likelihoods: cross-entropy of classes and of binary targets, and what is linear in given log-probabilities.

The arguments are those of :func:`~normscope.lipschitz.loss.constants.loss_constant`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, sum_units, tree_sum, up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.lipschitz.loss.reduction import (
    constant,
    elementwise,
    nonnegative,
    per_output,
    positive_count,
    samplewise,
    unbounded,
    weighted_mean,
)

_NO_IGNORED = "no target equals ignore_index"


@statement("normscope", "Proposition LOSS-7", holds="a supremum that no finite logits attain")
def cross_entropy(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float = 1.0,
    weight: Sequence[float] | None = None,
    ignored: bool = False,
    soft_targets: bool = False,
) -> Value:
    """Return the constant of cross-entropy on logits ``h`` of ``k`` classes; plain and for one sample ``sqrt(2)``.

    With ``v = (1 - s) w_y e_y + (s/k) w`` and ``V = sum v`` the gradient is ``(V p - v)/tau``, ``p`` the softmax of
    ``h/tau``. It is affine in ``p``, so its norm is largest at a corner of the simplex, ``max_j ||V e_j - v||``, which
    ``p`` approaches as ``h_j`` grows. For means over several samples, with smoothing and only one class of least
    weight, the value is an upper bound of this. The mean is divided by the weights of the targets, as PyTorch does;
    for ``soft_targets`` by the number of samples. Where targets may be ``ignored``, a mean over one kept sample has the
    constant of one.

    >>> round(cross_entropy(10).value, 6), round(cross_entropy(5, label_smoothing=0.1).value, 6)
    (1.414214, 1.344619)
    """
    k, smoothing = positive_count(outputs, "outputs"), nonnegative(label_smoothing, "label_smoothing")
    if smoothing > 1:
        raise InputError(f"Expected label_smoothing between 0 and 1, got {label_smoothing}.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise InputError(f"Expected a positive temperature, got {temperature}.")
    weights = per_output(weight, k, "weight") or (Fraction(1),)
    smoothed = _Smoothed.of(weights, k, smoothing)
    # Convex functions of the weight are largest at the ends of its range; the least weight may be an exception.
    ends = sorted(set(weights))
    own = {w: smoothed.square(w) for w in (*ends[:2], *[w for w in ends if w > 0][:1], ends[-1])}
    if reduction == "mean" and not soft_targets:
        alone = max((q / w**2 for w, q in own.items() if w > 0), default=Fraction(0))
        square = weighted_mean(ends, smoothed.family, batch)
        square = alone if batch == 1 else max(square, alone) if ignored else square
    else:
        square = samplewise(max(own.values()), batch, reduction)
    assumed = () if ignored or soft_targets else (_NO_IGNORED,)
    return constant(square / Fraction(temperature) ** 2, "LOSS-7", assumptions=assumed)


@dataclass(frozen=True)
class _Smoothed:
    """What the gradients of all targets share."""

    k: int  #: the number of classes
    s: Fraction  #: the smoothing
    mean: Fraction  #: of the weights
    squares: Fraction  #: the sum of their squares
    least: Fraction  #: the least weight
    rival: Fraction | None  #: the second least if only one class has the least; else ``None``

    @classmethod
    def of(cls, weights: tuple[Fraction, ...], k: int, s: Fraction) -> _Smoothed:
        """Return them for one weight for each class, or one for all."""
        n, least = len(weights), min(weights)
        single = n == k > 1 and weights.count(least) == 1
        rival = min(w for w in weights if w > least) if single else None
        total = sum(weights, Fraction(0))
        return cls(k, s, total / n, sum((w**2 for w in weights), Fraction(0)) * (k // n), least, rival)

    def square(self, w: Fraction) -> Fraction:
        """Return ``max_j ||V e_j - v||^2`` for a target of weight ``w``.

        The largest is at the least ``v_j``: that of a class of least weight, unless the target is the only such class.
        """
        if w != self.least or self.rival is None:
            return self.family(w)
        return self._at(w, min(self.s * self.rival / self.k, (1 - self.s) * w + self.s * w / self.k))

    def family(self, w: Fraction) -> Fraction:
        """Return the same with ``(s/k) min w <= min_j v_j`` for it: a sum of squares of affine functions of ``w``."""
        return self._at(w, self.s * self.least / self.k)

    def _at(self, w: Fraction, lowest: Fraction) -> Fraction:
        """Return ``V^2 - 2 V l + ||v||^2``."""
        if self.k == 1:
            return Fraction(0)
        k, s = self.k, self.s
        total = (1 - s) * w + s * self.mean
        own = (2 * s * (1 - s) / k + (1 - s) ** 2) * w**2
        return total**2 - 2 * total * lowest + (s / k) ** 2 * self.squares + own


@statement("normscope", "Proposition LOSS-7", holds="at given logits")
def cross_entropy_at(logits: Tensor, target: int) -> Value:
    """Return ``||p - e_y||``, the norm of the gradient of cross-entropy at given logits.

    It lies between ``sqrt(k/(k - 1)) (1 - p_y)`` and ``sqrt(2) (1 - p_y)``. The entry at the target is the sum of the
    other probabilities, so nothing cancels, however sure the network is.

    Args:
        logits: the ``k`` logits of one sample.
        target: its class ``y``.

    Raises:
        InputError: if the class is none of them.
        NonFiniteError: if a logit is not finite.

    >>> round(cross_entropy_at(torch.zeros(2), 0).value, 12)
    0.707106781187
    """
    h = as_float64(logits, "logits").reshape(-1)
    k = h.numel()
    if not 0 <= target < k:
        raise InputError(f"Expected a target among the {k} classes, got {target}.")
    gaps = h - h.max()
    exponentials = torch.exp(gaps)
    exponentials[gaps < -700] = math.exp(-700)  # upwards, where they would be lost
    others = torch.cat([exponentials[:target], exponentials[target + 1 :]])
    rest = float(tree_sum(others)) if k > 1 else 0.0
    whole = rest + float(exponentials[target])
    norm = math.hypot(float(torch.linalg.vector_norm(others)), rest) / whole
    # exp(x) of a rounded x <= 0 errs by at most (|x| + 2) u <= 702 u; twice, and the sums around it
    return Value.of(
        up(norm, 2000.0 + 4 * sum_units(k)),
        Kind.CERTIFIED,
        domain="at these outputs",
        statement="normscope Proposition LOSS-7",
    )


_TARGETS = "targets are between 0 and 1"
_REASON = (
    "the gradient 1/p grows as a probability p goes to zero: pass a floor t for a constant on "
    "t <= p <= 1 - t, or use the loss on logits"
)


@statement("normscope", "Proposition LOSS-9", holds="targets between 0 and 1; a supremum that no finite logits attain")
def bce_with_logits(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    pos_weight: Sequence[float] | None = None,
) -> Value:
    """Return the constant of binary cross-entropy on logits: slopes below ``w_j max(1, b_j)``, so ``sqrt(n)`` plain.

    The derivative of ``w (b y log(1 + e^-h) + (1 - y) log(1 + e^h))`` is ``w ((1 - y) q - b y (1 - q))`` with ``q``
    the sigmoid of ``h``: between ``-w b`` and ``w``, the entries of ``weight`` and ``pos_weight``.

    >>> round(bce_with_logits(4, reduction="sum").value, 9), round(bce_with_logits(4).value, 9)
    (2.0, 0.5)
    """
    n = positive_count(outputs, "outputs")
    weights, positive = (per_output(w, n, name) for w, name in ((weight, "weight"), (pos_weight, "pos_weight")))
    slopes: Sequence[Fraction] | Fraction = Fraction(1)
    if weights is not None or positive is not None:
        ones = (Fraction(1),) * n
        slopes = tuple(w * max(Fraction(1), b) for w, b in zip(weights or ones, positive or ones, strict=True))
    return constant(elementwise(slopes, n, batch, reduction), "LOSS-9", assumptions=(_TARGETS,))


@statement("normscope", "Proposition LOSS-9", holds="probabilities in [t, 1 - t]; no constant on all of [0, 1]")
def bce(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    floor: float | None = None,
) -> Value:
    """Return the constant of binary cross-entropy on probabilities in ``[t, 1 - t]``: slopes up to ``w_j/t``.

    Without the ``floor`` ``t``, positive and at most a half, the value is "no bound" and says why.

    >>> round(bce(1, floor=0.125).value, 9), bce(1).log
    (8.0, inf)
    """
    n = positive_count(outputs, "outputs")
    weights = per_output(weight, n, "weight")
    if floor is None:
        elementwise(Fraction(1), n, batch, reduction)  # the other arguments are checked all the same
        return unbounded(_REASON, "LOSS-9")
    if not 0 < floor <= 0.5:
        raise InputError(f"Expected a floor in (0, 0.5], got {floor}.")
    steepest = 1 / Fraction(floor)
    slopes = steepest if weights is None else tuple(w * steepest for w in weights)
    domain = f"probabilities between {floor:g} and {1 - floor:g}"
    return constant(elementwise(slopes, n, batch, reduction), "LOSS-9", domain, (_TARGETS,))


_PROBABILITIES = "targets are probabilities"


@statement("normscope", "Proposition LOSS-8")
def nll(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    ignored: bool = False,
) -> Value:
    """Return the constant of ``-w_y h_y``, linear in the log-probabilities ``h``: the largest weight, or one.

    A softmax before it is not included: cross-entropy on logits is both together. The mean is divided by the
    weights of the targets.

    >>> round(nll(10).value, 9), round(nll(10, batch=4).value, 9), round(nll(10, batch=4, ignored=True).value, 9)
    (1.0, 0.5, 1.0)
    """
    weights = per_output(weight, positive_count(outputs, "outputs"), "weight") or (Fraction(1),)
    if reduction == "mean":
        kept = (1, batch) if ignored else (batch,)
        square = max(weighted_mean(weights, lambda w: w**2, m) for m in kept)
    else:
        square = samplewise(max(weights) ** 2, batch, reduction)
    return constant(square, "LOSS-8", assumptions=() if ignored else (_NO_IGNORED,))


@statement("normscope", "Proposition LOSS-8", holds="targets that are probabilities")
def kl(outputs: int, *, batch: int = 1, reduction: str = "batchmean") -> Value:
    """Return the constant of ``sum_j t_j (log t_j - h_j)``, linear in the log-probabilities: ``max ||t|| = 1``.

    >>> round(kl(4).value, 9), round(kl(4, reduction="mean").value, 9)
    (1.0, 0.25)
    """
    n, m = positive_count(outputs, "outputs"), positive_count(batch, "batch")
    squares = {"batchmean": Fraction(1, m), "mean": Fraction(m, (m * n) ** 2), "sum": Fraction(m), "none": Fraction(1)}
    if reduction not in squares:
        raise InputError(f"Expected a reduction ({', '.join(squares)}), got {reduction!r}.")
    return constant(squares[reduction], "LOSS-8", assumptions=(_PROBABILITIES,))


@statement("normscope", "Proposition LOSS-15", holds="no constant on all outputs")
def poisson_nll(outputs: int) -> Value:
    """Return "no bound": the derivative of ``exp(h) - t h`` is ``exp(h) - t``, and that of ``h - t log h`` ``1 - t/h``.

    >>> poisson_nll(3).log
    inf
    """
    positive_count(outputs, "outputs")
    return unbounded(
        "the gradient of a Poisson likelihood grows with exp(h), or with 1/h: bound the outputs", "LOSS-15"
    )


@statement("normscope", "Proposition LOSS-15", holds="no constant on all outputs")
def gaussian_nll(outputs: int) -> Value:
    """Return "no bound": the derivative of ``(h - y)^2/(2 v)`` is ``(h - y)/v``, in the mean ``h`` of variance ``v``.

    >>> gaussian_nll(3).log
    inf
    """
    positive_count(outputs, "outputs")
    return unbounded("the gradient of a Gaussian likelihood grows with the error over the variance", "LOSS-15")
