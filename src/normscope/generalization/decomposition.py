"""Decompose the error of a trained model into approximation, optimization and generalization error."""

import math
from dataclasses import dataclass

from normscope.core.errors import InputError
from normscope.core.statement import statement


@dataclass(frozen=True)
class Decomposition:
    """The parts of ``F(P, h_o) - F(P, y*)``."""

    total: float  #: excess of the trained model over the truth
    estimation: float  #: ``F(P, h_o) - F(P, h*)``, over the best member of the family
    approximation: float  #: ``F(P, h*) - F(P, y*)``, of the best member over the truth
    optimization: float  #: ``F(D, h_o) - F(D, h_o*)``, over the minimizer of the training loss
    generalization: float  #: ``F(P, h_o) - F(D, h_o)``, expected over training loss of the trained model
    selection: float  #: ``F(D, h_o*) - F(P, h*)``, what the summary of the slides leaves out; at most zero on average
    #: ``optimization + 2 sup_h |F(P, h) - F(D, h)|``, of the estimation error; none without the supremum
    bound: float | None = None

    @property
    def slides_total(self) -> float:
        """Return ``optimization + generalization + approximation``, the summary of the slides."""
        return self.optimization + self.generalization + self.approximation

    def residuals(self) -> dict[str, float]:
        """Return the differences between the parts and their sums; zero up to rounding."""
        split = self.optimization + self.generalization + self.selection
        return {
            "estimation + approximation - total": self.estimation + self.approximation - self.total,
            "optimization + generalization + selection - estimation": split - self.estimation,
        }

    def adds_up(self, tolerance: float = 1e-9) -> bool:
        """Return whether all sums hold, relative to the largest part."""
        size = max(abs(self.total), abs(self.generalization), abs(self.selection), abs(self.estimation), 1e-300)
        return all(abs(r) <= tolerance * size for r in self.residuals().values())


@statement(
    "than2025slides", "Errors of a trained model", holds="the summary needs a fourth part: F(D, h_o*) - F(P, h*)"
)
def decompose(
    *,
    truth: float,
    best: float,
    trained: float,
    trained_on_data: float,
    minimizer_on_data: float,
    largest_deviation: float | None = None,
) -> Decomposition:
    """Return the parts of the error of a trained model from five losses.

    ``F(P, h_o) - F(P, y*) = estimation + approximation``, and the estimation error is ``optimization + generalization
    + (F(D, h_o*) - F(P, h*))``. Its last part is at most ``F(D, h*) - F(P, h*)``, which gives the bound of the slides;
    it is not zero, so that "optimization + generalization + approximation" is not the error itself.

    Args:
        truth: ``F(P, y*)``, expected loss of the truth.
        best: ``F(P, h*)``, of the best member of the family.
        trained: ``F(P, h_o)``, of the trained model.
        trained_on_data: ``F(D, h_o)``, its training loss.
        minimizer_on_data: ``F(D, h_o*)``, the least training loss of the family.
        largest_deviation: ``sup_h |F(P, h) - F(D, h)|`` over the family, if known.

    >>> parts = decompose(truth=0.0, best=0.1, trained=0.5, trained_on_data=0.3, minimizer_on_data=0.05)
    >>> round(parts.total, 9), parts.adds_up(), round(parts.slides_total, 9)
    (0.5, True, 0.55)
    """
    given = (truth, best, trained, trained_on_data, minimizer_on_data, largest_deviation or 0.0)
    if not all(map(math.isfinite, given)):
        raise InputError(f"Expected finite losses, got {given}.")
    optimization = trained_on_data - minimizer_on_data
    return Decomposition(
        total=trained - truth,
        estimation=trained - best,
        approximation=best - truth,
        optimization=optimization,
        generalization=trained - trained_on_data,
        selection=minimizer_on_data - best,
        bound=None if largest_deviation is None else optimization + 2 * largest_deviation,
    )
