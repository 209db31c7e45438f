"""Where the distance between a bound and the attained value comes from: one share per step of the network."""

from __future__ import annotations

from dataclasses import dataclass

#: What may widen a bound; the last two belong to no place.
CAUSES = ("normalization", "attention", "products", "activation patterns", "linear layers", "chains", "search")


@dataclass(frozen=True)
class Share:
    """A part of the gap."""

    name: str  #: the layer or normalizer that ends the step, or another contribution
    cause: str  #: one of :data:`CAUSES`
    log10: float  #: by how many decades it widens the gap; negative where it narrows it


@dataclass(frozen=True)
class Gap:
    """How the decimal logarithm of bound over attained splits along the most costly path."""

    _derived = ("log10",)

    bound: str  #: the end-to-end constant considered: ``global`` or ``variance_floor``
    shares: tuple[Share, ...]  #: from the input to the output; they add up to the whole

    @property
    def log10(self) -> float:
        """Return the whole gap in decades."""
        return sum(share.log10 for share in self.shares)

    def by_cause(self) -> dict[str, float]:
        """Return the decades of every cause, the largest first.

        >>> Gap("global", (Share("a", "attention", 1.0), Share("b", "chains", -0.25))).by_cause()
        {'attention': 1.0, 'chains': -0.25}
        """
        found: dict[str, float] = {}
        for share in self.shares:
            found[share.cause] = found.get(share.cause, 0.0) + share.log10
        return dict(sorted(found.items(), key=lambda item: -item[1]))
