r"""Proof of a chain bound: a matrix is positive definite, by a Cholesky factorisation with all rounding bounded.

For any multipliers :math:`\lambda \ge 0`, however found, and any numbers :math:`c_i`,

.. math:: M = \sum_i c_i^2 |x_i|^2 - |T h|^2 - \sum_k 2 (h_k - a z_k)^T \Lambda_k (b z_k - h_k) \succeq 0
          \quad\Longrightarrow\quad |T h|^2 \le \sum_i c_i^2 |x_i|^2 .
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_factor, cholesky_margin
from normscope.linalg.matrix_rounding import gamma, root_above
from normscope.lipschitz.chains.chain_form import ChainForm, MatrixWithError
from normscope.lipschitz.chains.elimination import BlockMatrix

#: Relative amounts by which the squares are raised until the factorisation succeeds.
RAISES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@statement("normscope", "Proposition CHAIN-1", holds="slopes between a and b; float64 with every rounding bounded")
def prove(form: ChainForm, multipliers: list[Tensor], constants: list[float]) -> list[float] | None:
    r"""Return proved constants :math:`c_i` with :math:`|T h|^2 \le \sum_i c_i^2 |x_i|^2`, or ``None``.

    Args:
        form: the part of the network.
        multipliers: of every unit, not negative.
        constants: what is to be proved; they are raised a little until the proof succeeds.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), torch.tensor([[1.0, -1.0]])])
    >>> (proved,) = prove(net, [torch.full((2,), 2.0).double()], [math.sqrt(2.0)])
    >>> 0.0 <= proved - math.sqrt(2.0) < 1e-7
    True
    >>> prove(net, [torch.full((2,), 2.0).double()], [1.3]) is None
    True
    """
    if any(bool((m < 0).any()) or not bool(m.isfinite().all()) for m in multipliers):
        return None
    assembled = ProofMatrix.of(form, [m.double() for m in multipliers])
    for raised in RAISES:
        squares = [c * c * (1.0 + raised) for c in constants]
        if all(math.isfinite(s) and s > 0.0 for s in squares) and assembled.is_definite(squares):
            return [root_above(s) for s in squares]
    return None


@dataclass(frozen=True, eq=False)
class ProofMatrix:
    """The matrix M without its squares, block by block."""

    form: ChainForm  #: the part of the network
    blocks: BlockMatrix  #: the blocks on and below the diagonal
    errors: BlockMatrix  #: a bound of the error of every entry, the same for all frequencies

    @classmethod
    def of(cls, form: ChainForm, multipliers: list[Tensor]) -> ProofMatrix:
        """Assemble the matrix and the bound of its error."""
        blocks: BlockMatrix = {}
        errors: BlockMatrix = {}
        _add_products(blocks, errors, form.target, None, -1.0)
        for k, (unit, factor) in enumerate(zip(form.units, multipliers, strict=True)):
            number = k + form.first
            both, product = unit.low + unit.high, unit.low * unit.high
            own = torch.diag(2 * factor).to(form.dtype).expand(form.blocks, -1, -1)
            _add(blocks, errors, (number, number), own, torch.diag(2 * factor) * gamma(8))
            for j, block in unit.inputs.items():
                value = -both * factor[:, None] * block.value
                size = abs(both) * factor[:, None] * (_magnitude(block) * gamma(16) + _error(block))
                _add(blocks, errors, (number, j), value, size)
            if product:
                _add_products(blocks, errors, unit.inputs, factor, 2 * product)
        return cls(form, blocks, errors)

    def is_definite(self, squares: list[float]) -> bool:
        """Return whether the matrix with these squares is proved to be positive definite."""
        form = self.form
        diagonals = self._diagonals(squares)
        if any(not bool((d > 0).all()) or not bool(d.isfinite().all()) for d in diagonals):
            return False
        scales = [torch.ldexp(torch.ones(d.shape[1]).double(), -(d.mean(0).log2() / 2).round()) for d in diagonals]
        trace = sum((d * s.square()).sum(1) for d, s in zip(diagonals, scales, strict=True)).max()  # type: ignore[union-attr]
        rows = [torch.zeros(n, dtype=torch.float64) for n in form.sizes]
        for (i, j), error in self.errors.items():
            scaled = scales[i][:, None] * error * scales[j]
            rows[i] += scaled.sum(1)
            if i != j:
                rows[j] += scaled.sum(0)
        wrong = max(float(row.max()) for row in rows) * (1.0 + 1e-9)
        margin = cholesky_margin(sum(form.sizes) + 4, float(trace) * 1.001, complex_arithmetic=form.dtype.is_complex)
        shift = 1.01 * (wrong + margin + gamma(8) * float(trace))
        if not math.isfinite(shift):
            return False
        return self._factorises(squares, scales, shift)

    def _diagonals(self, squares: list[float]) -> list[Tensor]:
        """Return the diagonals, one row per frequency."""
        found = []
        for i, size in enumerate(self.form.sizes):
            block = self.blocks.get((i, i))
            plain = torch.zeros(self.form.blocks, size, dtype=torch.float64)
            found.append(plain if block is None else block.diagonal(dim1=1, dim2=2).real)
        return [d + squares[i] if i < len(squares) else d for i, d in enumerate(found)]

    def _factorises(self, squares: list[float], scales: list[Tensor], shift: float) -> bool:
        """Factorise the scaled and shifted matrix, block by block; tell whether that succeeds."""
        form = self.form
        rest = {(i, j): scales[i][:, None] * block * scales[j] for (i, j), block in self.blocks.items()}
        free = [i for i in range(form.first) if (i, i) not in rest]
        order = [*free, *(i for i in range(len(form.sizes) - 1, -1, -1) if i not in free)]
        for k in order:
            rows = {
                j if i == k else i: block if i == k else block.mH
                for (i, j), block in rest.items()
                if (i == k) != (j == k)
            }
            own = rest.get((k, k))
            added = scales[k].square() * squares[k] - shift if k < form.first else torch.full_like(scales[k], -shift)
            if own is None:
                if not bool((added > 0).all()):
                    return False
                solved = {j: row / added.sqrt()[:, None] for j, row in rows.items()}
            else:
                own = own.clone()
                own.diagonal(dim1=1, dim2=2).add_(added)
                factor = cholesky_factor(own)
                if factor is None:
                    return False
                solved = {j: torch.linalg.solve_triangular(factor, row, upper=False) for j, row in rows.items()}
            rest = {key: block for key, block in rest.items() if k not in key}
            for i, a in solved.items():
                for j, b in solved.items():
                    if i >= j:
                        rest[i, j] = rest[i, j] - a.mH @ b if (i, j) in rest else -(a.mH @ b)
        return True


def _magnitude(block: MatrixWithError) -> Tensor:
    return block.value.abs().amax(0).double()


def _error(block: MatrixWithError) -> Tensor:
    return torch.zeros(block.value.shape[1:], dtype=torch.float64) if block.error is None else block.error


def _add(blocks: BlockMatrix, errors: BlockMatrix, key: tuple[int, int], value: Tensor, error: Tensor) -> None:
    """Add a block and its error; one more rounding of the sum is covered by the errors of both."""
    if key in blocks:
        value, error = blocks[key] + value, errors[key] + error + gamma(4) * value.abs().amax(0)
    blocks[key], errors[key] = value, error


def _add_products(
    blocks: BlockMatrix, errors: BlockMatrix, maps: Mapping[int, MatrixWithError], factor: Tensor | None, sign: float
) -> None:
    r"""Add :math:`s A_i^H \operatorname{diag}(f) A_j` for all pairs, with the errors of factors and product."""
    for i, a in maps.items():
        weighted = a.value if factor is None else factor[:, None] * a.value
        size, error = _magnitude(a), _error(a)
        if factor is not None:
            size, error = factor[:, None] * size, factor[:, None] * error
        for j, b in maps.items():
            if i < j:
                continue
            roundings = gamma(a.value.shape[1] + 8, complex_arithmetic=a.value.is_complex())
            whole = _magnitude(b)
            wrong = roundings * (size.mT @ whole) + error.mT @ (whole + _error(b)) + size.mT @ _error(b)
            _add(blocks, errors, (i, j), sign * (weighted.mH @ b.value), abs(sign) * wrong * (1.0 + 1e-9))
