"""Compose a whole network: Lipschitz constants and ranges of every atom, on one domain, in the log domain."""

import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.core.value import log_sum
from normscope.lipschitz import ranges
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import AtomSet, Expr, LinearOp, linear, offset, operands, reached
from normscope.operators.layout import added
from normscope.operators.nonlinear import INF, Lip, Range, product
from normscope.operators.program import Program

#: Most branches of a sum over which a following map is distributed.
BRANCHES = 8


@dataclass(frozen=True)
class Domain:
    """The set of inputs for which a bound holds."""

    name: str = "all inputs"  #: its name in results
    #: least spread before each normalizer, by graph node; normalizers not named have floor zero
    floors: Mapping[str, Tensor | float] = field(default_factory=dict)
    ranges: tuple[Range, ...] = ()  #: range of each input block; empty if they are unbounded
    #: range of tensors inside, by graph node: factors of products, scores, arguments of steep functions
    factors: Mapping[str, Range] = field(default_factory=dict)


class Composition:
    """Bounds of a program on a domain. Implements :class:`normscope.operators.nonlinear.Context`.

    Args:
        program: the network.
        domain: the inputs for which the bounds hold.
        norms: shared cache of segment norms.
        chains: certificates of whole parts of the network, which replace products of norms where they are smaller.
        distributed: measure what follows a sum together with each of its branches too, which takes more matrices.
    """

    def __init__(
        self,
        program: Program,
        domain: Domain,
        norms: SegmentNorms,
        chains: Chains | None = None,
        *,
        distributed: bool = True,
    ) -> None:
        self.program, self.domain, self.norms, self.chains = program, domain, norms, chains
        self._branches = BRANCHES if distributed else 0
        self.blocks = max(1, len(program.blocks))
        self._images: dict[int, Range] = {}
        self._lips: dict[int, Lip] = {}
        self._ranges: dict[int, Range] = {}
        self._bases: dict[int, Expr] = {}
        self._offsets: dict[int, Tensor] = {}
        self._atoms = {a.id: a for a in program.atoms}

    def run(self) -> Lip:
        """Return the constant of all outputs, stacked, with respect to the network input.

        The atoms are visited in order, so that the depth of the network never becomes the depth of a recursion.
        """
        for atom in self.program.atoms:
            self.lipschitz(atom)
        return self.outputs()

    @statement("normscope", "F10", holds="every operation on a path has a rule")
    def outputs(self) -> Lip:
        """Return the constant of the stacked outputs: the root of the sum of squares over outputs."""
        lips = [self.lipschitz(expr) for _, expr in self.program.outputs]
        if not lips:
            return Lip.constant(-INF, self.blocks)
        return lips[0].root_sum_square(*lips[1:])

    def total(self) -> tuple[float, float, float]:
        """Return (certified log, probable log, delta) of the network's constant."""
        self.run()
        parts = [part for _, expr in self.program.outputs for part in _orthogonal_parts(expr)]
        lips = [self._at_end(self.norms.made(_side_by_side, *group)) for group in self._jointly(parts)]
        if not lips:
            return -INF, -INF, 0.0
        certified = _largest_singular_value([lip.certified for lip in lips])
        probable = _largest_singular_value([lip.probable for lip in lips])
        return certified, min(probable, certified), min(1.0, sum(lip.delta for lip in lips))

    def _jointly(self, parts: list[Expr]) -> list[list[Expr]]:
        """Group parts that are linear in one and the same atom, where together they are as easy to measure."""
        by_atom: dict[AtomSet, list[Expr]] = {}
        groups = [[part] for part in parts if len(part.atoms) != 1]
        for part in parts:
            if len(part.atoms) == 1:
                by_atom.setdefault(part.atoms, []).append(part)
        for group in by_atom.values():
            if len(group) > 1 and self.norms.has_closed_form(
                self._atom_of(group[0]), self.norms.made(_side_by_side, *group)
            ):
                groups.append(group)
            else:
                groups.extend([part] for part in group)
        return groups

    def image(self, atom: Expr) -> Range:
        """Return the range of an atom; those it depends on are found first, so that nothing recurses deeply."""
        for item in reached([atom], operands, ChainMap(self._images, self._ranges)):
            if item.op is None:
                self._images[item.id] = self._narrowed(item, item.atom.image(self).tightened(item.shape))
        return self._images[atom.id]

    def _narrowed(self, expr: Expr, inside: Range) -> Range:
        """Return a range, intersected with the one that the domain gives for the tensor."""
        given = self.domain.factors.get(self.program.nodes.get(expr.id, ""))
        return inside if given is None else inside.meet(given).tightened(expr.shape)

    def floor(self, name: str) -> Tensor | float:
        """Return the least spread the domain allows before a normalizer."""
        return self.domain.floors.get(name, 0.0)

    def input_range(self, block: int) -> Range:
        """Return the range of an input block."""
        return self.domain.ranges[block] if block < len(self.domain.ranges) else Range()

    # Lipschitz constants -------------------------------------------------------------------------------------------

    def lipschitz(self, expr: Expr) -> Lip:
        """Return the constant of an expression with respect to the network input."""
        if expr.id not in self._lips:
            ends = self.chains is not None and expr.id in self.chains.ends
            self._lips[expr.id] = self._at_end(expr) if ends else self._lipschitz(expr)
        return self._lips[expr.id]

    def computed(self, expr: Expr) -> bool:
        """Return whether the constant of an expression was computed already."""
        return expr.id in self._lips

    def _at_end(self, expr: Expr) -> Lip:
        """Return the constant of a tensor at which a chain may end: the better of the product and the chain."""
        found = self._lipschitz(expr)
        chain = None if self.chains is None else self.chains.lipschitz(expr, self)
        return found if chain is None else found.minimum(chain)

    def _lipschitz(self, expr: Expr) -> Lip:
        """Compute a constant: one operator per atom where there is one atom, otherwise branch by branch."""
        if not expr.atoms:
            return Lip.constant(-INF, self.blocks)
        if expr.op is None:
            return expr.atom.constant(self)
        if len(expr.atoms) == 1:
            return self._through(self._atom_of(expr), expr)
        junction, path = _junction(expr)
        whole = self._join(junction)
        if not path:
            return whole
        after = self.norms.norm(junction, expr)
        whole = whole.scaled(after.log_upper, after.log_probable, after.delta)
        if len(junction.inputs) <= self._branches:
            whole = whole.minimum(self._distributed(junction, path))
        return whole

    def _through(self, source: Expr, expr: Expr) -> Lip:
        norm = self.norms.norm(source, expr)
        return self.lipschitz(source).scaled(norm.log_upper, norm.log_probable, norm.delta)

    def _atom_of(self, expr: Expr) -> Expr:
        """Return the one atom an expression depends on."""
        (key,) = expr.atoms
        if key in self._atoms:
            return self._atoms[key]
        while expr.op is not None:
            expr = next(i for i in expr.inputs if i.atoms)
        return expr

    def _join(self, junction: Expr) -> Lip:
        """Return the constant of a sum or concatenation (or of another operation of several inputs)."""
        op = junction.op
        if op is not None and op.kind == "concat":
            lips = [self.lipschitz(i) for i in junction.inputs]
            return lips[0].root_sum_square(*lips[1:])
        if op is None or op.kind != "sum":
            return Lip.constant(INF, self.blocks)
        total = Lip.constant(-INF, self.blocks)
        for group in _by_atom(junction.inputs):
            total = total + self.lipschitz(self.norms.made(_summed, *group))
        return total

    def _distributed(self, junction: Expr, path: list[Expr]) -> Lip:
        """Return the constant of a chain after a junction, the chain measured together with each branch.

        A branch of one atom is extended by the chain and measured as one operator; a branch of several atoms takes
        the chain's own norm.
        """
        concat = junction.op is not None and junction.op.kind == "concat"
        after = self.norms.norm(junction, path[-1])
        total = Lip.constant(-INF, self.blocks)
        groups = [[i] for i in junction.inputs] if concat else _by_atom(junction.inputs)
        for index, group in enumerate(groups):
            branch = self.norms.made(_summed, *group)
            placed = self.norms.made(_placed, junction, index) if concat else branch
            whole = self.norms.made(_replayed, placed, *path) if len(branch.atoms) == 1 else None
            if whole is not None and self.norms.has_closed_form(self._atom_of(branch), whole):
                total = total + self._through(self._atom_of(branch), whole)
            elif branch.atoms:
                total = total + self.lipschitz(branch).scaled(after.log_upper, after.log_probable, after.delta)
        return total

    # Ranges --------------------------------------------------------------------------------------------------------

    def range(self, expr: Expr) -> Range:
        """Return the range of an expression on the domain."""
        if expr.id not in self._ranges:
            order = reached([expr], known=self._ranges)
            # Row by row is exact but needs a matrix: for the requested tensor, and for each branch of a junction below.
            ends = {expr.id} | {i.id for e in order if len(e.atoms) > 1 for i in e.inputs}
            self._bases.update({e.id: base for e in order if (base := self._base(e)) is not None})
            ends |= {self._bases[e.id].id for e in order if e.id in self._bases}
            for item in order:
                found = self._range(item, row_by_row=item.id in ends).tightened(item.shape)
                self._ranges[item.id] = self._narrowed(item, found)
        return self._ranges[expr.id]

    def _base(self, expr: Expr) -> Expr | None:
        """Return the tensor that the branches of a sum or concatenation, perhaps reshaped, all come from."""
        if expr.op is not None and expr.op.data.get("reshape") and expr.op.bias is None:
            return self._bases.get(expr.inputs[0].id) or self._base(expr.inputs[0])
        return _meeting(expr) if expr.op is not None and expr.op.kind in ("sum", "concat") else None

    def _range(self, expr: Expr, *, row_by_row: bool) -> Range:
        """Compute a range from those of the operands, and row by row where that is wanted and the map allows it."""
        if expr.op is None:
            return self.image(expr)
        if not expr.atoms:
            return ranges.range_of(offset(expr, self._offsets))
        out = ranges.shifted(self._linear_range(expr, [self._ranges[i.id] for i in expr.inputs]), expr)
        if expr.id in self._bases:
            base = self._bases[expr.id]
            out = out.meet(ranges.row_by_own(base, expr, self._ranges[base.id].row))
        if row_by_row and len(expr.atoms) == 1:
            source = self._atom_of(expr)
            row = self.image(source).row
            if row < INF:
                constant, matrices = offset(expr, self._offsets), self.norms.matrices
                out = out.meet(ranges.row_wise(source, expr, row, constant=constant, matrices=matrices))
        return out

    def _linear_range(self, expr: Expr, below: list[Range]) -> Range:
        """Return the range of the linear part of one operation."""
        op, first = expr.op, below[0]
        if op is None:
            return Range()
        if op.kind in ("isometry", "embedding") or op.data.get("coordinate"):
            return ranges.copied(expr, first, self._norm_of(expr) if first.norm < INF else 1.0)
        if op.kind == "sum":
            return ranges.added(below)
        if op.kind == "concat":
            return ranges.concatenated(expr, below)
        if op.kind == "diagonal":
            return ranges.scaled_range(op.data["scale"], first)
        if op.kind == "nonnegative":
            return ranges.averaged(expr, first, self._norm_of(expr) if first.norm < INF else 1.0)
        if op.kind == "contraction":  # centring; within rows it is a projection of each row
            return Range(row=first.row if op.data.get("rowwise") else INF, norm=first.norm)
        if first.norm == INF == first.row:
            return Range()
        norm = self._norm_of(expr)
        out = Range(norm=product(norm, first.norm))
        if op.kind == "matrix" and op.data["axis"] == -1:
            reach, row = ranges.longest_rows(op)
            sup = min(product(reach, first.sup), product(row, first.row))
            out = Range(-sup, sup, product(norm, first.row), out.norm)
        if op.kind == "convolution":
            out = out.meet(ranges.convolved(op, first))
        return out

    def _norm_of(self, expr: Expr) -> float:
        return self.norms.norm(expr.inputs[0], expr).upper

    def centered_row(self, expr: Expr) -> float:
        """Return the largest row norm after removing a constant that is the same for every token.

        Attention does not notice a shift common to all keys, or (up to the same shift of its output) to all values.
        """
        full = self.range(expr).row
        if len(expr.atoms) != 1 or len(expr.shape) < 2:
            return full
        constant = offset(expr, self._offsets)
        if not bool(torch.isfinite(constant).all()) or not bool((constant == constant[..., :1, :]).all()):
            return full
        source = self._atom_of(expr)
        centred = ranges.row_wise(source, expr, self.image(source).row, matrices=self.norms.matrices)
        return min(full, centred.row)


