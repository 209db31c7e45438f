r"""EvoNorms: normalization and activation in one, ``h(x)/spread(x)`` or ``x/max(fixed, v x + spread(x))``.

S0, S1 and S2 divide an activation of x by the standard deviation (or root mean square) of groups of x; B0, B1 and B2
divide x by a maximum of a fixed spread and a function of x. Those with a standard deviation, and those with a maximum,
have no bound on all inputs (Proposition EVO-1). Over a root mean square there is one (Proposition EVO-2).
"""

import math

import torch
from torch import Tensor

from normscope.core.rounding import quotient_up, require_nonnegative, up
from normscope.core.statement import statement
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import INF, Context, Pointwise, Range, Stretch
from normscope.operators.normalizer import Constants, Normalizer, no_bound, proved
from normscope.operators.quadratic_form import (
    SHAPES,
    behind_shapes,
    fitted_form,
    is_root,
    operands_behind,
    reductions_behind,
    roots_behind,
)
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut, probe

_POINTWISE = (
    "mul", "sigmoid", "silu", "relu", "gelu", "tanh", "leaky_relu", "elu", "softplus", "mish", "hardswish",
    "hardsigmoid", "hardtanh", "relu6", "selu", "celu", "exp", "square", "pow", *SHAPES,
)  # fmt: skip
#: The largest value of ``(1 + t) sqrt(1 - t)`` on [0, 1], at ``t = 1/3``.
WORST = 4.0 / 3.0 * math.sqrt(2.0 / 3.0)


@statement("normscope", "Proposition EVO-2", holds="h(0) = 0; root mean square of groups, EvoNorm S2")
def evo_norm_global(slope: float, eps: float) -> float:
    r"""Return a bound of the Lipschitz constant of ``h(x)/sqrt(mean(x^2) + eps)`` on all inputs.

    ``(4/3) sqrt(2/3) sup|h'| / sqrt(eps)``.

    >>> round(evo_norm_global(1.0, 0.01), 4)
    10.8866
    """
    return up(quotient_up(up(WORST * slope), math.sqrt(require_nonnegative(eps, "eps"))), 8.0)


