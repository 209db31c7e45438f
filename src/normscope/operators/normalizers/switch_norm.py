r"""Switchable normalization: ``(x - mean)/sqrt(var + eps)`` with mixtures of statistics over several axes.

With a share w of running statistics it has no bound on all inputs: on constant inputs ``x = c 1`` the numerator is
``w c`` while the variance stays, as in SimpleNorm. On a bounded range the rules of its operations give one.
"""

from torch import Tensor

from normscope.core.statement import statement
from normscope.graph.ir import Ref
from normscope.graph.recognise import name_of, operand_pairs
from normscope.operators.normalizer import Constants, Normalizer, no_bound
from normscope.operators.quadratic_form import reductions_behind, roots_behind
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Find ``(x - m)/root`` or ``(x - m) * inverse root``, statistics of x over several axes under the root."""
    node, around = candidate.node, candidate.around
    for top, other in operand_pairs(node):
        difference = around.recogniser.through(top, repeating=False)
        root = next(roots_behind(around.graph[other.name], around), None)
        if difference is None or root is None or name_of(difference) != "sub":
            continue
        base = difference.args[0]
        source = candidate.source(base.name) if isinstance(base, Ref) else None
        if source is not None and _mixes(candidate, root.args[0].name):
            return candidate.written("switch_norm", source, base.name)
    return None


def _mixes(candidate: NormalizerCandidate, radicand: str) -> bool:
    """Return whether what is under a root is made of statistics over different axes that depend on the input."""
    around = candidate.around
    found = reductions_behind(around.graph[radicand], around)
    axes = {around.recogniser.reduced_axes(n) for n in found if around.expression(n.name) is not None}
    return len(axes) > 1


@statement("normscope", "Proposition SWITCH-1", holds="no constant on all inputs exists with running statistics")
def switch_norm_constants(site: Site, floor: Tensor | None = None, mode: str = "running") -> Constants:
    """Return an infinite constant: there is no bound on all inputs.

    >>> switch_norm_constants(Site("n", "x", "", "switch_norm")).proved.log
    inf
    """
    return no_bound("normscope Proposition SWITCH-1")


NORMALIZER = Normalizer(
    kind="switch_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta, mixtures of instance, layer and batch statistics",
    constants=switch_norm_constants,
    verified=False,
    written_out=_written_out,
)
