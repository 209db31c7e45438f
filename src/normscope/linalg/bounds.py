"""Two-sided bounds on the norm of a linear map: an attained value and a certified upper bound."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from normscope.core.value import log_of

#: How far, relative to a logarithm, rounding alone may put a certificate below an attained value.
ROUNDING = 1e-9


@dataclass(frozen=True)
class NormBounds:
    r"""Two-sided bounds :math:`\ell \le \|A\|_2 \le u` in the log domain.

    >>> bounds = NormBounds.exact(2.0, method="closed form")
    >>> bounds.lower <= 2.0 <= bounds.upper, bounds.delta
    (True, 0.0)
    """

    log_lower: float  #: natural logarithm of a value the map attains; ``-inf`` is zero
    log_upper: float  #: natural logarithm of the deterministic certificate; ``inf`` is "none"
    log_probable: float  #: the best upper bound, probabilistic ones included; never above ``log_upper``
    delta: float  #: the probability with which ``log_probable`` may fail; 0 where it is the certificate itself
    method: str  #: how the bounds were found

    def __post_init__(self) -> None:
        """Check that the numbers are bounds."""
        if math.isnan(self.log_lower) or math.isnan(self.log_upper) or math.isnan(self.log_probable):
            raise ValueError("Expected bounds to be numbers, got NaN. Check the map for NaN or infinity.")
        if not self.log_lower <= self.log_probable <= self.log_upper:
            raise ValueError(
                f"Expected lower <= probable <= upper, got {self.log_lower}, {self.log_probable}, {self.log_upper}."
            )
        if not 0.0 <= self.delta < 1.0:
            raise ValueError(f"Expected delta in [0, 1), got {self.delta}.")

    @classmethod
    def certified(cls, log_lower: float, log_upper: float, method: str) -> NormBounds:
        """Return bounds without a probabilistic part."""
        return cls(log_lower, log_upper, log_upper, 0.0, method)

    @classmethod
    def between(cls, lower: float, upper: float, method: str) -> NormBounds:
        """Return bounds given as numbers, rounded outwards in the log domain.

        >>> bounds = NormBounds.between(0.0, 2.0, "closed form")
        >>> bounds.log_lower, bounds.upper >= 2.0
        (-inf, True)
        """
        return cls.certified(log_of(lower), log_of(upper), method).widen(2.0**-51)

    @classmethod
    def exact(cls, norm: float, *, method: str, relative: float = 2.0**-50) -> NormBounds:
        """Return the bounds of a norm known up to a relative rounding error.

        >>> NormBounds.exact(0.0, method="zero").upper
        0.0
        """
        return cls.certified(log_of(norm), log_of(norm), method).widen(relative)

    @property
    def lower(self) -> float:
        """Return the attained value."""
        return _exp(self.log_lower)

    @property
    def upper(self) -> float:
        """Return the deterministic certificate."""
        return _exp(self.log_upper)

    @property
    def probable(self) -> float:
        """Return the best upper bound; it holds with probability at least ``1 - delta``."""
        return _exp(self.log_probable)

    @property
    def width(self) -> float:
        """Return ``upper / lower - 1``, zero for the zero map."""
        return _relative_gap(self.log_lower, self.log_upper)

    @property
    def probable_width(self) -> float:
        """Return ``probable / lower - 1``, zero for the zero map."""
        return _relative_gap(self.log_lower, self.log_probable)

    def scaled(self, log_factor: float) -> NormBounds:
        """Return the bounds of the map multiplied by ``exp(log_factor)``, rounded outwards."""
        return self if log_factor == 0.0 else self._moved(log_factor, log_factor)

    def widen(self, relative: float) -> NormBounds:
        r"""Return bounds that also hold for any norm within :math:`(1 \pm r)` of these.

        >>> NormBounds.certified(0.0, 0.0, "one").widen(1e-3).width > 1.9e-3
        True
        """
        if not 0.0 <= relative < 1.0:
            raise ValueError(f"Expected a relative error in [0, 1), got {relative}.")
        return self._moved(math.log1p(-relative), math.log1p(relative))

    def _moved(self, down: float, up: float) -> NormBounds:
        """Return bounds with numbers added to the logarithms, rounded outwards."""
        return replace(
            self,
            log_lower=_away(self.log_lower + down, -1.0),
            log_upper=_away(self.log_upper + up, 1.0),
            log_probable=_away(self.log_probable + up, 1.0),
        )

    def with_upper(self, log_upper: float, method: str) -> NormBounds:
        """Return the bounds with another certificate, which must not lie below the attained value."""
        if log_upper >= self.log_upper:
            return self
        return replace(self.meet(NormBounds.certified(-math.inf, log_upper, method)), method=method)

    def with_lower(self, log_lower: float) -> NormBounds:
        """Return the bounds with another attained value, which must not lie above the certificate."""
        return self.meet(NormBounds.certified(log_lower, math.inf, self.method))

    def with_probable(self, log_probable: float, delta: float, method: str) -> NormBounds:
        """Return the bounds with another probabilistic upper bound."""
        if log_probable >= self.log_probable:
            return self
        return replace(self, log_probable=max(log_probable, self.log_lower), delta=delta, method=method)

    def meet(self, other: NormBounds) -> NormBounds:
        """Return the intersection of two bounds on the same norm; the method is that of the first.

        Raises:
            ValueError: if a certificate lies below an attained value by more than rounding: one of the two is wrong.

        >>> wide = NormBounds.between(0.0, 4.0, "product")
        >>> round(NormBounds.between(1.0, 5.0, "lanczos").meet(wide).upper, 12)
        4.0
        """
        lower = max(self.log_lower, other.log_lower)
        upper = min(self.log_upper, other.log_upper)
        if upper < lower - ROUNDING * max(1.0, abs(lower)):
            raise ValueError(f"The certificate {upper} is below the attained value {lower}: one of them is wrong.")
        upper = max(upper, lower)
        better = self if self.log_probable <= other.log_probable else other
        probable = min(max(better.log_probable, lower), upper)
        delta = 0.0 if probable == upper else better.delta
        return NormBounds(lower, upper, probable, delta, self.method)


def largest_norm(bounds: Iterable[NormBounds]) -> NormBounds:
    """Return the bounds of a block-diagonal map from those of its blocks.

    Lower bounds, certificates and probable bounds are maximised separately; failure probabilities add up.

    >>> a, b = NormBounds.exact(1.0, method="a"), NormBounds.exact(3.0, method="b")
    >>> round(largest_norm([a, b]).upper, 12)
    3.0
    """
    blocks = tuple(bounds)
    if not blocks:
        return NormBounds.exact(0.0, method="empty")
    top = max(blocks, key=lambda block: block.log_probable)
    upper = max(block.log_upper for block in blocks)
    probable = max(block.log_probable for block in blocks)
    delta = math.fsum(block.delta for block in blocks)
    if delta >= 1.0 or probable == upper:
        probable, delta = upper, 0.0
    return NormBounds(max(block.log_lower for block in blocks), upper, probable, delta, top.method)


def _exp(log: float) -> float:
    """Return ``exp`` with overflow to infinity."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def _relative_gap(log_lower: float, log_upper: float) -> float:
    """Return ``exp(log_upper - log_lower) - 1``, zero when both are zero norms."""
    if log_upper == -math.inf:
        return 0.0
    return math.expm1(log_upper - log_lower) if log_upper - log_lower < 700 else math.inf


def _away(log: float, sign: float) -> float:
    """Return ``log`` moved outwards by four ulps (at least of one), which cover its rounding; infinities unchanged."""
    if math.isinf(log):
        return log
    return log + sign * 4.0 * math.ulp(max(abs(log), 1.0))