class ActivatedDivision(Stretch):
    """An activation of x over the root mean square of groups of x: ``h(x)/sqrt(k mean(x^2) + eps)``."""

    def __init__(self, x: Expr, activation: Pointwise, size: int, factor: float, eps: float) -> None:
        self.steepest = activation.slope(-INF, INF)
        super().__init__(x, evo_norm_global(self.steepest, eps))
        self.size, self.group = size, up(self.steepest * math.sqrt(size / factor), 16.0)

    def image(self, context: Context) -> Range:
        """Return the range: ``|h(x)| <= sup|h'| |x|``, and x over its spread has norm ``sqrt(n/k)`` in a group."""
        groups = math.prod(self.inputs[0].shape) // self.size
        return Range(-self.group, self.group, INF, up(self.group * math.sqrt(groups), 16.0))


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Find a quotient of a function of x and a root, or a maximum with a root in it, of statistics of x."""
    node, around = candidate.node, candidate.around
    if name_of(node) != "div" or len(node.args) < 2 or not all(isinstance(a, Ref) for a in node.args[:2]):
        return None
    top, below = (behind_shapes(around.graph[a.name], around) for a in node.args[:2])
    if around.expression(below.name) is None:
        return None
    if is_root(below):
        return _activated(candidate, top, below)
    if name_of(below) in ("maximum", "max", "clamp_min"):
        for root in roots_behind(below, around):
            if any(s == top.name for s in _sources(candidate, root)):
                source = candidate.source(top.name)
                return None if source is None else candidate.written("evo_norm", source, top.name)
    return None


def _sources(candidate: NormalizerCandidate, root: Node) -> list[str]:
    """Return the tensors of the shape of the result whose statistics are under a root."""
    around = candidate.around
    reductions = reductions_behind(around.graph[root.args[0].name], around)
    behind = (item for reduction in reductions for item in operands_behind(reduction, around, 6))
    return [item.name for item in behind if item.shape == candidate.node.shape]


def _activated(candidate: NormalizerCandidate, top: Node, root: Node) -> WrittenOut | None:
    """Return an activation of x over a root of a statistic of x."""
    name = next((s for s in _sources(candidate, root) if s != top.name and _is_function_of(candidate, top, s)), None)
    source = None if name is None else candidate.source(name)
    if name is None or source is None:
        return None
    over_square = _over_square(candidate, top, root, source)
    if over_square is None:
        return candidate.written("evo_norm", source, name)
    activation, _, _, eps = over_square
    atom, details = ActivatedDivision(source, *over_square), {"slope": activation.slope(-INF, INF)}
    result = lambda: candidate.call.atom(atom, source.shape)  # noqa: E731
    return candidate.written("evo_norm", source, name, result, eps=eps, details=details)


def _is_function_of(candidate: NormalizerCandidate, top: Node, name: str) -> bool:
    """Return whether a node is made of another by entrywise operations and constants, and not linearly."""
    stack, seen, bent = [top.name], set[str](), False
    while stack and len(seen) < 16:
        item = candidate.around.graph[stack.pop()]
        if item.name == name or item.name in seen or candidate.around.expression(item.name) is None:
            continue
        seen.add(item.name)
        if name_of(item) not in _POINTWISE:
            return False
        moving = [n for n in item.inputs() if candidate.around.expression(n) is not None]
        bent = bent or name_of(item) not in ("mul", *SHAPES) or len(moving) > 1
        stack.extend(moving)
    return bent and not stack


def _over_square(
    candidate: NormalizerCandidate, top: Node, root: Node, source: Expr
) -> tuple[Pointwise, int, float, float] | None:
    """Return the activation, group size, factor and eps where the root is one of a mean square, checked on numbers."""
    around = candidate.around
    numerator = around.expression(top.name)
    activation = numerator.atom if isinstance(numerator, Expr) and numerator.op is None else None
    if not isinstance(activation, Pointwise) or not activation.vanishing or activation.inputs[0] is not source:
        return None
    for reduction in reductions_behind(around.graph[root.args[0].name], around):
        axes, operand = around.recogniser.reduced_axes(reduction), around.graph[reduction.args[0].name]
        base = operand.args[0] if name_of(operand) in ("square", "pow", "mul") else None
        if not isinstance(base, Ref) or not isinstance(around.expression(base.name), Expr):
            continue
        form = fitted_form(around.graph[root.args[0].name], base.name, axes, around)
        if form is None or form.least or not form.is_square:
            continue
        x = probe(source.shape, 0)
        name = next(s for s in _sources(candidate, root) if s != top.name)
        whole, above = around.run(candidate.node, name)(x), around.run(top, name)(x)
        below = form.of(x.reshape(form.shape)).sqrt().expand(form.shape).reshape(x.shape)
        if whole is not None and above is not None and torch.allclose(whole * below, above, rtol=1e-9, atol=1e-12):
            return activation, form.size, form.squares * form.size * (1 - 1e-9), form.least_eps
    return None


@statement("normscope", "Proposition EVO-1", holds="no constant on all inputs exists for S0, S1, B0, B1, B2")
def evo_norm_constants(site: Site, floor: Tensor | None = None, mode: str = "running") -> Constants:
    """Return the bound over a root mean square, or infinity otherwise: there is no bound.

    >>> evo_norm_constants(Site("n", "x", "", "evo_norm")).proved.log
    inf
    """
    if "slope" not in site.details:
        return no_bound("normscope Proposition EVO-1")
    top = 1.0 if site.gamma is None else float(site.gamma.abs().max())
    number = 0.0 if top == 0 else up(top * evo_norm_global(site.details["slope"], site.eps))
    return proved(number, "normscope Proposition EVO-2")


NORMALIZER = Normalizer(
    kind="evo_norm",
    formula="gamma h(x)/spread(x) + beta, or gamma x/max(fixed, v x + spread(x)) + beta",
    constants=evo_norm_constants,
    written_out=_written_out,
)
