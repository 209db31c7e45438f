"""The quantities of the monitor, one a file: pure functions, and twins that remember what saves work."""

from __future__ import annotations

from normscope.monitor.quantities.angle import AngularUpdates
from normscope.monitor.quantities.certified import DESCRIPTIONS
from normscope.monitor.quantities.chain import ChainEstimate
from normscope.monitor.quantities.curvature import LargestCurvature
from normscope.monitor.quantities.effective_rate import EffectiveRates
from normscope.monitor.quantities.folded import FoldedNorms
from normscope.monitor.quantities.gradient import Gradients
from normscope.monitor.quantities.health import Health
from normscope.monitor.quantities.inverse_sigma import InverseSigma
from normscope.monitor.quantities.landscape import GradientPredictiveness
from normscope.monitor.quantities.loss import ProbeLoss
from normscope.monitor.quantities.loss_ratio import SquareOverLoss
from normscope.monitor.quantities.margins import Margins
from normscope.monitor.quantities.minimum_norm import MinimumNorms
from normscope.monitor.quantities.radial import RadialUpdates
from normscope.monitor.quantities.spectral import SpectralNorms
from normscope.monitor.quantities.variance import Variances
from normscope.monitor.quantities.weight_norm_theory import WeightNormTheory
from normscope.monitor.quantity import Description, Quantity

#: Every quantity, by the name it is chosen by, cheapest first.
QUANTITIES: dict[str, type[Quantity]] = {
    kind.name: kind
    for kind in (
        ProbeLoss, Margins, Health, Variances, MinimumNorms, EffectiveRates, AngularUpdates, RadialUpdates,
        SpectralNorms, FoldedNorms, InverseSigma, ChainEstimate, Gradients, SquareOverLoss, GradientPredictiveness,
        LargestCurvature,
        WeightNormTheory,
    )
}  # fmt: skip


def descriptions() -> tuple[Description, ...]:
    """Return what every metric of every quantity is, certified ones included.

    >>> [d.kind.value for d in descriptions() if d.matches("product/folded_log10")]
    ['lower']
    """
    return (*(d for kind in QUANTITIES.values() for d in kind.describes), *DESCRIPTIONS)
