"""Names are told apart by numbers, whatever names were there before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from normscope.core.names import numbered

#: Few names, some of which look like numbered ones.
NAMES = st.lists(st.sampled_from(["a", "a#1", "a#2", "a#1#1", "b", ""]), max_size=9)


@given(NAMES, st.booleans())
def test_no_name_comes_twice(names: list[str], plain_first: bool) -> None:
    """Each begins with what it was, and one that came once stays as it is."""
    found = numbered(names, plain_first=plain_first)
    assert len(set(found)) == len(names) == len(found)
    for old, new in zip(names, found, strict=True):
        assert new == old or new.startswith(f"{old}#")
        assert new == old or names.count(old) > 1


def test_numbers_are_turns() -> None:
    """In order from one, in the form that is asked for; braces in a name are part of it."""
    assert numbered(["x", "y", "x", "x"]) == ["x#1", "y", "x#2", "x#3"]
    assert numbered(["x", "x"], "{}-{}") == ["x-1", "x-2"]
    assert numbered(["{0}", "{0}"], "{} {}") == ["{0} 1", "{0} 2"]
    assert numbered(["x", "x", "x"], "{} ({})", plain_first=True) == ["x", "x (2)", "x (3)"]
    assert numbered([]) == []


def test_a_number_that_is_a_name_already_is_passed_over() -> None:
    """Also where the other name comes later."""
    assert numbered(["x", "x", "x#2"]) == ["x#1", "x#3", "x#2"]
    assert numbered(["x-1", "x", "x"], "{}-{}") == ["x-1", "x-2", "x-3"]
