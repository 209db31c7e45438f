r"""Count independent directions: matrices that move nothing, or only what row and column shifts move, count zero.

A matrix ``A`` on channels that ``W`` writes and ``V`` reads moves them by ``A W`` and ``-V A``. Where ``W`` has no more
columns than there are channels and ``V`` no more rows, some ``A`` move nothing, or only what columns of ``W`` behind a
LayerNorm and the rows of ``V`` before one may have added anyway: ``p q`` of them, with ``p`` and ``q`` the number of
channels minus that of columns and rows, plus one for each vector that may be added.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.geometry.candidates.columns import ColumnShifts
from normscope.geometry.candidates.matrices import MatrixFamily
from normscope.geometry.candidates.rows import RowShifts
from normscope.geometry.candidates.shifts import BiasShifts
from normscope.geometry.channels.labels import ChannelWeight, EntrywiseParameter
from normscope.geometry.groups import SymmetryFamily, SymmetryGroup


def independent(groups: Sequence[SymmetryGroup]) -> list[SymmetryGroup]:
    """Return the groups with dimensions that add up to that of the orbits; groups of dimension zero are dropped."""
    families = [group.family for group in groups if group.family is not None]
    found = []
    for group in groups:
        counted = _counted(group.family, families) if isinstance(group.family, MatrixFamily) else 0
        words = f"{group.statement}, less {counted} that move nothing else" if counted else group.statement
        if counted < group.dimension:
            found.append(replace(group, dimension=group.dimension - counted, statement=words))
    return found


def _counted(family: MatrixFamily, others: Sequence[SymmetryFamily]) -> int:
    """Return the number of directions of a matrix group that move nothing, or only what other families move."""
    d, written, read = family.width, [0, 0], [0, 0]
    for frame, sites in zip(family.frames, family.sites, strict=True):
        one, two = (read, written) if frame.dual else (written, read)
        for site, rows, columns in sites:
            if rows is not None and isinstance(site, EntrywiseParameter):
                one[0] += site.labels.numel() // site.labels.shape[-1] - _free(others, site.parameter, rows)
            elif rows is not None and not isinstance(site, EntrywiseParameter):
                one[0] += site.index[0].numel()
                one[1] += _columns(others, site.parameter, rows, len(site.index))
            if columns and not isinstance(site, EntrywiseParameter):
                two[0] += len(columns) * site.index[:, 0].numel()
                mine = [f.groups for f in others if isinstance(f, RowShifts) and f.source == site.parameter]
                two[1] += len(columns) * sum(mine)
        for frozen in family.entering(frame):
            one[0] += 1 - _free(others, frozen.beta, torch.arange(d))
            writers = [site for site, rows, _ in family.before(frozen, frame).sites[0] if rows is not None]
            one[0] += sum(site.index[0].numel() for site in writers if isinstance(site, ChannelWeight))
    if family.algebra == "full":
        left, right = (max(d - count, 0) + (extra if count <= d else 0) for count, extra in (written, read))
        return left * right
    left = max((d if family.algebra == "skew" else d - 1) - written[0] - read[0], 0)
    return left * (left - 1) // 2


def _free(others: Sequence[SymmetryFamily], bias: str, entries: Tensor) -> int:
    """Return 1 if arbitrary values may be added to some entries of a bias, else 0."""
    shifts = [f.basis for f in others if isinstance(f, BiasShifts) and f.source == bias and f.basis.ndim == 1]
    return int(any(bool(torch.isin(entries, basis).all()) for basis in shifts))


def _columns(others: Sequence[SymmetryFamily], weight: str, rows: Tensor, outputs: int) -> int:
    """Return the number of vectors that may be added to the columns of some rows of a weight."""
    for family in others:
        if isinstance(family, ColumnShifts) and family.source == weight:
            if family.basis.ndim == 2:
                return family.size // outputs
            places = family.index.shape[2]
            return int(torch.isin(family.basis // places, rows).sum()) // len(rows)
    return 0
