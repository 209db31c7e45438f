"""Find divisions of a tensor by its own spread, a root of its reduced square, and help to find other patterns.

Hand-written LayerNorm, RMSNorm and l2 (cosine, query-key) normalization have no operation of their own. They end in a
product or quotient whose other operand is a root of a reduction of the same tensor; that is what is matched here. The
caller checks a match on numbers before it is trusted, and names it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from normscope.graph.ir import SOURCES, Graph, Node, Ref

#: Operations that give the same numbers in the same places, casts to integers apart; and those that repeat them.
_SAME = ("to", "_to_copy", "clone", "contiguous", "detach", "alias", "type_as")
_REPEATING = ("expand", "expand_as", "unsqueeze")
_REAL = ("float", "bfloat", "double", "half")
#: Numbers of so few bits that a cast to them is a step function.
_COARSE = ("float8_", "float6_", "float4_")

#: Operations that keep a spread away from zero, and reductions that are roots already.
_STABILIZERS = ("add", "clamp_min", "clamp", "maximum")
_NORMS = ("linalg_vector_norm", "linalg_norm", "norm")
_ROOTS = (*_NORMS, "std")


#: Constant factors: numbers, or names of nodes.
Factors = tuple[float | str, ...]


@dataclass(frozen=True)
class Match:
    """A division by a spread found in the graph.

    Attributes:
        source: the node that is normalized (before centring).
        axes: the reduced axes, counted from the first.
        eps: the stabilizer.
        centered: whether the mean is removed.
        correction: 1 for an unbiased variance.
        root_of: ``mean`` or ``sum`` of squares.
        where: ``inside`` the root, ``outside`` it, or ``max`` of root and eps.
        scale: a constant the reduced square is multiplied by.
        factors: numbers, and nodes of constants, that the quotient is multiplied by.
    """

    source: str
    axes: tuple[int, ...]
    eps: float
    centered: bool = False
    correction: float = 0.0
    root_of: str = "mean"
    where: str = "inside"
    scale: float = 1.0
    factors: Factors = ()


def name_of(node: Node) -> str:
    """Return the bare operation name: ``mul`` of ``aten.mul.Tensor``."""
    return node.op.split(".")[1] if node.op.startswith("aten.") else node.op


def operand_pairs(node: Node) -> list[tuple[Ref, Ref]]:
    """Return the two tensors of a quotient, or of a product in both orders; nothing for any other node."""
    if name_of(node) not in ("mul", "div") or len(node.args) < 2:
        return []
    left, right = node.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        return []
    return [(left, right)] if name_of(node) == "div" else [(left, right), (right, left)]


def is_real(node: Node) -> bool:
    """Return whether a node has real values, of enough bits that rounding to them is not a step."""
    return node.dtype.startswith(_REAL) and not node.dtype.startswith(_COARSE)


def does_more(node: Node) -> bool:
    """Return whether a stabilizing operation also does something else: cuts off above, or scales what it adds."""
    settings = dict(node.kwargs)
    upper = node.args[2] if len(node.args) > 2 else settings.get("max")
    return (name_of(node) == "clamp" and upper is not None) or settings.get("alpha", 1) != 1


def is_euclidean(norm: Node) -> bool:
    """Return whether a norm is the 2-norm."""
    settings = dict(zip(("self", "ord"), norm.args, strict=False)) | dict(norm.kwargs)
    return settings.get("ord", settings.get("p", 2)) in (2, 2.0, None)


def _is_difference(node: Node) -> bool:
    """Return whether a node is ``a - b``."""
    return name_of(node) == "sub" and not does_more(node)


class Recogniser:
    """Matches normalizers in one graph.

    Args:
        graph: the graph.
        number: returns the value of a constant scalar node, or ``None`` if it is not one.
        is_constant: returns whether a node is a constant.
    """

    def __init__(
        self,
        graph: Graph,
        number: Callable[[str], float | None],
        is_constant: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.graph, self.number, self.is_constant = graph, number, is_constant

    def match(self, node: Node) -> Match | None:
        """Return the normalizer that ends at this node, or ``None``."""
        for numerator, other in operand_pairs(node):
            for top, first in self._without_factors(numerator):
                for below, second, multiplied in self._denominators(node, other):
                    found = self._division(top, below, multiplied)
                    if found is not None:
                        return replace(found, factors=first + second)
        return None

    def _without_factors(self, ref: Ref) -> list[tuple[Ref, Factors]]:
        """Return a reference, and what is left of a product without its constant factor."""
        node = self.through(ref, repeating=False)
        found: list[tuple[Ref, Factors]] = [(ref, ())]
        if node is None or name_of(node) != "mul" or len(node.args) < 2:
            return found
        for kept, other in (node.args[:2], node.args[1::-1]):
            if isinstance(kept, Ref) and self._is_factor(other):
                found.append((kept, (other.name if isinstance(other, Ref) else float(other),)))
        return found

    def _denominators(self, node: Node, other: Ref) -> list[tuple[Ref, Factors, bool]]:
        """Return what a product multiplies by or a quotient divides by, and whether it is multiplied."""
        multiplied = name_of(node) == "mul"
        if not multiplied:
            return [(other, (), False)]
        found = [(ref, factors, True) for ref, factors in self._without_factors(other)]
        inverse = self.through(other)
        if inverse is not None and name_of(inverse) == "div" and len(inverse.args) > 1:
            top, below = inverse.args[:2]
            if isinstance(top, Ref) and isinstance(below, Ref) and self.is_constant(top.name):
                found.append((below, (top.name,), False))
        return found

    def _is_factor(self, value: Any) -> bool:
        """Return whether an argument is a number or a constant tensor."""
        if isinstance(value, Ref):
            return self.is_constant(value.name)
        return isinstance(value, int | float) and not isinstance(value, bool)

    def through(self, ref: Any, *, repeating: bool = True) -> Node | None:
        """Return the node behind a reference, looking through operations that change nothing, or only repeat."""
        while isinstance(ref, Ref):
            node = self.graph[ref.name]
            same = name_of(node) in _SAME and is_real(node)
            if node.args and (same or (repeating and name_of(node) in _REPEATING)):
                ref = node.args[0]
                continue
            return node
        return None

    def same(self, a: Node | None, b: Node | None, depth: int = 6) -> bool:
        """Return whether two nodes are one, or compute the same from the same nodes, as ``x - mean`` written twice."""
        if a is b:
            return a is not None
        if a is None or b is None or depth == 0 or a.op in SOURCES or a.op != b.op or len(a.args) != len(b.args):
            return False
        if a.kwargs != b.kwargs or "rand" in a.op or "dropout" in a.op:
            return False
        return all(
            self.same(self.graph[x.name], self.graph[y.name], depth - 1)
            if isinstance(x, Ref) and isinstance(y, Ref)
            else x == y
            for x, y in zip(a.args, b.args, strict=True)
        )

    def scalar(self, value: Any) -> float | None:
        """Return a constant number, literal or computed."""
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return float(value)
        return self.number(value.name) if isinstance(value, Ref) else None

    def stabilizer(self, value: Any) -> float | None:
        """Return a constant number that is not negative, as a stabilizer is."""
        found = self.scalar(value)
        return found if found is not None and found >= 0 else None

    def _division(self, numerator: Ref, other: Ref, multiplied: bool) -> Match | None:
        """Match ``numerator * rsqrt(q)``, ``numerator / sqrt(q)``, ``numerator / (norm + eps)`` and kin."""
        root = self.through(other)
        if root is None:
            return None
        spread = self._inverse_root(root) if multiplied else self._root(root)
        if spread is None:
            return None
        reduced, eps, where = spread
        reduced, scale = self._unscaled(reduced)
        found = self._finish(numerator, reduced, eps, where)
        return None if found is None else replace(found, scale=scale)

    def _unscaled(self, node: Node) -> tuple[Node, float]:
        """Look through a constant factor, as in ``n * var``."""
        if name_of(node) in ("mul", "div") and len(node.args) > 1:
            factor, inner = self.scalar(node.args[1]), self.through(node.args[0])
            if factor and factor > 0 and inner is not None:
                power = 2 if name_of(inner) in _ROOTS else 1  # what is outside the root counts twice inside
                return inner, (factor if name_of(node) == "mul" else 1.0 / factor) ** power
        return node, 1.0

    def _inverse_root(self, root: Node) -> tuple[Node, float, str] | None:
        """Match ``rsqrt(q)``, ``q^-0.5``, ``1/sqrt(q)``."""
        name = name_of(root)
        if name == "rsqrt" or (name == "pow" and root.args[1] == -0.5):
            return self._stabilized(root.args[0])
        if name == "reciprocal":
            inner = self.through(root.args[0])
            return None if inner is None else self._root(inner)
        if name == "mul" and self.scalar(root.args[1]) == 1.0:  # how torch writes 1.0 / x
            inner = self.through(root.args[0])
            return None if inner is None else self._inverse_root(inner)
        if name == "div" and self.scalar(root.args[0]) == 1.0:
            inner = self.through(root.args[1])
            return None if inner is None else self._root(inner)
        return None

    def _root(self, root: Node) -> tuple[Node, float, str] | None:
        """Match ``sqrt(q)``, ``sqrt(m) + eps``, ``max(norm, eps)``, ``norm``."""
        name = name_of(root)
        if name == "sqrt" or (name == "pow" and root.args[1] == 0.5):
            return self._stabilized(root.args[0])
        if name in _ROOTS or name_of(self._unscaled(root)[0]) in _ROOTS:
            return root, 0.0, "inside"
        if name in _STABILIZERS:
            eps = self.stabilizer(root.args[1]) if len(root.args) > 1 else None
            inner = self.through(root.args[0])
            if eps is None or inner is None or does_more(root):
                return None
            below = self._root(inner)
            if below is not None and below[1] == 0.0:
                return below[0], eps, "outside" if name == "add" else "max"
        return None

    def _stabilized(self, ref: Any) -> tuple[Node, float, str] | None:
        """Match ``m + eps``, ``max(m, eps)`` or ``m`` under a root."""
        node = self.through(ref)
        if node is None:
            return None
        name = name_of(node)
        if name in _ROOTS or does_more(node):
            return None  # a root of a root is not a spread
        if name in _STABILIZERS and len(node.args) > 1:
            for inner, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
                eps = self.stabilizer(other)
                behind = self.through(inner)
                if eps is not None and behind is not None and name_of(behind) not in _ROOTS:
                    return (behind, eps, "inside") if name == "add" else (behind, eps**0.5, "max")
            return None
        return node, 0.0, "inside"

    def _finish(self, numerator: Ref, reduced: Node, eps: float, where: str) -> Match | None:
        """Match the reduction of the square of the numerator itself."""
        top = self.through(numerator)
        if top is None:
            return None
        if reduced.op == "getitem":
            reduced = self.graph[reduced.args[0].name]
        name = name_of(reduced)
        if name in ("var", "std", "var_mean", "std_mean"):
            return self._over_variance(top, reduced, eps, where)
        if name in _NORMS:
            if not is_euclidean(reduced) or not self.same(self.through(reduced.args[0]), top):
                return None
            return Match(numerator.name, self.reduced_axes(reduced), eps, root_of="sum", where=where)
        square = self.through(reduced.args[0]) if name in ("mean", "sum") else None
        if square is None or not self._is_square_of(square, top):
            return None
        axes = self.reduced_axes(reduced)
        base = self._centered(top, axes) if name == "mean" else None
        if base is not None:
            return Match(base.name, axes, eps, True, where=where)
        return Match(numerator.name, axes, eps, root_of=name, where=where)

    def _is_square_of(self, square: Node, base: Node) -> bool:
        """Return whether a node is the square of another."""
        name = name_of(square)
        if name == "pow":
            return square.args[1] in (2, 2.0) and self.same(self.through(square.args[0]), base)
        if name == "square":
            return self.same(self.through(square.args[0]), base)
        return name == "mul" and all(self.same(self.through(a), base) for a in square.args[:2])

    def mean_of(self, node: Node | None) -> Node | None:
        """Return what a node is the mean of."""
        if node is None:
            return None
        if node.op == "getitem":
            inner = self.graph[node.args[0].name]
            return self.through(inner.args[0]) if name_of(inner) in ("var_mean", "std_mean") else None
        return self.through(node.args[0]) if name_of(node) == "mean" else None

    def _centered(self, top: Node, axes: tuple[int, ...]) -> Node | None:
        """Return x if a node is ``x - mean(x)`` over some axes."""
        if not _is_difference(top):
            return None
        base, mean = self.through(top.args[0]), self.through(top.args[1])
        if base is None or mean is None or not self.same(self.mean_of(mean), base):
            return None
        return base if self.reduced_axes(mean) == axes else None

    def _over_variance(self, top: Node, reduced: Node, eps: float, where: str) -> Match | None:
        """Match ``(x - mean(x)) / sqrt(var(x) + eps)``."""
        axes = self.reduced_axes(reduced)
        base = self._centered(top, axes)
        if base is None or not self.same(base, self.through(reduced.args[0])):
            return None
        settings = dict(reduced.kwargs)
        correction = settings.get("correction")
        if correction is None:
            unbiased = settings.get("unbiased", reduced.args[2] if len(reduced.args) > 2 else True)
            correction = 1.0 if unbiased in (True, None) else 0.0
        return Match(base.name, axes, eps, True, float(correction), "mean", where)

    def reduced_axes(self, reduction: Node) -> tuple[int, ...]:
        """Return the axes of a reduction, counted from the first; all of them where none is given."""
        if reduction.op == "getitem":  # the mean beside a variance
            reduction = self.graph[reduction.args[0].name]
        place = 2 if name_of(reduction) in _NORMS else 1
        given = dict(reduction.kwargs).get("dim", reduction.args[place] if len(reduction.args) > place else None)
        rank = len(self.graph[reduction.args[0].name].shape or ())
        if given is None or given == () or isinstance(given, bool):
            return tuple(range(rank))
        return tuple(sorted({axis % max(rank, 1) for axis in (given if isinstance(given, tuple | list) else (given,))}))
