"""The bench: ours pass, the two false ones are broken, a seed gives one result, and a user's function is tried too."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.generalization.bench.problems import Draw, PartitionCells
from normscope.generalization.bench.run import KNOWN_BOUNDS, KNOWN_FALSE, try_bound


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", [n for n in KNOWN_BOUNDS if n not in KNOWN_FALSE])
def test_ours_pass(name: str) -> None:
    """30 draws here, 200 in the slow test."""
    found = try_bound(name, draws=30)
    assert not found.broken
    assert any(t.draws for t in found.trials)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KNOWN_BOUNDS))
def test_at_full_length(name: str) -> None:
    """200 draws of every problem: sound and unsound are told apart, at another seed too."""
    assert [try_bound(name, seed=s).broken for s in (0, 1)] == [name in KNOWN_FALSE] * 2


def test_no_modification_is_broken_by_the_memorizer() -> None:
    """In every draw; the nearest neighbour and others do not show it."""
    trials = {t.problem: t for t in try_bound("than-phan", draws=20).trials}
    assert trials["memorizer"].violations == 20
    assert trials["memorizer"].broken
    assert trials["constant"].violations == 0


def test_partition_after_the_data_is_broken() -> None:
    """In every draw of that problem and in no other."""
    trials = {t.problem: t for t in try_bound("theorem-20-data-partition", draws=20).trials}
    assert [p for p, t in trials.items() if t.broken] == ["partition after the data"]
    assert trials["partition after the data"].violations == 20


def test_a_user_bound() -> None:
    """The training error alone is broken; a function that says nothing is never tried."""
    found = try_bound(lambda draw, delta: draw.train_error, draws=20, name="mine")
    assert found.broken
    assert found.name == "mine"
    assert json.loads(found.to_json())["broken"] is True
    assert {(t.draws, t.violations) for t in try_bound(lambda draw, delta: math.nan, draws=2).trials} == {(0, 0)}

    def wrong(draw: Draw, delta: float) -> str:
        return "0.5"

    with pytest.raises(InputError, match="return a number, got str"):
        try_bound(wrong, draws=1)  # type: ignore[arg-type]


def test_theorem_20_with_unseen_inputs_spends_half_of_delta_on_each_part() -> None:
    """One cell, 400 samples and 100 unseen inputs, all at one place: what is left are the two deviations."""
    cells = PartitionCells(np.zeros(400, dtype=np.int64), np.ones(1), np.ones(1))
    zero, unseen = np.zeros(400), (np.zeros((100, 1)), np.zeros(100, dtype=np.int64))
    draw = Draw(zero[:, None], cells.index, zero, 0.0, zero, cells, cells, unseen=unseen)
    delta = 0.03
    of_distances = math.sqrt(math.log(2 / delta) / (2 * 100))
    of_cells = math.sqrt(1 / 400) / 2 + math.sqrt(math.log(2 / delta) / (2 * 400))
    found = KNOWN_BOUNDS["theorem-20-held-out"].bound(draw, delta)
    assert found == pytest.approx(of_distances + of_cells, rel=1e-9)


def test_deterministic_and_checked() -> None:
    """The same seed, the same text; unknown names and numbers out of range are refused."""
    assert try_bound("occam", draws=5, seed=3).to_json() == try_bound("occam", draws=5, seed=3).to_json()
    assert try_bound("occam", draws=5, seed=3).to_json() != try_bound("occam", draws=5, seed=4).to_json()
    with pytest.raises(InputError, match="Known bounds"):
        try_bound("no such")
    with pytest.raises(InputError):
        try_bound("occam", draws=0)
    with pytest.raises(InputError):
        try_bound("occam", delta=0.0)
