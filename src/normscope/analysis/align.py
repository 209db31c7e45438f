"""Which layer of one network is which of another: by name where names agree, by kind and order where they do not."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A layer or normalizer as alignment sees it.

    Attributes:
        name: its module path.
        signature: what it is, e.g. its kind and shape; parts of other names are matched only if these are equal.
    """

    name: str
    signature: Hashable


def align(columns: Sequence[Sequence[Part]]) -> list[tuple[int | None, ...]]:
    """Return rows that hold, for each network, the place of the part in its list, or ``None`` if it has no such part.

    The first network is the measure: every other one is matched to the rows there are, and what it has beyond them
    gets rows of its own, after the row of the part before it. Parts match if their names are equal, and otherwise
    between matched neighbours if their signatures are, in order.

    Args:
        columns: the parts of each network, in order.

    Returns:
        The rows, in the order of the first network.

    >>> a = [Part("fc1", 3), Part("norm", "bn"), Part("fc2", 3)]
    >>> b = [Part("fc1", 3), Part("fc2", 3), Part("fc3", 3)]
    >>> align([a, b])
    [(0, 0), (1, None), (2, 1), (None, 2)]
    """
    if not columns:
        return []
    rows: list[list[int | None]] = [[i] for i in range(len(columns[0]))]
    faces: list[Part] = list(columns[0])
    for width, column in enumerate(columns[1:], start=1):
        matched = _match(faces, column)
        new_rows: list[list[int | None]] = []
        new_faces: list[Part] = []
        taken = {j: i for i, j in matched.items()}
        for i, row in enumerate(rows):
            new_rows.append([*row, matched.get(i)])
            new_faces.append(faces[i])
            # What follows the matched part and has no row yet comes right after it.
            j = matched.get(i)
            while j is not None and j + 1 < len(column) and j + 1 not in taken:
                j += 1
                taken[j] = i
                new_rows.append([*[None] * width, j])
                new_faces.append(column[j])
        ahead = [j for j in range(len(column)) if j not in taken]
        rows = [[*[None] * width, j] for j in ahead] + new_rows
        faces = [column[j] for j in ahead] + new_faces
    return [tuple(row) for row in rows]


def _match(faces: Sequence[Part], column: Sequence[Part]) -> dict[int, int]:
    """Return the place in the column of each face that has one there; order is kept."""
    names = difflib.SequenceMatcher(None, [f.name for f in faces], [p.name for p in column], autojunk=False)
    blocks = names.get_matching_blocks()
    found = {b.a + k: b.b + k for b in blocks for k in range(b.size)}
    before_a = before_b = 0
    for block in blocks:  # the last one is empty and stands at the end
        left, right = range(before_a, block.a), range(before_b, block.b)
        kinds = difflib.SequenceMatcher(
            None, [faces[i].signature for i in left], [column[j].signature for j in right], autojunk=False
        )
        for same in kinds.get_matching_blocks():
            found |= {left[same.a + k]: right[same.b + k] for k in range(same.size)}
        before_a, before_b = block.a + block.size, block.b + block.size
    return found
