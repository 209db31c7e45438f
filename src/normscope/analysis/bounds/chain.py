"""A ReLU network as an exact chain of layers; skips of non-negative tensors are carried along, others refused."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.analysis.bounds.result import RefusedError
from normscope.generalization.margin_bounds import ChainLayer
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.convolution import apply_convolution
from normscope.operators.expression import Expr, between, evaluate, offset
from normscope.operators.linear_map import pulled
from normscope.operators.nonlinear import Input, Pointwise
from normscope.operators.program import Program

#: Activations with ``g(c t) = c g(t)`` for ``c >= 0`` and slope at most one; those of the second are never negative.
_HOMOGENEOUS, _NONNEGATIVE = ("relu", "relu_", "leaky_relu", "leaky_relu_"), ("relu", "relu_")
#: Most outputs of a linear map whose rows are computed one by one.
_ROWS = 4096


def chain_of(program: Program, norms: SegmentNorms) -> list[ChainLayer]:
    r"""Return the layers of a ReLU network, biases as one more column, the last layer giving the scores.

    ``relu(W_2 relu(W_1 x) + S x)`` is written as ``x -> relu([W_1; I] x) -> relu([W_2, S] .)`` where ``x`` is not
    negative, which is the same function (docs/theory.md, F16). The column of the biases belongs to a constant
    ``sqrt(n)``, ``n`` the entries of an input, that is carried beside the input: as large as inputs usually are.
    """
    atoms = {a.id: a for a in program.atoms}
    if len(program.blocks) != 1 or len(program.outputs) != 1 or program.opaque:
        raise RefusedError("it needs one input, one output and a rule for every operation")
    steps = [(a.atom.inputs[0], a) for a in _needed(program) if not isinstance(a.atom, Input)]
    targets: list[tuple[Expr, Expr | None]] = [*steps, (program.outputs[0][1], None)]
    for _, made_by in steps:
        _check(made_by)
    last = {i: t for t, (expr, _) in enumerate(targets) for i in expr.atoms}
    memo: dict[int, Tensor] = {}
    constant = math.sqrt(program.atoms[0].numel)
    biases = [float(offset(expr, memo).square().sum()) for expr, _ in targets]
    layers: list[ChainLayer] = []
    made: list[int] = [program.atoms[0].id]
    for t, (expr, atom) in enumerate(targets):
        carried = [atoms[i] for i in made if last.get(i, -1) > t]
        for item in carried:
            if isinstance(item.atom, Input) or _name(item) not in _NONNEGATIVE:
                raise RefusedError(f"a skip connection carries values that may be negative ({_place(item)})")
        fan_in = sum(atoms[i].numel for i in made if last.get(i, -1) >= t) + any(biases)
        bias = offset(expr, memo).flatten() / constant if any(biases) else None
        more = sum(item.numel for item in carried) + (bias is not None and atom is not None)
        layers.append(_layer(expr, atoms, norms, bias, more, fan_in))
        if atom is not None:
            made.append(atom.id)
    return layers


def has_biases(layers: list[ChainLayer], inputs: int) -> bool:
    """Return whether a chain carries a constant for biases beside its inputs, given their number of entries."""
    return layers[0].fan_in > inputs


def relu_units(program: Program) -> list[int]:
    """Return the units of each layer of a network whose only nonlinearities are ReLUs."""
    if len(program.outputs) != 1 or program.opaque:
        raise RefusedError("it needs one output and a rule for every operation")
    hidden = [a for a in _needed(program) if not isinstance(a.atom, Input)]
    for atom in hidden:
        _check(atom)
    return [a.numel for a in hidden]


def _needed(program: Program) -> list[Expr]:
    """Return the atoms that the output depends on, in order."""
    atoms, found, stack = {a.id: a for a in program.atoms}, set(), list(program.outputs[0][1].atoms)
    while stack:
        key = stack.pop()
        if key not in found:
            found.add(key)
            stack += [i for expr in atoms[key].atom.inputs for i in expr.atoms]
    return [atoms[key] for key in sorted(found)]


def _name(atom: Expr) -> str:
    """Return the operation of an atom, e.g. ``relu``."""
    parts = atom.atom.op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _place(atom: Expr) -> str:
    """Return the module or node that computes an atom."""
    return "the input" if isinstance(atom.atom, Input) else atom.atom.owner or atom.atom.name


def _described(atom: Expr) -> str:
    """Return the operation of an atom and its module, if it is in one."""
    place = _place(atom)
    return f"{_name(atom)} in {place}" if isinstance(atom.atom, Input) or atom.atom.owner else f"the {place} layer"


def _check(atom: Expr) -> None:
    """Raise unless an atom is a positively homogeneous activation."""
    if not isinstance(atom.atom, Pointwise) or _name(atom) not in _HOMOGENEOUS:
        raise RefusedError(f"{_described(atom)} is not a ReLU: the bound is proved only for chains of ReLU layers")
    sector = atom.atom.sector
    if sector is None or max(map(abs, sector)) > 1 + 1e-9:
        raise RefusedError(f"{_described(atom)} has a slope above one")


def _terms(expr: Expr) -> Iterator[Expr]:
    """Yield the summands of an expression that depend on one atom each."""
    if len(expr.atoms) <= 1:
        if expr.atoms:
            yield expr
    elif expr.op is not None and expr.op.kind == "sum":
        for item in expr.inputs:
            yield from _terms(item)
    else:
        raise RefusedError(f"branches meet inside a linear operation ({expr.op.kind if expr.op else 'atom'})")


def _layer(
    expr: Expr, atoms: dict[int, Expr], norms: SegmentNorms, bias: Tensor | None, more: int, fan_in: int
) -> ChainLayer:
    """Return the norms of a block matrix: maps from each atom side by side, a bias, rows that carry others along."""
    roots: dict[int, Tensor] = {}
    spectral: dict[int, float] = {}
    owner = ""
    for term in _terms(expr):
        (key,) = term.atoms
        source = atoms[key]
        root = row_squares(source, term).sqrt()
        roots[key] = roots[key] + root if key in roots else root
        spectral[key] = spectral.get(key, 0.0) + math.exp(norms.norm(source, term).log_upper)
        owner = owner or next((e.op.owner for e in between(source, term) if e.op is not None and e.op.owner), "")
    squares = sum((r.square() for r in roots.values()), torch.zeros(expr.numel, dtype=torch.float64))
    square = math.fsum(v * v for v in spectral.values())
    if bias is not None:
        squares = squares + bias.square()
        square += float(bias.square().sum())
    rows = squares.sqrt()
    if not square + more > 0:
        raise RefusedError(f"a layer is zero ({owner or 'the last one'}): the scores do not depend on the input")
    slack = 1e-9  # far above the rounding of these sums
    return ChainLayer(
        0.5 * math.log(square + (more > 0)) + slack,
        0.5 * math.log(float(squares.sum()) + more) + slack,
        math.log(float(rows.sum()) + more) + slack,
        math.log(max(float(rows.max()), float(more > 0))) + slack,
        expr.numel + more,
        fan_in,
        owner,
    )


def row_squares(source: Expr, target: Expr) -> Tensor:
    """Return the squared Euclidean norm of each row of the linear map between two expressions, or an upper bound.

    Where at most one operation mixes entries, and no entry is copied before, the entries of the product are products of
    entries, so the map with squared entries is applied to ones. Small maps of other kinds are written out. In a large
    one an entry copied ``m`` times before it is mixed has the coefficient ``w_1 + ... + w_m``, whose square is at most
    ``m (w_1^2 + ... + w_m^2)``.
    """
    if source.id == target.id:
        return torch.ones(source.numel, dtype=torch.float64)
    path = between(source, target)
    mixing = [k for k, e in enumerate(path) if e.op is not None and e.op.kind in ("convolution", "matrix")]
    simple = len(mixing) <= 1 and all(_is_simple(e) for e in path)
    copies = math.prod(_copies(e) for e in path[: mixing[0]]) if simple and mixing else 1
    if simple and (copies == 1 or target.numel > _ROWS):
        value = torch.ones(source.shape, dtype=torch.float64)
        for expr in path:
            value = _squared(expr, value)
        return copies * value.flatten()
    if target.numel > _ROWS:
        raise RefusedError("a layer of several linear maps in a row is too large to be written out")
    x = torch.zeros(source.shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        y = evaluate(source, target)(x).flatten()
    pieces = torch.eye(y.numel(), dtype=torch.float64).split(max(1, 2**24 // max(1, source.numel)))
    return torch.cat([pulled(y, [x], piece)[0].square().sum(1) for piece in pieces])


def _copies(expr: Expr) -> int:
    """Return how often a simple operation that mixes nothing copies an entry at most."""
    op = expr.op
    if op is None or op.kind != "nonnegative":
        return 1
    x = torch.zeros(expr.inputs[0].shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        y = op.apply(x).flatten()
    return max(1, round(float(pulled(y, [x], torch.ones(1, y.numel(), dtype=torch.float64))[0].max())))


def _is_simple(expr: Expr) -> bool:
    """Return whether an operation has one operand and either copies entries, scales them, or is a layer."""
    op = expr.op
    if op is None or len(expr.inputs) != 1:
        return False
    known = op.kind in ("isometry", "embedding", "diagonal", "convolution")
    return known or bool(op.data.get("coordinate")) or (op.kind == "matrix" and op.data.get("axis") == -1)


def _squared(expr: Expr, value: Tensor) -> Tensor:
    """Apply an operation with squared entries."""
    op = expr.op
    assert op is not None
    if op.kind == "convolution":
        return apply_convolution({**op.data, "weight": op.data["weight"].double().square()})(value)
    if op.kind == "matrix":
        weight = op.data["weight"].double().square()
        return torch.matmul(value.unsqueeze(-2), weight.mT).squeeze(-2)
    if op.kind == "diagonal":
        return op.apply(op.apply(value))
    return op.apply(value)
