r"""Regions small enough for dense matrices: every linear map between atoms as one matrix, with its rounding.

A map of several operations is formed by applying it to unit vectors. An operation A that makes k roundings per entry
errs by at most :math:`\gamma_k |A| |X|`, entry by entry, so a path of operations by at most
:math:`\gamma_K |A_p| \cdots |A_1|` with K roundings on the way: the same path with all coefficients taken in magnitude.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from normscope.linalg.matrix_rounding import gamma
from normscope.lipschitz.assembly_error import absolute
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError
from normscope.lipschitz.chains.region import Region
from normscope.operators.convolution import apply_convolution
from normscope.operators.expression import Expr, LinearOp, between
from normscope.operators.linear_map import LinearMap

#: Most entries of one unit, of all units together, and of one matrix.
LARGEST_UNIT, LARGEST_TOTAL, LARGEST_MATRIX = 1_536, 12_288, 2**24
#: Kinds whose coefficients are not negative, and those that leave every entry alone or drop it.
_NONNEGATIVE = ("isometry", "embedding", "nonnegative", "sum", "concat")
_SINGLE = ("isometry", "embedding", "diagonal")


def fits(region: Region) -> bool:
    """Return whether a region is small enough for dense matrices."""
    sizes = [unit.numel for unit in region.units]
    if not sizes or max(sizes) > LARGEST_UNIT or sum(sizes) > LARGEST_TOTAL:
        return False
    readers = [*((unit.atom.inputs[0], unit.numel) for unit in region.units), (region.target, region.target.numel)]
    atoms = {atom.id: atom.numel for atom in (*region.sources, *region.units)}
    return all(atoms[key] * rows <= LARGEST_MATRIX for expr, rows in readers for key in expr.atoms if key in atoms)


def dense_form(region: Region, weights: tuple[float, ...]) -> ChainForm | None:
    """Return a region as dense matrices, or ``None`` if the rounding of one is not known.

    Args:
        region: the part of the network.
        weights: the constant of each source.
    """
    numbers = region.number()
    atoms = {atom.id: atom for atom in (*region.sources, *region.units)}
    units = []
    for atom in region.units:
        inputs = _blocks(atom.atom.inputs[0], atoms, numbers)
        if inputs is None or atom.atom.inputs[0].numel != atom.numel:
            return None
        units.append(ActivationUnit(inputs, *atom.atom.sector))
    target = _blocks(region.target, atoms, numbers)
    return None if target is None else ChainForm(tuple(s.numel for s in region.sources), tuple(units), target, weights)


def _blocks(expr: Expr, atoms: Mapping[int, Expr], numbers: Mapping[int, int]) -> dict[int, MatrixWithError] | None:
    """Return the matrices of a tensor over the atoms it depends on."""
    found = {}
    for key in sorted(expr.atoms):
        if key in atoms:
            block = linear_block(atoms[key], expr)
            if block is None:
                return None
            found[numbers[key]] = block
    return found


def linear_block(atom: Expr, expr: Expr) -> MatrixWithError | None:
    """Return the matrix of the linear map from one atom, all others zero, and a bound of its error."""
    order = [e for e in between(atom, expr) if atom.id in e.atoms and e.id != atom.id]
    if not order:
        return MatrixWithError(torch.eye(expr.numel, dtype=torch.float64).unsqueeze(0))
    value = _applied(order, atom, expr, lambda op, e: op.apply).matrix()
    if not bool(value.isfinite().all()):
        return None
    mixing = [e for e in order if _mixes(e)]
    roundings = sum(_roundings(e, alone=len(mixing) <= 1) for e in order)
    if not roundings:
        return MatrixWithError(value.unsqueeze(0))
    if len(mixing) <= 1:
        size = value.abs()
    else:
        magnitudes = {e.id: _in_magnitude(e) for e in order}
        if any(m is None for m in magnitudes.values()):
            return None
        size = _applied(order, atom, expr, lambda op, e: magnitudes[e.id] or op.apply).matrix()
    return MatrixWithError(value.unsqueeze(0), size * (1.01 * gamma(roundings)))


def _applied(
    order: list[Expr], atom: Expr, expr: Expr, choose: Callable[[LinearOp, Expr], Callable[..., Tensor]]
) -> LinearMap:
    """Return the map from an atom through operations, what does not depend on it left out."""

    def function(z: Tensor) -> Tensor:
        values = {atom.id: z}
        for e in order:
            if e.op is None:
                raise ValueError("a linear map holds operations only")
            operands = [values[i.id] if i.id in values else z.new_zeros(i.shape) for i in e.inputs]
            values[e.id] = choose(e.op, e)(*operands)
        return values[expr.id]

    return LinearMap.from_function(function, atom.shape, expr.shape, dtype=torch.float64)


def _roundings(e: Expr, *, alone: bool) -> int:
    """Return how often an operation rounds, for unit vectors; adding zeros rounds nothing."""
    if e.op is None:
        return 0
    if e.op.kind in ("sum", "concat"):
        return len(e.inputs)
    count = absolute(e.op, e)[1]
    # If only one operation mixes, it sees unit vectors, forward and backward: its sums have one nonzero term.
    return min(count, 2) if alone and e.op.kind in ("matrix", "convolution") else count


def _mixes(e: Expr) -> bool:
    """Return whether an operation adds entries, or copies them so that others may."""
    if e.op is None or e.op.kind in _SINGLE:
        return False
    return not (e.op.kind == "contraction" and e.op.data.get("coordinate"))


def _in_magnitude(e: Expr) -> Callable[..., Tensor] | None:
    """Return an operation with all its coefficients in magnitude, or ``None`` where they are not known."""
    op = e.op
    if op is None:
        return None
    if op.kind in _NONNEGATIVE or op.data.get("coordinate"):
        return op.apply
    if op.kind == "diagonal":
        scale = op.data["scale"].abs()
        return lambda z: z * scale.to(z)
    if op.kind == "matrix":
        weight, axis = op.data["weight"].abs(), op.data["axis"]
        if weight.ndim == 2 and axis == -1:
            return lambda z: torch.matmul(z, weight.to(z).mT)
        if axis == -2:
            return lambda z: torch.matmul(weight.to(z), z)
    if op.kind == "convolution":
        return apply_convolution({**op.data, "weight": op.data["weight"].abs()})
    source = e.inputs[0]
    if len(e.inputs) != 1 or math.prod((source.numel, e.numel)) > LARGEST_MATRIX:
        return None
    matrix = LinearMap.from_function(op.apply, source.shape, e.shape, dtype=torch.float64).matrix().abs()
    return lambda z: (matrix.to(z) @ z.reshape(-1)).reshape(e.shape)
