r"""How many directions of matrix groups are not counted yet: matrices that move nothing, or what rows and columns move.

A matrix ``A`` on channels that ``W`` writes and ``V`` reads moves them by ``A W`` and ``-V A``. Where ``W`` has no more
columns than there are channels and ``V`` no more rows, some ``A`` move nothing, or only what columns of ``W`` behind a
LayerNorm and the rows of ``V`` before one may have added anyway: ``p q`` of them, with ``p`` and ``q`` the number of
channels minus that of columns and rows, plus one for each vector that may be added.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.geometry.candidates.columns import Columns
from normscope.geometry.candidates.matrices import Mixing
from normscope.geometry.candidates.rows import Rows
from normscope.geometry.candidates.shifts import Shift
from normscope.geometry.groups import Family, Group
from normscope.geometry.labels import Entry, Product


def independent(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with dimensions that add up to that of the orbits, without those of which nothing is left."""
    families = [group.family for group in groups if group.family is not None]
    found = []
    for group in groups:
        counted = _counted(group.family, families) if isinstance(group.family, Mixing) else 0
        words = f"{group.statement}, less {counted} that move nothing else" if counted else group.statement
        if counted < group.dimension:
            found.append(replace(group, dimension=group.dimension - counted, statement=words))
    return found


def _counted(family: Mixing, others: Sequence[Family]) -> int:
    """Return how many directions of a matrix group move nothing, or only what other families move."""
    d, written, read = family.width, [0, 0], [0, 0]
    for frame, sites in zip(family.frames, family.sites, strict=True):
        one, two = (read, written) if frame.dual else (written, read)
        for site, rows, columns in sites:
            if rows is not None and isinstance(site, Entry):
                one[0] += site.labels.numel() // site.labels.shape[-1] - _free(others, site.parameter, rows)
            elif rows is not None and not isinstance(site, Entry):
                one[0] += site.index[0].numel()
                one[1] += _columns(others, site.parameter, rows, len(site.index))
            if columns and not isinstance(site, Entry):
                two[0] += len(columns) * site.index[:, 0].numel()
                mine = [f.groups for f in others if isinstance(f, Rows) and f.parameter == site.parameter]
                two[1] += len(columns) * sum(mine)
        for frozen in family.entering(frame):
            one[0] += 1 - _free(others, frozen.beta, torch.arange(d))
            writers = [site for site, rows, _ in family.before(frozen, frame).sites[0] if rows is not None]
            one[0] += sum(site.index[0].numel() for site in writers if isinstance(site, Product))
    if family.algebra == "full":
        left, right = (max(d - count, 0) + (extra if count <= d else 0) for count, extra in (written, read))
        return left * right
    left = max((d if family.algebra == "skew" else d - 1) - written[0] - read[0], 0)
    return left * (left - 1) // 2


def _free(others: Sequence[Family], bias: str, entries: Tensor) -> int:
    """Return whether anything may be added to some entries of a bias."""
    shifts = [f.basis for f in others if isinstance(f, Shift) and f.source == bias and f.basis.ndim == 1]
    return int(any(bool(torch.isin(entries, basis).all()) for basis in shifts))


def _columns(others: Sequence[Family], weight: str, rows: Tensor, outputs: int) -> int:
    """Return how many vectors may be added to the columns of some rows of a weight."""
    for family in others:
        if isinstance(family, Columns) and family.source == weight:
            if family.basis.ndim == 2:
                return family.size // outputs
            places = family.index.shape[2]
            return int(torch.isin(family.basis // places, rows).sum()) // len(rows)
    return 0
