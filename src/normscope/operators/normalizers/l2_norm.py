"""Normalization of vectors to length one: ``x/max(||x||, eps)``, ``x/(||x|| + eps)`` or ``x/sqrt(||x||^2 + eps)``."""

from normscope.operators.normalizer import Normalizer, Symmetry
from normscope.operators.spread_constants import spread_constants

NORMALIZER = Normalizer(
    kind="l2_norm",
    formula="x/max(||x||, eps), or with eps added to the norm or its square",
    constants=spread_constants("normscope F3"),
    symmetry=Symmetry("layer"),
    claims=lambda match, spread: not match.centered and match.root_of == "sum",
    takes_any_axes=True,
)
