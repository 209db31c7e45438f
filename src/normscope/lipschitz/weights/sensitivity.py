"""The constant of a network with respect to tensors inside it: perturbations are added there, the input stays put."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from normscope.core.statement import statement
from normscope.lipschitz.composition import Composition
from normscope.operators.expression import Expr, LinearOp, atom_expr, linear, reached
from normscope.operators.nonlinear import INF, Input, Lip, Range
from normscope.operators.program import Program


class Cones:
    """Which of some places lie in the linear part below an expression, down to its atoms."""

    def __init__(self, places: Sequence[Expr]) -> None:
        self.places = tuple(places)
        self._own: dict[int, frozenset[int]] = {}
        for index, place in enumerate(self.places):
            self._own[place.id] = self._own.get(place.id, frozenset()) | {index}
        self._memo: dict[int, frozenset[int]] = {}

    def inside(self, expr: Expr) -> frozenset[int]:
        """Return the places from which the expression can be reached by linear operations alone, itself included."""
        if expr.id not in self._memo:
            for item in reached([expr], known=self._memo):
                below = (self._memo[i.id] for i in item.inputs)
                self._memo[item.id] = self._own.get(item.id, frozenset()).union(*below)
        return self._memo[expr.id]


class Sensitivity:
    """Bounds on what perturbations at some places do. Implements :class:`normscope.operators.nonlinear.Context`.

    One block for each place: ``||d expr|| <= sum_i exp(log_i) ||delta_i||`` where ``delta_i`` is added to place i and
    the network input does not move. A segment may begin at a place in its middle; all others are those of
    :class:`Composition`, and their norms are shared with it.

    Args:
        program: the network.
        places: the tensors that are perturbed.
        ranges: bounds of the same program on the domain, from which ranges are taken.
    """

    def __init__(self, program: Program, places: Sequence[Expr], ranges: Composition) -> None:
        self.program, self.places, self.ranges = program, tuple(places), ranges
        self.norms = ranges.norms
        self.blocks = max(1, len(self.places))
        self.cones = Cones(self.places)
        self._through_atoms = _ThroughAtoms(self)
        self._by_id = {atom.id: atom for atom in program.atoms}
        self._lips: dict[int, Lip] = {}
        self._cut: dict[int, dict[int, Expr]] = {}
        self._asked: dict[int, list[Expr]] = {}
        self._asking: list[int] = []

    @statement("normscope", "F13", holds="every operation on a path from the place to the output has a rule")
    def total(self) -> list[tuple[float, float, float]]:
        """Return (certified log, probable log, delta) of the constant of all outputs with respect to each place."""
        for atom in self.program.atoms:
            self.lipschitz(atom)
        lips = [self.lipschitz(expr) for _, expr in self.program.outputs]
        if not lips:
            return [(-INF, -INF, 0.0)] * len(self.places)
        whole = lips[0].root_sum_square(*lips[1:])
        return [
            (certified, min(certified, probable), whole.delta)
            for certified, probable in zip(whole.certified, whole.probable, strict=True)
        ][: len(self.places)]

    def lipschitz(self, expr: Expr) -> Lip:
        """Return the constant of an expression with respect to every place."""
        if expr.id not in self._lips:
            self._lips[expr.id] = self._lipschitz(expr)
        return self._lips[expr.id]

    def depends(self, expr: Expr, places: Iterable[int]) -> bool:
        """Return whether an expression moves with any of some places."""
        lip = self.lipschitz(expr)
        return any(lip.certified[i] > -INF for i in places)

    def uses_ranges_of(self, places: Sequence[int]) -> bool:
        """Return whether the constants of some places depend on the range of a tensor that moves with them.

        If not, they hold for perturbations of any size, not only for small ones.
        """
        for atom in self.program.atoms:
            asked = self._asked.get(atom.id, ())
            if asked and self.depends(atom, places) and any(self.depends(expr, places) for expr in asked):
                return True
        return False

    def _lipschitz(self, expr: Expr) -> Lip:
        """Return what comes through atoms below, and what comes from places in the linear part itself."""
        if expr.op is None:
            through = self._of_atom(expr)
        else:
            below = [self.lipschitz(self._by_id[key]) for key in sorted(expr.atoms) if key in self._by_id]
            live = any(log > -INF for lip in below for log in lip.certified)  # otherwise no norm need be measured
            through = _only_where(self._through_atoms.lipschitz(expr), below) if live else self._nothing()
        direct = self._direct(expr)
        return through if direct is None else through + direct

    def _nothing(self) -> Lip:
        return Lip.constant(-INF, self.blocks)

    def _of_atom(self, expr: Expr) -> Lip:
        """Apply a nonlinear rule; places that do not affect its operands do not affect it."""
        rule = expr.atom
        if isinstance(rule, Input) or not rule.inputs:
            return self._nothing()
        self._asking.append(expr.id)
        try:
            lip = rule.constant(self)
        finally:
            self._asking.pop()
        return _only_where(lip, [self.lipschitz(e) for e in rule.inputs])

    def _direct(self, expr: Expr) -> Lip | None:
        """Return what places in the linear part of an expression do, each measured as one operator."""
        inside = self.cones.inside(expr)
        if not inside:
            return None
        certified, probable, delta = [-INF] * self.blocks, [-INF] * self.blocks, 0.0
        for index in inside:
            place = self.places[index]
            bounds = self.norms.norm(*((place, expr) if _dominates(place, expr) else self._cut_out(index, expr)))
            certified[index], probable[index] = bounds.log_upper, bounds.log_probable
            delta = max(delta, bounds.delta)
        return Lip(tuple(certified), tuple(probable), delta)

    def _cut_out(self, index: int, expr: Expr) -> tuple[Expr, Expr]:
        """Return a place as an atom of its own, and the linear part of an expression as a function of it alone."""
        place, memo = self.places[index], self._cut.setdefault(index, {})
        if place.id not in memo:
            memo[place.id] = atom_expr(Input(index, "perturbation"), place.shape)

        def active(item: Expr) -> bool:
            return index in self.cones.inside(item)

        for item in reached([expr], lambda e: filter(active, e.inputs), memo):
            memo[item.id] = _restricted(item, memo, active)
        return memo[place.id], memo[expr.id]

    # What rules may ask about the domain ---------------------------------------------------------------------------

    def range(self, expr: Expr) -> Range:
        """Return the range of an expression, and remember that it was asked for."""
        self._note(expr)
        return self.ranges.range(expr)

    def centered_row(self, expr: Expr) -> float:
        """Return the largest row norm, a shift common to all rows removed."""
        self._note(expr)
        return self.ranges.centered_row(expr)

    def input_range(self, block: int) -> Range:
        """Return the range of a block of the network input."""
        return self.ranges.input_range(block)

    def floor(self, name: str) -> Tensor | float:
        """Return the least spread the domain allows before a normalizer."""
        return self.ranges.floor(name)

    def _note(self, expr: Expr) -> None:
        if self._asking:
            self._asked.setdefault(self._asking[-1], []).append(expr)


class _ThroughAtoms(Composition):
    """Linear parts by their atoms, whose constants the sensitivity knows."""

    def __init__(self, outer: Sensitivity) -> None:
        super().__init__(outer.program, outer.ranges.domain, outer.norms)
        self.outer, self.blocks = outer, outer.blocks

    def lipschitz(self, expr: Expr) -> Lip:
        """Return the constant of an atom with every place counted, of anything else through its atoms alone."""
        return self.outer.lipschitz(expr) if expr.op is None else super().lipschitz(expr)


class MovedRanges(Composition):
    """Ranges where some places may have any value, valid for perturbations of every size."""

    def __init__(self, fixed: Composition, sensitivity: Sensitivity, places: Sequence[int]) -> None:
        super().__init__(fixed.program, fixed.domain, fixed.norms)
        self.fixed, self._sensitivity, self._chosen = fixed, sensitivity, tuple(places)
        chosen = [sensitivity.places[i] for i in places]
        self._free = {place.id for place in chosen}
        self._cones = Cones(chosen)

    def _moves(self, expr: Expr) -> bool:
        return self._sensitivity.depends(expr, self._chosen)

    def range(self, expr: Expr) -> Range:
        """Return the range of an expression; where it does not move, the fixed one."""
        return super().range(expr) if self._moves(expr) else self.fixed.range(expr)

    def image(self, atom: Expr) -> Range:
        """Return the range of an atom, anything at all where it is perturbed itself."""
        if not self._moves(atom):
            return self.fixed.image(atom)
        return Range() if atom.id in self._free else super().image(atom)

    def _range(self, expr: Expr, *, row_by_row: bool) -> Range:
        if expr.id in self._free:
            return Range()
        # Row by row is from an atom to the end: a perturbation on the way would be left out.
        return super()._range(expr, row_by_row=row_by_row and not self._cones.inside(expr))

    def centered_row(self, expr: Expr) -> float:
        """Return the largest row norm, a common shift removed where no perturbation lies on the way."""
        if not self._moves(expr):
            return self.fixed.centered_row(expr)
        return self.range(expr).row if self._cones.inside(expr) else super().centered_row(expr)


def _only_where(lip: Lip, operands: Sequence[Lip]) -> Lip:
    """Return a constant with zero for every block that no operand depends on (an unknown function gives infinity)."""
    live = [any(o.certified[i] > -INF for o in operands) for i in range(len(lip.certified))]
    if all(live):
        return lip
    return Lip(
        tuple(log if on else -INF for log, on in zip(lip.certified, live, strict=True)),
        tuple(log if on else -INF for log, on in zip(lip.probable, live, strict=True)),
        lip.delta,
    )


def _dominates(place: Expr, expr: Expr) -> bool:
    """Return whether every path from an expression down to its atoms passes a place, which has some."""
    if place.id == expr.id:
        return True
    above = reached([expr], lambda e: (i for i in e.inputs if i.atoms), (place.id,))
    return bool(place.atoms) and all(e.op is not None for e in above)


def _restricted(expr: Expr, memo: dict[int, Expr], active: Callable[[Expr], bool]) -> Expr:
    """Return one linear operation with the operands that do not matter left out, or zero."""
    op, live = expr.op, [active(i) for i in expr.inputs]
    if op is None:
        raise ValueError("an atom is no linear operation")
    inputs = [memo[i.id] for i, on in zip(expr.inputs, live, strict=True) if on]
    if op.kind == "sum":
        return inputs[0] if len(inputs) == 1 else linear(LinearOp("sum", op.apply), inputs, expr.shape)
    if all(live):
        return linear(op, inputs, expr.shape)
    shapes = [i.shape for i in expr.inputs]

    def apply(*tensors: Tensor) -> Tensor:
        supply = iter(tensors)
        filled = [next(supply) if on else tensors[0].new_zeros(s) for on, s in zip(live, shapes, strict=True)]
        return op.apply(*filled)

    kind = op.kind if op.kind != "concat" else ("embedding" if len(inputs) == 1 else "concat")
    data = {k: v for k, v in op.data.items() if k != "reshape"}
    return linear(LinearOp(kind, apply, None, data, op.axes, op.owner, op.weight_name), inputs, expr.shape)
