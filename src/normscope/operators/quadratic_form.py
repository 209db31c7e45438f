"""Recognize square roots of quadratic forms of a tensor, and quotients by them, by fitting coefficients to values.

In every group of n entries the function is ``gain (x - [mean]) / sqrt(a sum(x^2) + b sum(x)^2 + eps) + shift``. With
``b = -a/n`` the form is a variance, with ``b = 0`` a mean square. The operations in between are algebraic, and the fit
is checked at points that were not used for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import does_more, name_of
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.registry import Call
from normscope.operators.spread_division import compact
from normscope.operators.written_out import PartOfGraph, Surroundings, agrees, probe

_REDUCTIONS = ("mean", "sum", "var", "var_mean", "std", "std_mean")
_ROOTS = ("sqrt", "rsqrt")
#: Operations that change the shape or the type of a tensor.
SHAPES = (
    "expand", "expand_as", "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "to", "_to_copy", "clone",
    "contiguous", "type_as", "alias", "detach",
)  # fmt: skip
_ALGEBRA = frozenset({
    "mul", "div", "add", "sub", "rsub", "neg", "reciprocal", "pow", "square", "getitem",
    *_REDUCTIONS, *_ROOTS, *SHAPES,
})  # fmt: skip
#: A normalizer is made of fewer operations than this.
LARGEST = 40


@dataclass(frozen=True, eq=False)
class RootQuotient:
    """A tensor over a root of its own quadratic form."""

    source: str  #: the node that is normalized
    form: QuadraticForm  #: what stands under the root
    centered: bool  #: whether the numerator is ``x - mean``
    gain: Tensor  #: the factor of the quotient, with axes of size one where it is constant
    shift: Tensor  #: what is added, likewise


def find_root_quotient(node: Node, around: Surroundings) -> RootQuotient | None:
    """Return what a sum, difference, product or quotient computes if it is a tensor over a root of its own form."""
    if name_of(node) not in ("mul", "div", "add", "sub", "rsub") or not node.shape:
        return None
    for root in roots_behind(node, around):
        radicand = around.graph[root.args[0].name]
        for source, axes in _sources(radicand, node, around):
            found = _fit(node, radicand, source, axes, around)
            if found is not None:
                return found
    return None


def _behind(node: Node, around: Surroundings, stop: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the nodes that a node depends on through algebraic operations, not beyond those that ``stop`` accepts."""
    stack, seen = list(reversed(node.inputs())), set[str]()
    while stack and len(seen) < LARGEST:
        name = stack.pop()
        if name in seen or around.is_site(name):
            continue
        seen.add(name)
        item = around.graph[name]
        if name_of(item) in (*_ALGEBRA, "clamp", "clamp_min", "maximum"):
            yield item
            if not stop(item):
                stack.extend(reversed(item.inputs()))


def is_root(node: Node) -> bool:
    """Return whether a node is a square root or its inverse."""
    name = name_of(node)
    return (name in _ROOTS or (name == "pow" and node.args[1] in (0.5, -0.5))) and isinstance(node.args[0], Ref)


def behind_shapes(node: Node, around: Surroundings) -> Node:
    """Return the node behind changes of shape and type."""
    while name_of(node) in SHAPES and isinstance(node.args[0], Ref):
        node = around.graph[node.args[0].name]
    return node


def roots_behind(node: Node, around: Surroundings) -> Iterator[Node]:
    """Return the nearest roots that a node is made of, itself included."""
    if is_root(node):
        return iter((node,))
    if around.operations.isdisjoint((*_ROOTS, "pow")):
        return iter(())
    return (n for n in _behind(node, around, is_root) if is_root(n))


def reductions_behind(radicand: Node, around: Surroundings) -> list[Node]:
    """Return the sums, means and variances that a number under a root is made of."""
    found = [n for n in (radicand, *_behind(radicand, around, lambda n: False)) if name_of(n) in _REDUCTIONS]
    return list({n.name: n for n in found}.values())


def operands_behind(reduction: Node, around: Surroundings, steps: int) -> Iterator[Node]:
    """Yield what a reduction may take the squares of: its operand, and what that is made of by algebra."""
    ref = reduction.args[0]
    for _ in range(steps):
        node = around.recogniser.through(ref, repeating=False)
        if node is None:
            return
        yield node
        ref = node.args[0] if node.args and name_of(node) in _ALGEBRA else None


