"""Thinned series against a search by hand in every stretch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.monitor.live.thinning import limit_for, thinned


def _series(seed: int, count: int, gaps: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return a random walk at steps that are not evenly apart."""
    generator = np.random.default_rng(seed)
    return np.cumsum(generator.integers(1, gaps + 1, count)).astype(float), np.cumsum(generator.normal(size=count))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(200, 2000), st.sampled_from([8, 50, 121]))
def test_each_stretch_keeps_its_least_and_most(seed: int, count: int, limit: int) -> None:
    """Every point lies in one stretch; what is drawn there are its extremes, the earlier one first."""
    steps, values = _series(seed, count)
    block = thinned({"a": (steps, values)}, limit)
    assert not block.exact
    assert len(block.steps) <= limit
    assert np.all(np.diff(block.steps) > 0)
    assert np.isin(block.steps, steps).all()
    line, covered, at = block.lines["a"], 0, 0
    while at < len(line):
        alone = _is_alone(block.steps, at, steps, limit)
        end = at if alone else at + 1
        inside = (steps >= block.steps[at]) & (steps <= block.steps[end])
        covered += int(inside.sum())
        least, most = values[inside].min(), values[inside].max()
        assert {line[at], line[end]} == {least, most}
        if not alone:
            rising = np.argmin(values[inside]) <= np.argmax(values[inside])
            assert (line[at] == least) == rising or least == most
        at = end + 1
    assert covered == count


def _is_alone(columns: np.ndarray, at: int, steps: np.ndarray, limit: int) -> bool:
    """Return whether a column is a stretch of one step: then the next column is of another stretch."""
    width = (steps[-1] - steps[0]) / (limit // 2)

    def number(x: float) -> int:
        return min(int((x - steps[0]) * ((limit // 2) / (steps[-1] - steps[0]))), limit // 2 - 1)

    assert width > 0
    return at + 1 == len(columns) or number(columns[at + 1]) != number(columns[at])


def test_lines_of_other_steps_share_columns_and_keep_their_peaks() -> None:
    """A loss at every step and a norm at some: one array of steps, no peak lost, holes where there is nothing."""
    steps = np.arange(1.0, 100_001.0)
    loss = np.where(steps == 33_333, 50.0, 1.0)
    few = steps[::1000]
    block = thinned({"loss": (steps, loss), "norm": (few, np.where(few == 5001, -7.0, 2.0))}, 2000)
    assert len(block.steps) <= 2000
    assert np.nanmax(block.lines["loss"]) == 50.0
    assert np.nanmin(block.lines["norm"]) == -7.0
    assert np.isnan(block.lines["norm"]).any()
    assert abs(block.steps[np.nanargmax(block.lines["loss"])] - 33_333) <= 100


def test_few_points_are_themselves() -> None:
    """Nothing is changed where everything fits; each line has its own steps."""
    block = thinned({"a": (np.array([1.0, 2.0]), np.array([5.0, 6.0])), "b": (np.array([2.0, 4.0]), np.ones(2))}, 10)
    assert block.exact
    assert block.steps.tolist() == [1, 2, 4]
    np.testing.assert_array_equal(block.lines["a"], [5, 6, np.nan])
    np.testing.assert_array_equal(block.lines["b"], [np.nan, 1, 1])


def test_a_window_is_exact_where_the_whole_is_not() -> None:
    """Looking closer gives every point, and one on each side so that lines reach the edge."""
    steps, values = _series(0, 10_000)
    low, high = steps[5000], steps[5100]
    block = thinned({"a": (steps, values)}, 500, low, high)
    assert block.exact
    np.testing.assert_array_equal(block.steps, steps[4999:5102])
    np.testing.assert_array_equal(block.lines["a"], values[4999:5102])


def test_steps_that_go_back_are_put_in_order() -> None:
    """Of several numbers at one step the last one counts."""
    block = thinned({"a": (np.array([1.0, 2.0, 3.0, 2.0]), np.array([1.0, 2.0, 3.0, 9.0]))}, 10)
    assert block.steps.tolist() == [1, 2, 3]
    assert block.lines["a"].tolist() == [1, 9, 3]


@pytest.mark.parametrize("series", [{}, {"a": (np.empty(0), np.empty(0))}])
def test_nothing(series: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """No point is no column."""
    block = thinned(series, 10)
    assert len(block.steps) == 0
    assert all(len(line) == 0 for line in block.lines.values())


def test_a_line_outside_the_window_is_empty_but_for_its_neighbour() -> None:
    """A metric that was measured only before the window shows the point before it."""
    block = thinned({"a": (np.arange(10.0), np.arange(10.0)), "b": (np.array([1.0]), np.array([4.0]))}, 100, 5, 7)
    np.testing.assert_array_equal(block.steps, [1, 4, 5, 6, 7, 8])
    assert block.lines["b"][0] == 4.0


def test_limits_fall_with_the_lines() -> None:
    """A chart of many lines does not get more numbers than it can draw at once."""
    limits = [limit_for(n) for n in (0, 1, 20, 200, 5000)]
    assert limits == sorted(limits, reverse=True)
    assert limit_for(200) * 200 <= 40_000
