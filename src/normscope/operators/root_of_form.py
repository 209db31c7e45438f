r"""The root of a quadratic form of groups of entries: a length or a deviation, written out."""

import math
from typing import Any

from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.quadratic_form import QuadraticForm, fitted_form, is_root, reduced_axes, reductions_behind
from normscope.operators.registry import Call
from normscope.operators.written_out import Surroundings


class RootOfForm(Nonlinear):
    r""":math:`\sqrt{a \sum x_i^2 + b (\sum x_i)^2 + \varepsilon}` of every group of n entries.

    The root of a nonnegative form is a seminorm, and :math:`t \mapsto \sqrt{t^2 + \varepsilon}` has slopes of at most
    one, so the constant is :math:`\sqrt{\max(a, a + b n)}`, whatever the input, though squares have none.

    Attributes:
        root: the rule of the square root, as a function of what stands under it.
    """

    def __init__(self, root: Nonlinear, x: Expr, form: QuadraticForm) -> None:
        self.inputs, self.root, self.x, self.groups = root.inputs, root, x, math.prod(form.shape) // form.size
        self.factor = math.sqrt(max(form.squares, form.squares + form.total * form.size)) * (1 + 1e-8)
        self.least = math.sqrt(max(form.least_eps, form.least))
        self.most = math.sqrt(max(float(form.eps.max()), form.least))

    def constant(self, context: Context) -> Lip:
        """Return the constant above times that of the input, or that of a square root where it is smaller."""
        return context.lipschitz(self.x).times(self.factor).minimum(self.root.constant(context))

    def image(self, context: Context) -> Range:
        """Return the root of the stabilizer to that plus the length of the input."""
        length = product(context.range(self.x).norm, self.factor)
        low, high = outward(self.least, length + self.most)
        norm = outward(0.0, length + self.most * math.sqrt(self.groups))[1]
        return Range(max(low, 0.0), high, norm, norm)


def root_of_form(call: Call, root: Any, around: Surroundings) -> Any:
    """Return a square root as the length or deviation that it is, or as it was if it is neither."""
    node = call.node
    if not is_root(node) or name_of(node) == "rsqrt" or (name_of(node) == "pow" and node.args[1] != 0.5):
        return root
    if not isinstance(root, Expr) or root.atom is None:
        return root
    radicand = around.graph[node.args[0].name]
    for reduction in reductions_behind(radicand, around):
        axes = reduced_axes(reduction, around)
        for source in _operands(reduction, around):
            expression = around.expression(source)
            if not isinstance(expression, Expr):
                continue
            form = fitted_form(radicand, source, axes, around)
            if form is not None and form.shape == expression.shape:
                return call.atom(RootOfForm(root.atom, expression, form), call.shape)
    return root


def _operands(reduction: Node, around: Surroundings) -> list[str]:
    """Return what a reduction may take the squares of: its operand, and what stands before up to three steps."""
    found: list[str] = []
    name = reduction.args[0].name
    shape = around.shape(name)
    while len(found) < 4 and around.shape(name) == shape:
        found.append(name)
        below = around.graph[name].inputs()
        if not below:
            break
        name = below[0]
    return found
