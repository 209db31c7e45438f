r"""PowerNorm: ``gamma x/sqrt(phi + eps) + beta``, phi the quadratic mean of each channel, of the batch or running.

With the running mean it is a fixed diagonal map, with that of the batch a root mean square normalization of the stacked
batch, channel by channel.
"""

import math

from torch import Tensor

from normscope.graph.recognise import Match
from normscope.operators.normalizer import Constants, Normalizer, Symmetry, proved, spread_constants
from normscope.operators.normalizers.batch_norm import batch_norm_running
from normscope.operators.normalizers.frozen_batch_norm import fixed_site, fixed_statistics_at
from normscope.operators.site import Site
from normscope.operators.spread_division import Spread
from normscope.operators.written_out import NormalizerCandidate, WrittenOut


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    found = fixed_statistics_at(candidate)
    return None if found is None or found.mean is not None else fixed_site(candidate, "power_norm", found)


def _claims(match: Match, spread: Spread) -> bool:
    batch = len(spread.view) > 1 and spread.axes[:1] == (0,) and len(spread.axes) < len(spread.view)
    return not match.centered and match.root_of == "mean" and batch


def _fixed(site: Site, floor: Tensor | None, mode: str) -> Constants:
    phi = site.running[1]  # type: ignore[index]
    number = math.inf if bool((phi + site.eps == 0).any()) else batch_norm_running(site.gamma, phi, site.eps)
    return proved(number, "normscope Proposition PN-1", mode)


NORMALIZER = Normalizer(
    kind="power_norm",
    formula="gamma x/sqrt(phi + eps) + beta, phi the mean square of a channel of the batch, or a running one",
    constants=spread_constants("normscope Proposition PN-1", across_batch=True, fixed=_fixed),
    symmetry=Symmetry("neuron"),
    across_batch=True,
    keeps_mean_square=True,
    claims=_claims,
    written_out=_written_out,
)
