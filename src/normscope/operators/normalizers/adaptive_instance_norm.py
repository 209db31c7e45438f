r"""Adaptive instance normalization: instance normalization whose scale and shift depend on the input, on its style.

``y = s(x) (c - mean(c))/sqrt(var(c) + eps) + m(x)``. The quotient is instance normalization, Lipschitz and bounded; the
product with the scale has a bound wherever the scale does, and none of its own.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from normscope.core.statement import statement
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.arithmetic import over, times
from normscope.operators.expression import Expr
from normscope.operators.normalizer import Constants, Normalizer, Symmetry, no_bound
from normscope.operators.quadratic_form import fitted_form, is_root
from normscope.operators.site import Site
from normscope.operators.spread_division import Spread, normalizer
from normscope.operators.written_out import NormalizerCandidate, WrittenOut

KIND = "adaptive_instance_norm"


def _leaves(
    ref: Any, power: int, candidate: NormalizerCandidate, depth: int = 3
) -> Iterator[tuple[Any, Node | None, int]]:
    """Yield the factors of nested products and quotients, each with its node and power."""
    node = candidate.around.recogniser.through(ref) if isinstance(ref, Ref) else None
    if node is None or depth == 0 or name_of(node) not in ("mul", "div") or len(node.args) < 2:
        yield ref, node, power
        return
    yield from _leaves(node.args[0], power, candidate, depth - 1)
    yield from _leaves(node.args[1], power if name_of(node) == "mul" else -power, candidate, depth - 1)


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Find a product of something that depends on the input with a centred tensor over its standard deviation."""
    if name_of(candidate.node) not in ("mul", "div"):
        return None
    leaves = list(_leaves(Ref(candidate.node.name), 1, candidate))
    moving = [
        leaf for leaf in leaves if isinstance(leaf[0], Ref) and candidate.around.expression(leaf[0].name) is not None
    ]
    if len(moving) < 3:
        return None  # without a scale that depends on the input it is instance normalization
    for top in moving:
        for root in moving:
            found = _quotient(candidate, top, root)
            if found is not None:
                rest = [leaf for leaf in leaves if leaf is not top and leaf is not root]
                return _product(candidate, *found, rest)
    return None


def _quotient(
    candidate: NormalizerCandidate, top: tuple[Any, Node | None, int], root: tuple[Any, Node | None, int]
) -> tuple[str, Expr, Spread] | None:
    """Return what is normalized and how, if one factor is centred and another is the root of its variance."""
    difference, below, find = top[1], root[1], candidate.around.recogniser
    if difference is None or below is None or top[2] != 1 or name_of(difference) != "sub" or not is_root(below):
        return None
    if root[2] * (-1 if name_of(below) == "rsqrt" or below.args[-1] == -0.5 else 1) != -1:
        return None
    base = find.through(difference.args[0], repeating=False)
    mean = find.through(difference.args[1])
    source = None if base is None else candidate.source(base.name)
    if base is None or mean is None or source is None or not find.same(find.mean_of(mean), base):
        return None
    axes = find.reduced_axes(mean) if mean.op != "getitem" else ()
    form = fitted_form(candidate.around.graph[below.args[0].name], base.name, axes, candidate.around)
    if form is None or form.least or len(source.shape) < 3 or axes != tuple(range(2, len(source.shape))):
        return None
    if not form.is_variance:
        return None
    factor = form.squares * form.size * (1 - 1e-9)
    return base.name, source, Spread(source.shape, axes, form.least_eps, True, factor)


def _product(
    candidate: NormalizerCandidate, name: str, source: Expr, spread: Spread, rest: list[tuple[Any, Any, int]]
) -> WrittenOut:
    """Return the normalized tensor times the other factors."""
    around = candidate.around

    def result() -> Expr:
        out = normalizer(candidate.call, source, spread, KIND)
        for ref, _, power in rest:
            moving = around.expression(ref.name) if isinstance(ref, Ref) else None
            factor = moving if moving is not None else around.constant(ref.name) if isinstance(ref, Ref) else ref
            out = times(candidate.call, out, factor) if power == 1 else over(candidate.call, out, factor)
        return out

    return candidate.written(KIND, source, name, result, spread=spread, eps=spread.eps, gamma=None, beta=None)


@statement("normscope", "Proposition ADAIN-1", holds="no constant on all inputs unless the scale is bounded")
def adaptive_instance_norm_constants(site: Site, floor: Tensor | None = None, mode: str = "running") -> Constants:
    """Return an infinite constant: there is no bound of its own, since the scale depends on the input.

    >>> adaptive_instance_norm_constants(Site("n", "x", "", KIND)).proved.log
    inf
    """
    return no_bound("normscope Proposition ADAIN-1")


NORMALIZER = Normalizer(
    kind=KIND,
    formula="s (x - mean)/sqrt(var + eps) + m of each channel of one sample, s and m depending on the input",
    constants=adaptive_instance_norm_constants,
    symmetry=Symmetry("neuron", shift=True),
    written_out=_written_out,
)
