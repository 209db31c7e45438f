r"""The constant of a form for given multipliers, and its gradient, by eliminating unit after unit.

With multipliers :math:`\Lambda \ge 0` the target is bounded by adding what is not negative:
:math:`|T h|^2 \le |T h|^2 + \sum_k 2 (h_k - a z_k)^T \Lambda_k (b z_k - h_k)`. The right side is a quadratic form
in all sources and units; maximising it over the last unit leaves one in the others,

.. math:: Q_{ij} \leftarrow Q_{ij} - 2 a b W_i^H \Lambda W_j + B_i^H (2 \Lambda - Q_{kk})^{-1} B_j,
          \quad B_j = Q_{kj} + (a + b) \Lambda W_j.

At the end one in the sources alone remains. Going forward again from its eigenvectors gives the maximising h and z, and
by the envelope theorem the gradient :math:`\partial / \partial \lambda_i = 2 (h_i - a z_i)(b z_i - h_i)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.linalg.cholesky import cholesky_factor
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm

#: The blocks of a matrix on and below its diagonal, by the numbers of row and column.
BlockMatrix = dict[tuple[int, int], Tensor]
#: Least multipliers relative to the largest eigenvalue of the form: more than a half, so that twice them exceed it.
ROOM = 0.505


@dataclass(frozen=True, eq=False)
class Eliminated:
    r"""What remains of a form, and how it came about."""

    form: ChainForm  #: the form
    sources: Tensor  #: the quadratic form in all sources, one matrix per block
    multipliers: list[Tensor]  #: of every unit
    factors: list[Tensor]  #: for every unit the Cholesky factor C of :math:`2 \Lambda - Q_{kk}`
    rows: list[dict[int, Tensor]]  #: for every unit :math:`C^{-1} B_j` by the number of what is read

    def units(self, balance: Tensor) -> Tensor:
        """Return for every entry of the sources the unit in which it is measured.

        Args:
            balance: logarithms of the constant allowed for each source, up to a common factor.
        """
        each = torch.cat([b.expand(n) for b, n in zip(balance, self.form.sources, strict=True)])
        return (-each.to(self.sources.real.dtype)).exp()

    def squares(self, balance: Tensor) -> Tensor:
        """Return the largest eigenvalue of every block, the sources measured in their units."""
        units = self.units(balance)
        return torch.linalg.eigvalsh(units[:, None] * self.sources * units)[:, -1].double()

    def gradient(self, vectors: Tensor, weights: Tensor) -> list[Tensor]:
        r"""Return the derivatives of :math:`\sum w |\cdot|^2` over unit vectors of the sources in the multipliers.

        Args:
            vectors: ``(blocks, sources, count)``.
            weights: ``(blocks, count)``.
        """
        values = dict(enumerate(vectors.split(list(self.form.sources), dim=1)))
        found = self._forward(0, slice(None), values)
        return [2 * torch.einsum("fnc,fc->n", found[place], weights) for place in range(len(self.form.units))]

    def behind(self, place: int, block: int, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the derivatives of one unit's form at a vector with respect to the multipliers of the units behind it.

        Args:
            place: of the unit.
            block: the block to use.
            values: the vector ``(entries, 1)``, by the number of the unit.
        """
        values = {number: value[None] for number, value in values.items()}
        found = self._forward(place + 1, slice(block, block + 1), values)
        return {j: 2 * slack[0, :, 0] for j, slack in found.items()}

    def _forward(self, first: int, blocks: slice, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return :math:`(h - a z)(b z - h)` of the maximising h, for the units from one on that read given values."""
        found = {}
        for place in range(first, len(self.form.units)):
            unit = self.form.units[place]
            rows = [(row, values[j]) for j, row in self.rows[place].items() if j in values]
            if not rows:
                continue
            read = sum(row[blocks] @ value for row, value in rows)
            h = torch.linalg.solve_triangular(self.factors[place][blocks].mH, read, upper=True)
            z = sum(block.value[blocks] @ values[j] for j, block in unit.inputs.items() if j in values)
            values[place + self.form.first] = h
            found[place] = ((h - unit.low * z) * (unit.high * z - h).conj()).real
        return found


def eliminate(form: ChainForm, multipliers: Sequence[Tensor] | Callable[[int, Tensor], Tensor]) -> Eliminated | None:
    """Return what remains of a form in its sources, or ``None`` if the multipliers are too small to bound it.

    Args:
        form: the part of the network.
        multipliers: of every unit, or what chooses those of a unit, given its place and its block of the form.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), 3 * torch.eye(2)])
    >>> found = eliminate(net, [torch.full((2,), 9.0).double()])
    >>> found.sources[0].tolist()  # the square of three, which is attained
    [[9.0, 0.0], [0.0, 9.0]]
    """
    blocks, real = target_blocks(form), form.dtype.to_real()
    steps: list[tuple[Tensor, Tensor, dict[int, Tensor]]] = []
    for place in range(len(form.units) - 1, -1, -1):
        number = place + form.first
        multiplier = multipliers(place, blocks[number, number]) if callable(multipliers) else multipliers[place]
        found = eliminate_unit(blocks, number, form.units[place], multiplier.to(real))
        if found is None:
            return None
        blocks = found[0]
        steps.append((multiplier, *found[1:]))
    given, factors, rows = (list(part) for part in zip(*steps[::-1], strict=True)) if steps else ([], [], [])
    return Eliminated(form, sources_matrix(form, blocks), given, factors, rows)


def eliminate_with_repair(form: ChainForm, multipliers: Sequence[Tensor]) -> Eliminated | None:
    """Return what remains of a form with multipliers raised only as far as it requires.

    Args:
        form: the part of the network, also at frequencies at which the multipliers were not searched.
        multipliers: of every unit.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), 3 * torch.eye(2)])
    >>> rest = eliminate_with_repair(net, [torch.ones(2).double()])
    >>> bool(2 * rest.multipliers[0][0] > 9.0), bool(rest.squares(torch.zeros(1)) >= 9.0)
    (True, True)
    """

    def raised(place: int, own: Tensor) -> Tensor:
        half = multipliers[place].rsqrt().to(form.dtype.to_real())
        top = float(torch.linalg.eigvalsh(half[:, None] * own * half)[:, -1].max())
        return multipliers[place] * max(1.0, ROOM * top)

    return eliminate(form, raised)


def target_blocks(form: ChainForm) -> BlockMatrix:
    """Return the quadratic form ``|T h|^2``, block by block, those on and below the diagonal."""
    items = form.target.items()
    return {(i, j): a.value.mH @ b.value for i, a in items for j, b in items if i >= j}


def eliminate_unit(
    blocks: BlockMatrix, number: int, unit: ActivationUnit, multiplier: Tensor
) -> tuple[BlockMatrix, Tensor, dict[int, Tensor]] | None:
    """Return a quadratic form maximised over one unit, the factor used and the rows it solved for."""
    own = -blocks[number, number]
    own.diagonal(dim1=1, dim2=2).add_(2 * multiplier)
    factor = cholesky_factor(own)
    if factor is None:
        return None
    rows: dict[int, Tensor] = {j: block for (i, j), block in blocks.items() if i == number and j != number}
    rest = {key: block for key, block in blocks.items() if number not in key}
    for j, block in unit.inputs.items():
        scaled = multiplier[:, None] * block.value
        part = (unit.low + unit.high) * scaled
        rows[j] = rows[j] + part if j in rows else part
        if unit.low * unit.high:
            for i, other in unit.inputs.items():
                if i >= j:
                    _add(rest, (i, j), -2 * unit.low * unit.high * (other.value.mH @ scaled))
    solved = {j: torch.linalg.solve_triangular(factor, row, upper=False) for j, row in rows.items()}
    for i, a in solved.items():
        for j, b in solved.items():
            if i >= j:
                _add(rest, (i, j), a.mH @ b)
    return rest, factor, solved


def _add(blocks: BlockMatrix, key: tuple[int, int], block: Tensor) -> None:
    """Add to a block, which may not be there yet."""
    blocks[key] = blocks[key] + block if key in blocks else block


def sources_matrix(form: ChainForm, blocks: BlockMatrix) -> Tensor:
    """Return a quadratic form in all sources as one matrix."""
    if form.first == 1:
        return blocks[0, 0]
    whole = form.target[next(iter(form.target))].value.new_zeros(form.blocks, sum(form.sources), sum(form.sources))
    ends = [0, *torch.tensor(form.sources).cumsum(0).tolist()]
    for (i, j), block in blocks.items():
        whole[:, ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
        whole[:, ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = block.mH
    return whole