def _sources(radicand: Node, node: Node, around: Surroundings) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the nodes that may be normalized, and the axes."""
    seen = set[tuple[str, tuple[int, ...]]]()
    for reduction in reductions_behind(radicand, around):
        axes = around.recogniser.reduced_axes(reduction)
        if around.graph[reduction.args[0].name].shape != node.shape:
            continue
        for operand in operands_behind(reduction, around, 3):
            if operand.shape == node.shape and (operand.name, axes) not in seen:
                seen.add((operand.name, axes))
                yield operand.name, axes


def _fit(node: Node, radicand: Node, source: str, axes: tuple[int, ...], around: Surroundings) -> RootQuotient | None:
    """Fit the form under the root, then gain and shift, and verify them at other points."""
    shape = around.shape(source)
    form = fitted_form(radicand, source, axes, around) if around.group_size(source, axes) > 1 else None
    if form is None or not _is_algebraic(node, source, around, radicand):
        return None
    whole = around.run(node, source)
    zero = whole(torch.zeros(shape, dtype=torch.float64))
    shift = torch.zeros(shape, dtype=torch.float64) if zero is None or not bool(zero.isfinite().all()) else zero
    if shift.shape != shape:
        return None
    points = [form.point(seed) for seed in (3, 10, 11, 12)]
    values = [whole(x) for x in points]
    if any(v is None or v.shape != shape for v in values):
        return None
    above = torch.stack([v - shift for v in values if v is not None])
    for centered in (True, False):
        gain = _gain(torch.stack([form.normalize(x, centered) for x in points]), above)
        if bool(gain.isfinite().all()) and _agrees(whole, form, centered, gain, shift):
            return RootQuotient(source, form, centered, compact(gain, nearly=True), compact(shift, nearly=True))
    return None


def _gain(below: Tensor, above: Tensor) -> Tensor:
    """Return the factor between quotients at some points, each entry from where the quotient is largest."""
    best = below.abs().argmax(0, keepdim=True)
    gain = (above.gather(0, best) / below.gather(0, best)).squeeze(0)
    return torch.where((gain - 1.0).abs() <= 1e-12, 1.0, gain)


def fitted_form(radicand: Node, source: str, axes: tuple[int, ...], around: Surroundings) -> QuadraticForm | None:
    """Return the quadratic form of groups of a tensor that equals a number under a root, or ``None``."""
    shape = around.shape(source)
    if not axes or max(axes) >= len(shape):
        return None
    inner, least = _unclamped(radicand, around)
    if not _is_algebraic(inner, source, around):
        return None
    below = around.run(inner, source)
    form = QuadraticForm.fitted(lambda x: _aligned(below(x), shape, axes), shape, axes)
    return form if form is None or not least else replace(form, least=least)


def _is_algebraic(node: Node, source: str, around: Surroundings, clamped: Node | None = None) -> bool:
    """Return whether a node is made of a source by algebra alone, except one clamped node: a fit holds everywhere."""
    start = around.recogniser.through(Ref(source), repeating=False)
    between = around.between(source, node)
    stack, seen = [node.name], {source}
    while stack:
        item = around.graph[stack.pop()]
        if item.name in seen or item.name not in between or item is start:
            continue
        seen.add(item.name)
        if name_of(item) not in _ALGEBRA and item is not clamped:
            return False
        stack.extend(item.inputs())
    return True


def _unclamped(radicand: Node, around: Surroundings) -> tuple[Node, float]:
    """Return the node that is clamped from below under a root, and the constant."""
    if name_of(radicand) not in ("clamp", "clamp_min", "maximum") or does_more(radicand):
        return radicand, 0.0
    least = around.recogniser.stabilizer(radicand.args[1]) if len(radicand.args) > 1 else None
    inner = radicand.args[0]
    return (around.graph[inner.name], least) if least and isinstance(inner, Ref) else (radicand, 0.0)


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """``max(a sum(x^2) + b sum(x)^2 + eps, least)`` of groups of n entries."""

    shape: tuple[int, ...]  #: of the tensor
    axes: tuple[int, ...]  #: the axes of a group
    squares: float  #: a, the factor of the sum of squares
    total: float  #: b, the factor of the square of the sum
    eps: Tensor  #: the stabilizer of each group
    least: float = 0.0  #: a lower limit at which the form is clamped

    @property
    def size(self) -> int:
        """Return n, the number of entries of a group."""
        return math.prod(self.shape[a] for a in self.axes)

    @property
    def least_eps(self) -> float:
        """Return the smallest stabilizer of all groups."""
        return float(self.eps.min())

    @property
    def is_variance(self) -> bool:
        """Return whether the form vanishes on constant groups."""
        return abs(self.total * self.size + self.squares) <= 1e-9 * self.squares

    @property
    def is_square(self) -> bool:
        """Return whether the form is a multiple of the sum of squares."""
        return abs(self.total) * self.size <= 1e-9 * self.squares

    @classmethod
    def fitted(cls, below: PartOfGraph, shape: tuple[int, ...], axes: tuple[int, ...]) -> QuadraticForm | None:
        """Return the form that equals a function of x, or ``None``."""
        form = cls(shape, axes, 0.0, 0.0, torch.zeros(()))
        eps = below(torch.zeros(shape, dtype=torch.float64))
        if eps is None or not bool((eps.isfinite() & (eps >= 0)).all()):
            return None
        points = [form.point(0), form.point(1, shift=1.0)]
        values = [below(x) for x in points]
        if any(v is None for v in values):
            return None
        rows = torch.cat([torch.stack([s.flatten() for s in form.sums(x)], 1) for x in points])
        target = torch.cat([(v - eps).flatten() for v in values if v is not None])
        if rows.shape[0] != target.shape[0]:
            return None
        squares, total = torch.linalg.lstsq(rows, target[:, None]).solution.flatten().tolist()
        if not (math.isfinite(squares) and squares > 0 and total >= -squares / form.size * (1 + 1e-9)):
            return None
        form = cls(shape, axes, squares, total, eps)
        others = (form.point(2), form.point(4, shift=3.0), form.point(5, 1e3))
        return form if agrees(below, form.of, others, 1e-9) else None

    def point(self, seed: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        """Return random numbers of the shape."""
        return probe(self.shape, seed, scale, shift)

    def sums(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of squares and the squared sum of each group."""
        return x.square().sum(self.axes, keepdim=True), x.sum(self.axes, keepdim=True).square()

    def of(self, x: Tensor) -> Tensor:
        """Return the form's value for each group."""
        squares, total = self.sums(x)
        return (self.squares * squares + self.total * total + self.eps).clamp_min(self.least)

    def normalize(self, x: Tensor, centered: bool) -> Tensor:
        """Return the quotient without gain and shift."""
        return (x - x.mean(self.axes, keepdim=True) if centered else x) / self.of(x).sqrt()


