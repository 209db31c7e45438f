r"""How the end-to-end bound builds up along depth: certified and attained at every layer and normalizer.

Composition already knows the constant of every tensor with respect to the network input; here it is read off at each
place. The lower curve is attained: for a direction v of the input, one product ``J v`` with the stacked Jacobian of
all places gives ``||J_k v||`` at every place k at once.

The distance between the two splits into shares. At every place k the bound :math:`U_k` and the attained :math:`\ell_k`
refer to the same map, from the input to the tensor there. Along a path the differences of :math:`\log (U_k / \ell_k)`
from one place to the next add up to the whole gap; the path taken is the one on which it is largest at every junction.
Up to the last place the bounds are products of norms; what multiplier chains save at the end, and what a search beyond
the data adds from below, are separate shares.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.analysis.context import AnalysisContext
from normscope.analysis.end_to_end import EndToEndConstants, rounded_up
from normscope.analysis.layers import LayerTables, layer_names
from normscope.core.depth_curve import Curve, Depth
from normscope.core.gap import Gap, Share
from normscope.core.value import Kind, Value, log_of
from normscope.graph.ir import Node
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.cost import forward_cost, is_large
from normscope.lipschitz.lower import EndToEnd, attained_in_parts, jacobian_norm
from normscope.lipschitz.search import Best
from normscope.operators.arithmetic import Product, Quotient
from normscope.operators.attention import Attention, LogSoftmax, Softmax
from normscope.operators.expression import Expr
from normscope.operators.matrix import MatrixProduct
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program
from normscope.operators.spread_division import Division

#: Upper curves, by the name of the end-to-end constant at which each ends.
UPPER = ("global", "variance_floor", "without_normalizers")
#: Most places whose own worst direction is searched for.
ANCHORS = 6
#: Linear operations after which a tensor is far from its atom, and how many operations are measured for all such
#: tensors together: each takes time in proportion to its distance.
FAR, MEASURED = 32, 4_000
#: Multiplications above which the norm of a matrix is measured only if the end-to-end constant needs it.
LARGEST = 4e9
#: Forward passes per search for a direction, and multiplications spent on all searches.
PASSES, BUDGET = 60, 6e9


@dataclass(frozen=True, eq=False)
class DepthPlace:
    """A layer or normalizer of the network."""

    name: str  #: as in the tables of the result
    kind: str  #: ``layer`` or ``normalizer``
    expr: Expr  #: the tensor it gives
    printed: Value | None  #: its factor in the flat product of the paper, if it has one
    key: str  #: what it is found by in another walk of the same graph: its name, or its graph node


def depth(context: AnalysisContext, tables: LayerTables, whole: EndToEndConstants) -> Depth:
    """Return the curves of the bounds along depth, from the input to the end-to-end constants at the output.

    There is one number per place and curve; curves whose constant was not computed are left out.
    """
    if not context.program.outputs:
        return Depth()
    context.say("the bounds along depth")
    found = depth_places(context.program, tables)
    curves: dict[str, Curve] = {}
    constants, best = whole.constants, whole.best
    for name in UPPER:
        value, composition = constants.get(name), whole.compositions.get(name)
        if value is not None and composition is not None:
            curves[name] = _curve([0.0, *_upper_logs(composition, found, context.program), value.log], value)
    printed = constants.get("printed")
    if printed is not None:
        curves["printed"] = _curve([0.0, *_printed_logs(found), printed.log], printed)
    inside = best is None or best.inside  # otherwise the curve says nothing about the variance floor
    lower = (constants.get("lower") if inside else None) or constants.get("lower_everywhere")
    if lower is not None:
        curves["lower"] = _curve([0.0, *attained(context, best, [p.expr for p in found]), lower.log], lower)
    names = ("input", *(p.name for p in found), "output")
    return Depth(names, ("input", *(p.kind for p in found), "output"), curves)


def depth_places(program: Program, tables: LayerTables) -> list[DepthPlace]:
    """Return the layers and normalizers of activations in the order of the network."""
    layers = zip(program.layers, tables.layers, strict=True)
    found = [DepthPlace(row.name, "layer", expr, row.upper, row.name) for expr, row in layers]
    reached, atoms = {a.id for a in program.atoms}, {a.atom.name: a for a in reversed(program.atoms)}
    for site, row in zip(program.sites, tables.normalizers, strict=True):
        if acts_on_weights(site):
            continue
        atom = atoms.get(site.node)
        expr = program.ends[site.node][1] or (atom and program.scaled.get(site.node, atom))  # with its scale and shift
        if expr is not None and expr.atoms and expr.atoms <= reached:
            found.append(DepthPlace(row.name, "normalizer", expr, row.printed, site.node))
    return sorted(found, key=lambda place: place.expr.id)


def _without_normalizers(place: DepthPlace, program: Program, layers: Mapping[str, Expr]) -> Expr | None:
    """Return the tensor at a place in the program without normalizers: for a removed normalizer, its input.

    The scale of one that is written out is an operation of its own, and stays.
    """
    if place.kind == "layer":
        return layers.get(place.key)
    source, _ = program.ends.get(place.key, (None, None))
    return program.scaled.get(place.key, source)


def _upper_logs(composition: Composition, found: Sequence[DepthPlace], program: Program) -> list[float | None]:
    """Return the certified logarithm at every place; ``None`` for some in long linear parts and large matrices."""
    tensors: list[Expr | None] = [place.expr for place in found]
    if composition.program is not program:
        layers = dict(zip(layer_names(composition.program), composition.program.layers, strict=True))
        tensors = [_without_normalizers(place, composition.program, layers) for place in found]
    far = {t.id: t.depth for t in tensors if t is not None and t.depth > FAR and len(t.atoms) == 1}
    left_out = set(far) - set(list(far)[:: 1 + sum(far.values()) // MEASURED])
    near = [t for t in tensors if t is not None and t.depth <= FAR]
    left_out |= {t.id for t in near if not composition.computed(t) and _too_large(t)}
    measured = [None if t is None or t.id in left_out else composition.lipschitz(t) for t in tensors]
    return [None if lip is None else rounded_up(lip.total()[0]) for lip in measured]


def _too_large(expr: Expr) -> bool:
    """Return whether the linear map to a tensor is too large to be measured for a curve alone."""
    source = expr
    while source.op is not None and source.atoms:
        source = max((i for i in source.inputs if i.atoms), key=lambda i: i.id)
    sides = sorted(e.shape[-1] if e.shape else 1 for e in (source, expr))
    return sides[0] ** 2 * sides[1] > LARGEST


def _printed_logs(found: Sequence[DepthPlace]) -> list[float]:
    """Return the flat product of the printed factors up to every place."""
    logs: list[float] = []
    whole = Value(0.0, Kind.PRINTED)
    for place in found:
        whole = whole if place.printed is None else whole * place.printed
        logs.append(whole.log)
    return logs


def _curve(logs: Sequence[float | None], like: Value) -> Curve:
    """Return logarithms as a curve with the guarantee of the constant at its end."""
    rest = {key: getattr(like, key) for key in ("domain", "mode", "statement", "assumptions")}
    return Curve.of(logs, like.kind, **rest)


def attained(context: AnalysisContext, best: Best | None, exprs: Sequence[Expr]) -> list[float | None]:
    """Return the logarithm of a value attained by ``||J_k||`` at every place, at the best input of the search.

    Directions: the one the whole network stretches most there, and the worst of some places on the way. A network too
    large for that gets none, and ``None`` stands where nothing was measured.
    """
    program = context.program
    known = [(program.nodes[e.id], e.numel) for e in exprs if e.id in program.nodes]
    if best is None or is_large(program) or not known:
        return [None] * len(exprs)
    try:
        found = iter(_attained(context, best, known))
    except (RuntimeError, NotImplementedError):  # an operation without a derivative, or too little memory
        return [None] * len(exprs)
    return [next(found) if e.id in program.nodes else None for e in exprs]


def _attained(context: AnalysisContext, best: Best, known: Sequence[tuple[str, int]]) -> list[float]:
    """Return what is attained at each node (name, size), along the best directions of the network and of some nodes."""
    whole = TensorsAlongDepth(context, best.inputs, [node for node, _ in known])
    directions = [best.direction]
    anchors = int(min(ANCHORS, BUDGET // (PASSES * forward_cost(context.program))))
    step = max(1, len(known) // max(anchors, 1))
    for node, _ in known[::step][:anchors]:
        function = TensorsAlongDepth(context, best.inputs, [node])
        directions.append(jacobian_norm(function, best.point, steps=12, tolerance=1e-3, seed=context.options.seed)[1])
    top = [0.0] * len(known)
    for direction in directions:
        if bool(torch.isfinite(direction).all()):
            parts = attained_in_parts(whole, best.point, direction, [size for _, size in known])
            top = [max(a, b) if math.isfinite(b) else a for a, b in zip(top, parts, strict=True)]
    return [log_of(value) for value in top]


class TensorsAlongDepth(EndToEnd):
    """The network as a function from its flattened input blocks to the tensors at some of its nodes, flattened.

    One input of the model fixes everything discrete.
    """

    def __init__(self, context: AnalysisContext, inputs: Sequence[Tensor], nodes: Sequence[str]) -> None:
        super().__init__(context.captured, context.program, inputs, torch.float64)
        self.nodes = nodes

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network from its blocks and return the tensors at the nodes."""
        kept: dict[str, Any] = dict.fromkeys(self.nodes)

        def look(node: Node, value: Any, values: object) -> None:
            if node.name in kept:
                kept[node.name] = value

        self.watch(x, look)
        return torch.cat([kept[name].flatten() for name in self.nodes])


