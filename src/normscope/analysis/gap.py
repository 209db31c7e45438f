r"""Where the gap between bound and attained value comes from.

At every place k the bound :math:`U_k` and the attained :math:`\ell_k` speak of the same map, from the input to the
tensor there. Along a path the differences of :math:`\log (U_k / \ell_k)` from one place to the next add up to the whole
gap; the path taken is the one on which it is largest at every junction. Up to the last place products of norms count;
what multiplier chains take off the end, and what a search beyond the data adds from below, are shares of their own.
"""

import math
from collections.abc import Mapping, Sequence

from normscope.analysis.context import Work
from normscope.analysis.depth_curve import Place, places
from normscope.analysis.end_to_end import Whole
from normscope.core.depth_curve import Depth
from normscope.core.gap import Gap, Share
from normscope.operators.arithmetic import Product, Quotient
from normscope.operators.attention import Attention, LogSoftmax, Softmax
from normscope.operators.expression import Expr
from normscope.operators.matrix import MatrixProduct
from normscope.operators.normalization import Division


def gap(work: Work, whole: Whole, depth: Depth) -> Gap | None:
    """Return the shares of the gap, or nothing where a bound is infinite or nothing was measured along depth."""
    floor, everywhere = depth.curves.get("variance_floor"), depth.curves.get("global")
    same = floor is None or (everywhere is not None and floor.domain == everywhere.domain)
    bound = "global" if same else "variance_floor"
    ends = [whole.constants.get(name) for name in (bound, "lower", "jacobian")]
    composition = whole.compositions.get(bound)
    if composition is None or "lower" not in depth.curves or len(work.program.outputs) != 1:
        return None
    if any(value is None or math.isinf(value.log) for value in ends):
        return None
    upper, lower, seen = (value.log10 for value in ends if value is not None)
    output = work.program.outputs[0][1]
    product = composition.lipschitz(output).total()[0] / math.log(10.0)
    known = {}
    upper_curve, lower_curve = (depth.curves[name].log10[1:-1] for name in (bound, "lower"))
    for place, high, low in zip(places(work), upper_curve, lower_curve, strict=True):
        if high is not None and low is not None and not math.isinf(high) and not math.isinf(low):
            known[place.expr.id] = (place, high - low)
    name = known[output.id][0].name if output.id in known else "output"
    if math.isinf(product) or not known:
        return None
    known[output.id] = (Place(name, "layer", output, None, name), product - seen)
    shares = _along(output, known)
    shares.append(Share("search beyond the data", "search", seen - lower))
    shares.append(Share("multiplier chains", "chains", upper - product))
    return Gap(bound, tuple(s for s in shares if abs(s.log10) > 1e-7))


def _along(output: Expr, known: Mapping[int, tuple[Place, float]]) -> list[Share]:
    """Return the differences of the gap along the path to the output on which it is largest."""
    shares: list[Share] = []
    here: Expr | None = output
    while here is not None:
        place, width = known[here.id]
        before, rules = _before(here, known)
        source = max(before, key=lambda e: known[e.id][1], default=None)
        shares.append(Share(place.name, _cause(place, rules), width - (known[source.id][1] if source else 0.0)))
        here = source
    return shares[::-1]


def _before(expr: Expr, known: Mapping[int, tuple[Place, float]]) -> tuple[list[Expr], list[object]]:
    """Return the places a tensor is made of, and the nonlinear operations between."""
    found: dict[int, Expr] = {}
    rules: dict[int, object] = {}
    seen, stack = {expr.id}, [expr]
    while stack:
        item = stack.pop()
        if item.op is None and item.atom.inputs:
            rules[item.id] = item.atom
        for below in item.inputs if item.op is not None else item.atom.inputs:
            if below.id in known:
                found[below.id] = below
            elif below.id not in seen:
                seen.add(below.id)
                stack.append(below)
    return [found[key] for key in sorted(found)], [rules[key] for key in sorted(rules)]


def _cause(place: Place, rules: Sequence[object]) -> str:
    """Return what a step of the network is, by the operation that usually costs most."""
    if any(isinstance(rule, Attention | Softmax | LogSoftmax | MatrixProduct) for rule in rules):
        return "attention"
    if place.kind == "normalizer" or any(isinstance(rule, Division) for rule in rules):
        return "normalization"
    if any(isinstance(rule, Product | Quotient) for rule in rules):
        return "products"
    return "activation patterns" if rules else "linear layers"
