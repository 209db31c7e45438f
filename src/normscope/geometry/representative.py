r"""A canonical point on each orbit of shifts and scales: free constants are removed, free factors balanced.

Constants come first: free biases become zero, ``1^T diag(g) W = 0`` for row shifts removed by a mean after the gains g,
``W gamma = 0`` for column shifts after a LayerNorm, and ``beta/gamma`` is constant where columns compensate it.
Scales, permutations, rotations and matrices of heads keep these conditions.
Then factors are chosen by least squares in logarithms: of the entries of parameters that no matrix moves, and of the
norms of the others, which a rotation leaves as they are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.geometry.candidates.columns import ColumnShifts, LayerNormShifts
from normscope.geometry.candidates.matrices import MatrixFamily, RotaryTurn
from normscope.geometry.candidates.rows import RowShifts, WeightVectorShifts
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.candidates.shifts import BiasShifts
from normscope.geometry.flow import Point
from normscope.geometry.groups import SymmetryGroup

Shifts = RowShifts | WeightVectorShifts | LayerNormShifts | BiasShifts
Move = tuple[Shifts, Tensor]
#: Most sweeps over all constants: removing one may change another.
SWEEPS = 20
#: Changes below this share of a parameter count as rounding.
SMALL = 1e-13


def without_constants(groups: Sequence[SymmetryGroup], point: Point) -> tuple[dict[str, Tensor], list[Move]]:
    """Return the parameters with everything removed that shifts, rows and columns add freely, and the moves.

    >>> from torch import nn
    >>> from normscope.geometry.discover import symmetry
    >>> found = symmetry(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()), torch.randn(16, 3))
    >>> without_constants(found.groups, found.function.point)[0]["0.bias"].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    families = [_completed(g.family, groups) for g in groups if isinstance(g.family, Shifts)]
    found, moves = dict(point), list[Move]()
    sizes = {name: float(value.abs().max()) for name, value in point.items() if value.numel()}
    for _ in range(SWEEPS):
        before = len(moves)
        for family in families:
            coefficients = origin(family, found)
            if float(coefficients.abs().max()) > SMALL * sizes[family.source]:
                found |= family.move(found, coefficients, 1.0)
                moves.append((family, coefficients))
        if len(moves) == before:
            break
    return found, moves


def _completed(family: Shifts, groups: Sequence[SymmetryGroup]) -> Shifts:
    """Return a family with the coefficients that were left out because rows of the same parameter have them."""
    rows = [g.family for g in groups if isinstance(g.family, RowShifts)]
    if isinstance(family, BiasShifts):
        count = next((r.groups for r in rows if r.source == family.source), 1)
        if isinstance(family, ColumnShifts):
            outputs, _, places = family.index.shape
            if family.basis.ndim == 1 and len(family.basis) == (outputs - count) * places:
                return replace(family, basis=torch.arange(outputs * places))
        elif family.basis.ndim == 1:
            whole = family.function.tensors[family.source].numel()
            return replace(family, basis=torch.arange(whole)) if len(family.basis) == whole - count else family
        elif len(family.basis) == family.basis.shape[1] - count and bool((family.basis.sum(1) == 1).all()):
            return replace(family, basis=torch.eye(family.basis.shape[1], dtype=torch.float64))
    return family


def origin(family: Shifts, point: Point) -> Tensor:
    """Return the coefficients that remove what a family of shifts, rows or columns can add."""
    if isinstance(family, RowShifts):
        rows = family.weight(point).movedim(family.axis, 0).unflatten(0, (family.groups, -1))
        factors = (1.0 / family.pattern(point)).reshape(*rows.shape[:2], *(1,) * (rows.ndim - 2))
        return -(rows * factors).mean(1).reshape(-1)
    if isinstance(family, WeightVectorShifts):
        return -point[family.source].reshape(family.shape[0], -1).mean(1)[family.basis]
    if isinstance(family, LayerNormShifts):
        factors = family.path.factors(point)[family.basis]
        beta = point[family.source].reshape(-1)[family.basis]
        return (beta / factors).mean() * factors - beta
    value = point[family.source]
    if isinstance(family, ColumnShifts):
        assert family.path is not None
        factors = family.path.factors(point)
        line = -torch.einsum("oip,i->op", value.reshape(-1)[family.index], factors).reshape(-1) / len(factors)
    elif family.basis.ndim == 1:
        line = -value.reshape(-1)
    else:
        line = -value.reshape(-1, family.basis.shape[1]).mean(0)
        line = line if family.path is None else line * family.path.factors(point)
    return line[family.basis] if family.basis.ndim == 1 else torch.linalg.lstsq(family.basis.mT, line[:, None])[0][:, 0]


