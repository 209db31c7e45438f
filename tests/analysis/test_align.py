"""Alignment: names first, then kind and order, and nothing is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.analysis.align import Part, align


def _parts(text: str) -> list[Part]:
    """Return parts written as ``name:signature``, apart by blanks."""
    return [Part(*word.split(":")) for word in text.split()]


def test_equal_names_meet_whatever_they_are() -> None:
    """A layer that was made wider is still that layer."""
    assert align([_parts("a:1 b:2"), _parts("a:9 b:2")]) == [(0, 0), (1, 1)]


def test_renamed_parts_meet_by_what_they_are_between_their_neighbours() -> None:
    """A wrapper in front of every name changes nothing."""
    assert align([_parts("x:1 y:2 z:1"), _parts("net.x:1 net.y:2 net.z:1")]) == [(0, 0), (1, 1), (2, 2)]
    assert align([_parts("x:1 y:2"), _parts("x:1 q:3")]) == [(0, 0), (None, 1), (1, None)]


def test_what_only_one_has_gets_a_row_where_it_stands() -> None:
    """Before the first common part, between, and after the last."""
    rows = align([_parts("a:1 b:2"), _parts("p:7 a:1 q:8 b:2 r:9")])
    assert rows == [(None, 0), (0, 1), (None, 2), (1, 3), (None, 4)]


def test_three_networks() -> None:
    """What the second has and the first has not can meet the third."""
    rows = align([_parts("a:1"), _parts("a:1 b:2"), _parts("b:2")])
    assert rows == [(0, 0, None), (None, 1, 0)]


def test_nothing_to_align() -> None:
    """No networks, or networks without parts."""
    assert align([]) == []
    assert align([[], []]) == []
    assert align([[], _parts("a:1")]) == [(None, 0)]


_COLUMNS = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz")), max_size=8, unique_by=lambda p: p[0]),
    min_size=1,
    max_size=4,
)


@given(_COLUMNS)
@settings(max_examples=200, deadline=None)
def test_every_part_is_in_exactly_one_row(
    columns: list[list[tuple[str, str]]],
) -> None:
    """Each part once; rows are as wide as there are networks; no row is empty."""
    parts = [[Part(*pair) for pair in column] for column in columns]
    rows = align(parts)
    for i, column in enumerate(parts):
        assert sorted(row[i] for row in rows if row[i] is not None) == list(range(len(column)))
    assert all(len(row) == len(parts) and any(place is not None for place in row) for row in rows)
    assert [row[0] for row in rows if row[0] is not None] == list(range(len(parts[0])))