def gap(program: Program, tables: LayerTables, whole: EndToEndConstants, depth: Depth) -> Gap | None:
    """Return the shares of the gap, or nothing where a bound is infinite or nothing was measured along depth."""
    floor, everywhere = depth.curves.get("variance_floor"), depth.curves.get("global")
    same = floor is None or (everywhere is not None and floor.domain == everywhere.domain)
    bound = "global" if same else "variance_floor"
    ends = [whole.constants.get(name) for name in (bound, "lower", "jacobian")]
    composition = whole.compositions.get(bound)
    if composition is None or "lower" not in depth.curves or len(program.outputs) != 1:
        return None
    if any(value is None or math.isinf(value.log) for value in ends):
        return None
    upper, lower, seen = (value.log10 for value in ends if value is not None)
    output = program.outputs[0][1]
    product = composition.lipschitz(output).total()[0] / math.log(10.0)
    known = {}
    upper_curve, lower_curve = (depth.curves[name].log10[1:-1] for name in (bound, "lower"))
    for place, high, low in zip(depth_places(program, tables), upper_curve, lower_curve, strict=True):
        if high is not None and low is not None and not math.isinf(high) and not math.isinf(low):
            known[place.expr.id] = (place, high - low)
    name = known[output.id][0].name if output.id in known else "output"
    if math.isinf(product) or not known:
        return None
    known[output.id] = (DepthPlace(name, "layer", output, None, name), product - seen)
    shares = _along(output, known)
    shares.append(Share("search beyond the data", "search", seen - lower))
    shares.append(Share("multiplier chains", "chains", upper - product))
    return Gap(bound, tuple(s for s in shares if abs(s.log10) > 1e-7))


def _along(output: Expr, known: Mapping[int, tuple[DepthPlace, float]]) -> list[Share]:
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


def _before(expr: Expr, known: Mapping[int, tuple[DepthPlace, float]]) -> tuple[list[Expr], list[object]]:
    """Return the nearest places before a tensor, and the nonlinear operations in between."""
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


def _cause(place: DepthPlace, rules: Sequence[object]) -> str:
    """Return the kind of a step of the network, named after the operation that usually loosens the bound most."""
    if any(isinstance(rule, Attention | Softmax | LogSoftmax | MatrixProduct) for rule in rules):
        return "attention"
    if place.kind == "normalizer" or any(isinstance(rule, Division) for rule in rules):
        return "normalization"
    if any(isinstance(rule, Product | Quotient) for rule in rules):
        return "products"
    return "activation patterns" if rules else "linear layers"
