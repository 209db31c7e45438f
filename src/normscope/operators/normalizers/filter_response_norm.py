r"""Filter response normalization: each channel of each sample over its root mean square, then a threshold.

``y = max(gamma x / sqrt(mean(x^2) + eps) + beta, tau)``, the mean over the positions of one channel of one sample: root
mean square normalization of every channel. The threshold is a maximum with a constant, which is 1-Lipschitz.
"""

from normscope.graph.recognise import Match
from normscope.operators.normalizer import Normalizer, Symmetry, spread_constants
from normscope.operators.spread_division import Spread


def _claims(match: Match, spread: Spread) -> bool:
    rank = len(spread.view)
    return not match.centered and match.root_of == "mean" and rank > 3 and spread.axes == tuple(range(2, rank))


NORMALIZER = Normalizer(
    kind="filter_response_norm",
    formula="gamma x/sqrt(mean(x^2) + eps) + beta, the mean over one channel of one sample",
    constants=spread_constants("normscope Proposition FRN-1"),
    symmetry=Symmetry("neuron"),
    claims=_claims,
)
