"""Compose a whole network: Lipschitz constants and ranges of every atom, on one domain, in the log domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.core.value import log_sum
from normscope.lipschitz.segments import SegmentNorms, token_matrix
from normscope.operators.expression import Expr, LinearOp, linear, offset
from normscope.operators.nonlinear import INF, Lip, Range, product
from normscope.operators.program import Program

#: Most branches of a sum over which a following map is distributed.
BRANCHES = 8


@dataclass(frozen=True)
class Domain:
    """The set of inputs a bound speaks about.

    Attributes:
        name: how it is called in results.
        floors: least spread before each normalizer, by graph node; normalizers not named have floor zero.
        ranges: range of each input block, or nothing.
    """

    name: str = "all inputs"
    floors: Mapping[str, Tensor | float] = field(default_factory=dict)
    ranges: tuple[Range, ...] = ()


class Composition:
    """Bounds of a program on a domain. Implements :class:`normscope.operators.nonlinear.Context`.

    Args:
        program: the network.
        domain: the inputs spoken about.
        norms: shared cache of segment norms.
    """

    def __init__(self, program: Program, domain: Domain, norms: SegmentNorms) -> None:
        self.program, self.domain, self.norms = program, domain, norms
        self.blocks = max(1, len(program.blocks))
        self._images: dict[int, Range] = {}
        self._lips: dict[int, Lip] = {}
        self._ranges: dict[int, Range] = {}
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
        lips = [part for _, expr in self.program.outputs for part in self._parts(expr)]
        if not lips:
            return -INF, -INF, 0.0
        certified = _largest_singular_value([lip.certified for lip in lips])
        probable = _largest_singular_value([lip.probable for lip in lips])
        return certified, min(probable, certified), max(lip.delta for lip in lips)

    def _parts(self, expr: Expr) -> list[Lip]:
        """Return the constants of orthogonal parts of an output: those of a final concatenation, or itself."""
        while expr.op is not None and expr.op.kind in ("isometry", "embedding"):
            expr = expr.inputs[0]
        if expr.op is not None and expr.op.kind == "concat":
            return [lip for item in expr.inputs for lip in self._parts(item)]
        return [self.lipschitz(expr)]

    def image(self, atom: Expr) -> Range:
        """Return the range of an atom; those it depends on are found first, so that nothing recurses deeply."""
        for item in self._pending(atom):
            self._images[item.id] = item.atom.image(self).tightened(item.shape)
        return self._images[atom.id]

    def _pending(self, atom: Expr) -> list[Expr]:
        """Return the atoms whose ranges an atom's own range may ask for, in order, itself last."""
        seen: dict[int, Expr] = {}
        stack = [atom]
        while stack:
            item = stack.pop()
            if item.id in seen or item.id in self._images or item.id in self._ranges:
                continue
            seen[item.id] = item
            stack.extend(item.inputs if item.op is not None else item.atom.inputs)
        return [seen[key] for key in sorted(seen) if seen[key].op is None]

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
            self._lips[expr.id] = self._lipschitz(expr)
        return self._lips[expr.id]

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
        if len(junction.inputs) <= BRANCHES:
            whole = whole.minimum(self._distributed(junction, path))
        return whole

    def _through(self, source: Expr, expr: Expr) -> Lip:
        """Return the constant of a linear map of one atom."""
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
            total = total + self.lipschitz(_summed(group))
        return total

    def _distributed(self, junction: Expr, path: list[Expr]) -> Lip:
        """Return the constant of a chain after a junction, the chain measured together with each branch.

        A branch of one atom is extended by the chain and measured as one operator; a branch of several atoms takes
        the chain's own norm.
        """
        concat = junction.op is not None and junction.op.kind == "concat"
        after = self.norms.norm(junction, path[-1])
        lips: list[Lip] = []
        groups = [[i] for i in junction.inputs] if concat else _by_atom(junction.inputs)
        for group in groups:
            branch = _summed(group)
            placed = _placed(junction, branch) if concat else branch
            whole = _replayed(path, placed) if len(branch.atoms) == 1 else None
            if whole is not None and self.norms.has_closed_form(self._atom_of(branch), whole):
                lips.append(self._through(self._atom_of(branch), whole))
            elif branch.atoms:
                lips.append(self.lipschitz(branch).scaled(after.log_upper, after.log_probable, after.delta))
        total = Lip.constant(-INF, self.blocks)
        for lip in lips:
            total = total + lip
        return total

    # Ranges --------------------------------------------------------------------------------------------------------

    def range(self, expr: Expr) -> Range:
        """Return the range of an expression on the domain."""
        if expr.id not in self._ranges:
            order = _needed(expr, self._ranges)
            for item in order:
                self._ranges[item.id] = self._range(item).tightened(item.shape)
        return self._ranges[expr.id]

    def _range(self, expr: Expr) -> Range:
        """Compute a range from those of the operands, and by token where the map allows it."""
        if expr.op is None:
            return self.image(expr)
        if not expr.atoms:
            return _range_of(offset(expr, self._offsets))
        below = [self._ranges[i.id] for i in expr.inputs]
        shift = _range_of(expr.op.bias) if expr.op.bias is not None else Range(0.0, 0.0, 0.0, 0.0)
        out = _shifted(self._linear_range(expr, below), shift, expr)
        if len(expr.atoms) == 1 and expr.op.kind in ("matrix", "contraction", "isometry", "diagonal", "sum", "concat"):
            out = out.meet(self._token_range(expr))
        return out

    def _linear_range(self, expr: Expr, below: list[Range]) -> Range:
        """Return the range of the linear part of one operation."""
        op, first = expr.op, below[0]
        if op is None:
            return Range()
        if op.kind in ("isometry", "embedding", "contraction", "nonnegative") and (
            op.data.get("coordinate") or op.kind in ("isometry", "embedding")
        ):
            return self._copied(expr, first)
        if op.kind == "sum":
            return Range(*(sum(getattr(r, name) for r in below) for name in ("low", "high", "row", "norm")))
        if op.kind == "concat":
            return self._concatenated(expr, below)
        if op.kind == "diagonal":
            return _scaled_range(op.data["scale"], first)
        if op.kind == "nonnegative":
            return self._averaged(expr, first)
        if op.kind == "contraction":  # centring; within rows it is a projection of each row
            return Range(row=first.row if op.data.get("rowwise") else INF, norm=first.norm)
        if first.norm == INF == first.row:
            return Range()
        norm = self.norms.norm(expr.inputs[0], expr).upper
        out = Range(norm=product(norm, first.norm))
        if op.kind == "matrix" and op.data["axis"] == -1:
            weight = op.data["weight"].to(torch.float64)
            reach = float(weight.abs().sum(-1).max()) * (1 + 1e-12)
            sup = min(product(reach, first.sup), product(float(weight.norm(dim=-1).max()) * (1 + 1e-12), first.row))
            out = Range(-sup, sup, product(norm, first.row), out.norm)
        if op.kind == "convolution":
            out = out.meet(_convolved(op, first))
        return out

    def _copied(self, expr: Expr, first: Range) -> Range:
        """Return the range of copied entries: the same, zero included where there is padding."""
        op = expr.op
        padded = op is not None and (op.kind == "embedding" or expr.numel > expr.inputs[0].numel)
        low, high = (min(first.low, 0.0), max(first.high, 0.0)) if padded else (first.low, first.high)
        norm = first.norm
        if op is not None and op.kind == "nonnegative":
            norm = INF if norm == INF else product(self.norms.norm(expr.inputs[0], expr).upper, norm)
        rows = INF
        inner = expr.inputs[0].shape
        keeps = bool(inner and expr.shape) and op is not None and op.axes is not None and not op.data.get("reshape")
        if keeps and op is not None and op.axes is not None and op.axes(len(inner) - 1) == len(expr.shape) - 1:
            rows = first.row  # the last axis runs beside the last axis
        elif inner and expr.shape and op is not None and op.data.get("reshape"):
            if inner[-1] % expr.shape[-1] == 0:
                rows = first.row  # rows were cut
            elif expr.shape[-1] % inner[-1] == 0:
                rows = product(first.row, math.sqrt(expr.shape[-1] // inner[-1]))
        elif op is not None and op.kind in ("contraction", "embedding") and expr.shape and inner:
            rows = first.row if op.axes is not None and op.axes(len(inner) - 1) in (None, len(expr.shape) - 1) else INF
        return Range(low, high, rows, norm)

    def _concatenated(self, expr: Expr, below: list[Range]) -> Range:
        """Return the range of tensors side by side."""
        last = expr.op is not None and expr.op.data["axis"] == len(expr.shape) - 1
        row = math.hypot(*(r.row for r in below)) if last else max(r.row for r in below)
        low, high = min(r.low for r in below), max(r.high for r in below)
        return Range(min(low, 0.0), max(high, 0.0), row, math.hypot(*(r.norm for r in below)))

    def _averaged(self, expr: Expr, first: Range) -> Range:
        """Return the range of a map with coefficients >= 0, from its row sums."""
        norm = INF if first.norm == INF else product(self.norms.norm(expr.inputs[0], expr).upper, first.norm)
        if expr.op is None or first.sup == INF:
            return Range(norm=norm)
        sums = expr.op.apply(torch.ones(expr.inputs[0].shape, dtype=torch.float64))
        most, least = float(sums.max()) * (1 + 1e-12), float(sums.min()) * (1 - 1e-12)
        ends = [most * first.low, least * first.low, most * first.high, least * first.high]
        return Range(min(ends), max(ends), norm=norm)

    def _token_range(self, expr: Expr) -> Range:
        """Return the range of a token-wise map: ``|y_j| <= ||M_j|| R + |c_j|`` with R the norm of a token."""
        source = self._atom_of(expr)
        row = self.image(source).row
        if row == INF:
            return Range()
        matrix = token_matrix(source, expr)
        if matrix is None or matrix.shape[1] != source.shape[-1]:
            return Range()
        constant = offset(expr, self._offsets)
        sup = float(matrix.norm(dim=1).max()) * row * (1 + 1e-12) + _finite(constant.abs().max())
        rows = INF
        if matrix.shape[0] % expr.shape[-1] == 0:  # a token may hold several rows, e.g. heads
            blocks = matrix.reshape(-1, expr.shape[-1], matrix.shape[1])
            spectral = float(torch.linalg.matrix_norm(blocks, ord=2).max()) * (1 + 1e-10)
            rows = spectral * row + _finite(constant.norm(dim=-1).max())
        return Range(-sup, sup, rows)

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
        return min(full, self._token_range_without_shift(expr))

    def _token_range_without_shift(self, expr: Expr) -> float:
        """Return the row bound of the linear part alone."""
        source = self._atom_of(expr)
        row = self.image(source).row
        matrix = token_matrix(source, expr) if row < INF else None
        if matrix is None or matrix.shape[1] != source.shape[-1] or matrix.shape[0] % expr.shape[-1]:
            return INF
        blocks = matrix.reshape(-1, expr.shape[-1], matrix.shape[1])
        return float(torch.linalg.matrix_norm(blocks, ord=2).max()) * (1 + 1e-10) * row


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
        others = frozenset().union(*(i.atoms for i in inputs if i is not item))
        flat.extend(opened if opened and item.atoms & others else (item,))
    groups: dict[object, list[Expr]] = {}
    for index, item in enumerate(flat):
        key: object = next(iter(item.atoms)) if len(item.atoms) == 1 else ("many", index)
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def _summed(group: list[Expr]) -> Expr:
    """Return the sum of expressions of one shape as one expression."""
    if len(group) == 1:
        return group[0]

    def apply(*tensors: Tensor) -> Tensor:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return total

    return linear(LinearOp("sum", apply), group, group[0].shape)


def _placed(junction: Expr, branch: Expr) -> Expr:
    """Return one operand of a concatenation in its place among zeros."""
    index = next(i for i, item in enumerate(junction.inputs) if item.id == branch.id)
    op = junction.op
    shapes = [i.shape for i in junction.inputs]

    def apply(z: Tensor) -> Tensor:
        parts = [z if i == index else z.new_zeros(s) for i, s in enumerate(shapes)]
        return op.apply(*parts)  # type: ignore[union-attr]

    axes = None if op is None else op.axes
    return linear(LinearOp("embedding", apply, None, {}, axes), [branch], junction.shape)


def _replayed(path: list[Expr], start: Expr) -> Expr:
    """Return the chain of operations applied to another expression."""
    for step in path:
        if step.op is None:
            raise ValueError("a chain holds operations only")
        start = linear(step.op, [start], step.shape)
    return start


def _needed(expr: Expr, done: Mapping[int, Range]) -> list[Expr]:
    """Return the expressions whose ranges are still to be found, in order."""
    seen: dict[int, Expr] = {}
    stack = [expr]
    while stack:
        item = stack.pop()
        if item.id in seen or item.id in done:
            continue
        seen[item.id] = item
        stack.extend(item.inputs)
    return [seen[key] for key in sorted(seen)]


def _range_of(value: Tensor | None) -> Range:
    """Return the range of a constant tensor."""
    if value is None or value.numel() == 0:
        return Range(0.0, 0.0, 0.0, 0.0)
    value = value.to(torch.float64)
    rows = value.norm(dim=-1).max() if value.ndim else value.abs()
    return Range(float(value.min()), float(value.max()), _finite(rows), _finite(value.norm()))


def _shifted(linear_part: Range, shift: Range, expr: Expr) -> Range:
    """Return the range after adding a constant that broadcasts."""
    bias = None if expr.op is None else expr.op.bias
    if bias is None:
        return linear_part
    row = linear_part.row + _finite(
        bias.to(torch.float64).expand(expr.shape).norm(dim=-1).max() if expr.shape else shift.row
    )
    norm = linear_part.norm + _finite(bias.to(torch.float64).expand(expr.shape).norm())
    return Range(linear_part.low + shift.low, linear_part.high + shift.high, row, norm)


def _scaled_range(scale: Tensor, first: Range) -> Range:
    """Return the range after an entrywise factor."""
    low, high = float(scale.min()), float(scale.max())
    ends = [0.0 if 0.0 in (a, b) else a * b for a in (low, high) for b in (first.low, first.high)]
    top = float(scale.to(torch.float64).abs().max()) * (1 + 1e-15)
    return Range(min(ends), max(ends), product(top, first.row), product(top, first.norm))


def _convolved(op: LinearOp, first: Range) -> Range:
    """Return the range of a convolution of bounded entries: the absolute sum of a filter times the largest entry."""
    if first.sup == INF or op.data["transposed"]:
        return Range()
    reach = float(op.data["weight"].to(torch.float64).abs().flatten(1).sum(1).max()) * (1 + 1e-12)
    return Range(-reach * first.sup, reach * first.sup)


def _finite(x: Tensor | float) -> float:
    """Return a bound with rounding room; NaN counts as no bound."""
    value = float(x) * (1 + 1e-12)
    return INF if math.isnan(value) else value
