"""The benchmark of bugs: its cases are complete, and some of them run."""

from __future__ import annotations

import re

import pytest
from benchmarks.doctor.__main__ import examine, load, table

from normscope.doctor.catalogue import RULES

CASES = load()
#: A few cases that take little time, of different topics.
SOME = (
    "momentum-zero", "decayed-scales", "freeze-undone-by-train", "never-called", "layer-norm-over-width",
    "list-of-one-module", "mean-over-the-whole-batch", "recurrent-steps-as-channels", "padded-graphs",
)  # fmt: skip


def test_every_case_says_where_it_comes_from_and_what_is_expected() -> None:
    """Well over a hundred, with a thread, known rules and a layer; nearly every rule about bugs has one."""
    assert len(CASES) >= 135
    for case in CASES.values():
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", case.thread), case.name
        assert set(case.codes) <= set(RULES)
        assert case.places
        assert case.story.endswith(".")
    assert len({code for case in CASES.values() for code in case.codes}) >= 35


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", SOME)
def test_found_at_the_right_layer_and_not_on_the_twin(name: str) -> None:
    """As the whole benchmark should be."""
    outcome = examine(CASES[name])
    assert outcome.found
    assert outcome.alarms == ()
    assert "missed" not in table([outcome])
