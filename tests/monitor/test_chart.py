"""Charts of the page: declared once each, by quantities; what a damaged configuration declares is passed over."""

from __future__ import annotations

import json

from normscope.monitor.chart import COMMON, Chart, on_page
from normscope.monitor.quantities import charts


def test_keys_and_places_are_unique() -> None:
    """Otherwise two charts would be one, or their order would depend on which file is read first."""
    every = (*COMMON, *charts())
    assert len({chart.key for chart in every}) == len(every)
    assert len({chart.place for chart in every}) == len(every)


def test_charts_survive_json_and_stand_in_order() -> None:
    """A page reads them from the configuration of a run."""
    found = on_page(json.loads(json.dumps(chart.to_dict())) for chart in charts())
    assert set(found) == {*COMMON, *charts()}
    assert [chart.place for chart in found] == sorted(chart.place for chart in found)


def test_what_is_no_chart_is_passed_over() -> None:
    """A run of an older version declares none, and a file may be damaged."""
    assert on_page([3, None, {"key": "a"}, {"key": "a", "patterns": 1, "place": 2}]) == list(COMMON)


def test_two_runs_share_their_charts() -> None:
    """The same chart declared twice is one."""
    chart = Chart("a", "A", "log", ("a/*",), 70).to_dict()
    assert len(on_page([chart, chart])) == len(COMMON) + 1
