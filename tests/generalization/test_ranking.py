"""Ranking: perfect, useless and confounded measures, and the information by a second computation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.generalization import granulated_kendall, information_score, kendall

RUNS = [{"depth": d, "width": w, "rate": r} for d in (2, 4, 8) for w in (16, 32, 64) for r in (0, 1)]


def _gaps() -> list[float]:
    rng = np.random.default_rng(0)
    return [0.1 * r["depth"] + 0.01 * r["width"] + 0.3 * r["rate"] + float(rng.normal(0, 0.2)) for r in RUNS]


def test_perfect_and_reversed() -> None:
    """The gap itself, and its negative, which tells as much but ranks the other way round."""
    gaps = _gaps()
    assert kendall(gaps, gaps) == pytest.approx(1)
    assert kendall([-g for g in gaps], gaps) == pytest.approx(-1)
    for sign in (1, -1):
        assert information_score([sign * g for g in gaps], gaps, RUNS) == pytest.approx(100)
    assert all(v == pytest.approx(1) for v in granulated_kendall(gaps, gaps, RUNS).values())


def test_confounded_measure() -> None:
    """A measure that only knows the depth ranks well overall, and says nothing once depth is given."""
    gaps = _gaps()
    depth = [float(r["depth"]) for r in RUNS]
    assert kendall(depth, gaps) > 0.3
    assert information_score(depth, gaps, RUNS) == pytest.approx(0, abs=1e-9)
    parts = granulated_kendall(depth, gaps, RUNS)
    assert np.isnan(parts["width"])


def test_information_by_a_table() -> None:
    """Without conditions: the mutual information of the signs over all pairs, over the entropy of a fair coin."""
    rng = np.random.default_rng(1)
    gaps, measure = rng.normal(size=12).tolist(), rng.normal(size=12).tolist()
    alone = [{"run": 0}] * 12
    pairs = list(itertools.permutations(range(12), 2))
    signs = [(measure[i] > measure[j], gaps[i] > gaps[j]) for i, j in pairs]
    table = np.array([[sum(s == (a, b) for s in signs) for b in (False, True)] for a in (False, True)]) / len(pairs)
    apart = np.outer(table.sum(1), table.sum(0))
    expected = float((table * np.log(table / apart)).sum()) / np.log(2)
    assert information_score(measure, gaps, alone) == pytest.approx(100 * expected)


def test_refused() -> None:
    """One run, other lengths, other names."""
    with pytest.raises(InputError):
        kendall([1.0], [1.0])
    with pytest.raises(InputError):
        information_score([1.0, 2.0], [1.0, 2.0], [{"a": 1}])
    with pytest.raises(InputError):
        granulated_kendall([1.0, 2.0], [1.0, 2.0], [{"a": 1}, {"b": 1}])
