r"""SimpleNorm: a tensor over its standard deviation, without centring, ``gamma x / sqrt(var(x) + eps)``.

It has no bound on all inputs: on ``x = c 1 + d`` the numerator grows with c while the variance is that of d, so that a
small d changes the output by about ``c ||d|| / eps``. On a bounded range the rules of its operations give one.
"""

from torch import Tensor

from normscope.core.statement import statement
from normscope.graph.recognise import name_of
from normscope.operators.expression import Expr
from normscope.operators.normalizer import Constants, Normalizer, Symmetry, no_bound
from normscope.operators.quadratic_form import RootQuotient, find_root_quotient
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut


def _fits(candidate: NormalizerCandidate, quotient: RootQuotient, source: Expr) -> WrittenOut | None:
    """Take a tensor that is not centred, over its standard deviation, unless its mean is subtracted afterwards."""
    if quotient.centered or not quotient.form.is_variance or _is_centered_later(candidate):
        return None
    return candidate.written("simple_norm", source, quotient.source, eps=quotient.form.least_eps)


def _is_centered_later(candidate: NormalizerCandidate) -> bool:
    """Return whether ``x/std`` is a part of ``x/std - mean/std``."""
    around, node = candidate.around, candidate.node
    for _ in range(3):
        users = [around.graph[name] for name in around.users[node.name]]
        if len(users) != 1:
            return False
        node = users[0]
        quotient = find_root_quotient(node, around) if name_of(node) in ("add", "sub", "rsub") else None
        if quotient is not None and quotient.centered:
            return True
    return False


@statement("normscope", "Proposition SIMPLE-1", holds="no constant on all inputs exists")
def simple_norm_constants(site: Site, floor: Tensor | None = None, mode: str = "running") -> Constants:
    """Return an infinite constant: there is no bound on all inputs.

    >>> simple_norm_constants(Site("n", "x", "", "simple_norm")).proved.log
    inf
    """
    return no_bound("normscope Proposition SIMPLE-1")


NORMALIZER = Normalizer(
    kind="simple_norm",
    formula="gamma x/sqrt(var + eps), without subtracting the mean",
    constants=simple_norm_constants,
    symmetry=Symmetry("layer"),
    fits=_fits,
)