def _largest_singular_value(rows: list[tuple[float, ...]]) -> float:
    """Return the log of the norm of the matrix of constants (parts x input blocks), given as logs."""
    flat = [log for row in rows for log in row]
    top = max(flat)
    if math.isinf(top):
        return top
    if len(rows) == 1 or len(rows[0]) == 1:
        return log_sum(2 * log for log in flat) / 2
    matrix = torch.tensor([[math.exp(log - top) for log in row] for row in rows], dtype=torch.float64)
    return top + math.log(float(torch.linalg.matrix_norm(matrix, ord=2)) * (1 + 1e-13))


def _junction(expr: Expr) -> tuple[Expr, list[Expr]]:
    """Return the first operation of several inputs below an expression, and the chain above it, bottom first."""
    path: list[Expr] = []
    while len(expr.inputs) == 1:
        path.append(expr)
        expr = expr.inputs[0]
    return expr, path[::-1]


def _by_atom(inputs: tuple[Expr, ...]) -> list[list[Expr]]:
    """Group the operands of a sum: those of one and the same atom together, nested sums opened."""
    flat: list[Expr] = []
    for item in inputs:
        opened = item.inputs if item.op is not None and item.op.kind == "sum" and len(item.atoms) > 1 else ()
        # Opening a nested sum pays only if one of its operands shares an atom with another operand.
        shared = opened and not all(item.atoms.isdisjoint(i.atoms) for i in inputs if i is not item)
        flat.extend(opened if shared else (item,))
    groups: dict[object, list[Expr]] = {}
    for index, item in enumerate(flat):
        key: object = next(iter(item.atoms)) if len(item.atoms) == 1 else ("many", index)
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def _orthogonal_parts(expr: Expr) -> list[Expr]:
    """Return the parts of an output that lie side by side: those of a final concatenation, or itself."""
    parts: list[Expr] = []
    stack = [expr]
    while stack:
        item = stack.pop()
        if item.op is not None and item.op.kind in ("isometry", "embedding"):
            stack.append(item.inputs[0])
        elif item.op is not None and item.op.kind == "concat":
            stack.extend(reversed(item.inputs))
        else:
            parts.append(item)
    return parts