def balanced(scales: ChannelScales, point: Point, groups: Sequence[SymmetryGroup] = ()) -> Tensor:
    r"""Return the coefficients that bring parameters to their representative: the least sum of squared logarithms.

    ``min_c sum (log |theta| + E c)^2`` over the entries that are not zero, of parameters that no matrix moves. Factors
    that move none of them are chosen by the norms of what rotations move. An orbit has one such point, wherever on it
    one starts.
    """
    turned = {n for g in groups if isinstance(g.family, MatrixFamily | RotaryTurn) for n in g.parameters}
    mixed = {
        n for g in groups if isinstance(g.family, MatrixFamily) and g.family.algebra == "full" for n in g.parameters
    }
    plain = [name for name in scales.parameters if name not in turned]
    matrix, logs = _system(scales, point, plain)
    found = _solved(matrix, logs)
    rest = np.asarray(abs(matrix).sum(0)).reshape(-1) == 0
    normed = [name for name in scales.parameters if name in turned - mixed]
    if not rest.any() or not normed:
        return torch.from_numpy(found)
    here = {**point, **scales.move(point, torch.from_numpy(found), 1.0)}
    matrix, logs = _norms(scales, here, normed, rest)
    return torch.from_numpy(found + _solved(matrix, logs) * rest)


def _solved(matrix: Any, logs: np.ndarray) -> np.ndarray:
    """Return the least-squares solution of smallest norm."""
    from scipy.sparse.linalg import lsqr

    return lsqr(matrix, -logs, atol=1e-15, btol=1e-15, iter_lim=20 * matrix.shape[1] + 200)[0]


def _system(scales: ChannelScales, point: Point, names: Sequence[str]) -> tuple[Any, np.ndarray]:
    """Return the matrix from coefficients to changes of the logarithms of the entries, and these logarithms."""
    from scipy.sparse import coo_matrix, csr_matrix, diags

    offsets, count = dict[str, int](), 0
    for name in names:
        offsets[name] = count
        count += point[name].numel()
    places, labels, signs = [], [], []
    for name, index, found, sign in scales.labels.terms(offsets):
        kept = found.reshape(-1) > 0
        places.append(index.reshape(-1)[kept] + offsets[name])
        labels.append(found.reshape(-1)[kept])
        signs.append(torch.full(labels[-1].shape, sign, dtype=torch.float64))
    if not places:
        return csr_matrix((1, scales.size)), np.zeros(1)
    at, of, signed = (torch.cat(parts).numpy() for parts in (places, labels, signs))
    shape = (count, len(scales.classes))
    chosen = coo_matrix((signed, (at, scales.classes[of])), shape=shape).tocsr()
    entries = [(label, i, value) for i, one in enumerate(scales.basis) for label, value in one.items()]
    at, columns, values = (np.array(column) for column in zip(*entries, strict=True))
    basis = coo_matrix((values, (at, columns)), shape=(shape[1], scales.size)).tocsr()
    flat = torch.cat([point[name].reshape(-1) + scales.offset(name) for name in names])
    least = 1e-9 * float(flat.abs().median())
    used = (flat.abs() > least).double().numpy()
    logs = flat.abs().clamp_min(1e-300).log().numpy() * used
    return diags(used) @ (chosen @ basis), logs


def _norms(scales: ChannelScales, point: Point, names: Sequence[str], free: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return the same for the norms of those blocks of entries that the free coefficients scale alike."""
    from scipy.sparse import coo_matrix, diags

    matrix, _ = _system(scales, point, names)
    drawn = np.random.default_rng(0).normal(size=scales.size) * free
    exponents = matrix @ drawn
    flat = torch.cat([point[name].reshape(-1) + scales.offset(name) for name in names]).numpy()
    owner = np.concatenate([np.full(point[name].numel(), i) for i, name in enumerate(names)])
    _, block = np.unique(np.stack([owner, exponents.round(9)]), axis=1, return_inverse=True)
    block = block.reshape(-1)
    sums = np.bincount(block, flat**2)
    used = sums > 0
    counts = np.bincount(block)
    mean = coo_matrix((1.0 / counts[block], (block, np.arange(len(block)))), shape=(len(counts), len(block))).tocsr()
    logs = np.where(used, 0.5 * np.log(np.where(used, sums, 1.0)), 0.0)
    return diags(used.astype(float)) @ mean @ matrix @ diags(free.astype(float)), logs