def _aligned(value: Tensor | None, shape: tuple[int, ...], axes: tuple[int, ...]) -> Tensor | None:
    """Return one number per group with the group's axes of size one, or ``None`` if the numbers vary inside a group."""
    if value is None:
        return None
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    if value.numel() == math.prod(kept):
        return value.reshape(kept)
    if tuple(value.shape) != shape:
        return None
    first = value
    for axis in axes:
        first = first.narrow(axis, 0, 1)
    return first if torch.equal(first.expand(shape), value) else None


def _agrees(whole: PartOfGraph, form: QuadraticForm, centered: bool, gain: Tensor, shift: Tensor) -> bool:
    """Return whether a function is the quotient with a gain and a shift, at points the gain was not taken from."""
    small = math.sqrt(max(float(form.eps.max()), form.least)) or 1.0
    points = (form.point(6), form.point(7, small), form.point(8, shift=3.0), form.point(9, 1e3))
    return agrees(whole, lambda x: gain * form.normalize(x, centered) + shift, points)


class RootOfForm(Nonlinear):
    r""":math:`\sqrt{a \sum x_i^2 + b (\sum x_i)^2 + \varepsilon}` of every group of n entries.

    The root of a nonnegative form is a seminorm, and :math:`t \mapsto \sqrt{t^2 + \varepsilon}` has slopes of at most
    one, so the constant is :math:`\sqrt{\max(a, a + b n)}`, whatever the input, although the squares have none.

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
        """Return the range from the root of the stabilizer to that root plus the length of the input."""
        length = product(context.range(self.x).norm, self.factor)
        low, high = outward(self.least, length + self.most)
        norm = outward(0.0, length + self.most * math.sqrt(self.groups))[1]
        return Range(max(low, 0.0), high, norm, norm)


def root_of_form(call: Call, root: Any, around: Surroundings) -> Any:
    """Return a square root as a length or deviation if it is one, otherwise unchanged."""
    node = call.node
    if not is_root(node) or name_of(node) == "rsqrt" or (name_of(node) == "pow" and node.args[1] != 0.5):
        return root
    if not isinstance(root, Expr) or root.atom is None:
        return root
    radicand = around.graph[node.args[0].name]
    for reduction in reductions_behind(radicand, around):
        axes = around.recogniser.reduced_axes(reduction)
        for source in operands_behind(reduction, around, 4):
            expression = around.expression(source.name)
            if not isinstance(expression, Expr):
                continue
            form = fitted_form(radicand, source.name, axes, around)
            if form is not None and form.shape == expression.shape:
                return call.atom(RootOfForm(root.atom, expression, form), call.shape)
    return root