def _side_by_side(*group: Expr) -> Expr:
    """Return expressions of any shapes as one vector; a single one is returned as it is."""
    if len(group) == 1:
        return group[0]

    def apply(*tensors: Tensor) -> Tensor:
        return torch.cat([t.reshape(-1) for t in tensors])

    return linear(LinearOp("concat", apply, None, {"axis": 0}), group, (sum(e.numel for e in group),))


def _summed(*group: Expr) -> Expr:
    """Return the sum of expressions of one shape as one expression."""
    if len(group) == 1:
        return group[0]
    return linear(LinearOp("sum", added), group, group[0].shape)


def _placed(junction: Expr, index: int) -> Expr:
    """Return one operand of a concatenation in its place among zeros."""
    branch, op = junction.inputs[index], junction.op
    shapes = [i.shape for i in junction.inputs]

    def apply(z: Tensor) -> Tensor:
        parts = [z if i == index else z.new_zeros(s) for i, s in enumerate(shapes)]
        return op.apply(*parts)  # type: ignore[union-attr]

    axes = None if op is None else op.axes
    return linear(LinearOp("embedding", apply, None, {}, axes), [branch], junction.shape)


def _replayed(start: Expr, *path: Expr) -> Expr:
    for step in path:
        if step.op is None:
            raise ValueError("a chain holds operations only")
        start = linear(step.op, [start], step.shape)
    return start


def _meeting(junction: Expr) -> Expr | None:
    """Return where the branches of a junction meet again, if that is near and nothing constant is added on the way."""
    open_ = {junction.id: junction}
    for _ in range(24):
        latest = open_.pop(max(open_))
        if latest.op is None or latest.op.bias is not None or not all(i.atoms for i in latest.inputs):
            return None
        open_ |= {i.id: i for i in latest.inputs}
        if len(open_) == 1:
            return next(iter(open_.values()))
    return None
