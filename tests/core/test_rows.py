"""Rows by position and by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from normscope.core.rows import Rows


@dataclass(frozen=True)
class _Row:
    name: str
    value: int


ROWS = Rows((_Row("stem.conv1", 1), _Row("fc", 2)))


def test_a_row_has_a_position_and_a_name() -> None:
    assert ROWS["fc"] is ROWS[1] is ROWS[-1]
    assert ROWS[:1] == (ROWS["stem.conv1"],)
    assert [row.value for row in ROWS] == [1, 2]


def test_a_wrong_name_suggests_the_right_one() -> None:
    with pytest.raises(KeyError, match=r"No row named 'stem.conv2'. Did you mean stem.conv1?"):
        ROWS["stem.conv2"]
    with pytest.raises(KeyError, match="No row named 'zzz'"):
        ROWS["zzz"]
