r"""Dynamic tanh (DyT): ``y = gamma tanh(alpha x) + beta``, which replaces a LayerNorm and has no statistics.

Every entry is a function of itself alone, with slope ``gamma_c alpha (1 - tanh^2)``; it is largest at zero.
"""

from torch import Tensor

from normscope.core.rounding import TINIEST, as_float64, up
from normscope.core.statement import statement
from normscope.graph.ir import Ref
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import Constants, Normalizer, proved
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut


@statement("normscope", "Proposition DYT-1")
def dynamic_tanh_global(gamma: Tensor | None, alpha: float) -> float:
    """Return the Lipschitz constant on all inputs, ``max_c |gamma_c| |alpha|``, attained at zero.

    >>> import torch
    >>> round(dynamic_tanh_global(torch.tensor([1.0, -3.0]), 0.5), 9)
    1.5
    """
    largest = 1.0 if gamma is None else float(as_float64(gamma, "gamma").abs().max())
    if 0.0 in (largest, alpha):
        return 0.0
    return max(up(largest * abs(alpha)), TINIEST)


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Find ``tanh(alpha x)`` with one learned number alpha, followed by a learned scale."""
    inside = candidate.node.args[0] if name_of(candidate.node) == "tanh" else None
    scaled = candidate.around.recogniser.through(inside)
    if scaled is None or name_of(scaled) != "mul":
        return None
    names = [arg.name for arg in scaled.args if isinstance(arg, Ref)]
    learned = [
        name for name in names if candidate.around.parameter(name) and candidate.around.constant(name).numel() == 1
    ]
    sources = [name for name in names if name not in learned]
    source = candidate.source(sources[0]) if len(learned) == len(sources) == 1 else None
    if source is None or candidate.around.affine_after(candidate.node)[0] is None:
        return None
    details = {"alpha": float(candidate.around.constant(learned[0]).detach())}
    return candidate.written("dynamic_tanh", source, sources[0], details=details)


def _constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    return proved(dynamic_tanh_global(site.gamma, site.details["alpha"]), "normscope Proposition DYT-1")


NORMALIZER = Normalizer(
    kind="dynamic_tanh",
    formula="gamma tanh(alpha x) + beta, with one learned number alpha",
    constants=_constants,
    written_out=_written_out,
)
