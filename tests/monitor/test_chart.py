"""Charts of the page: quantities declare them, and every metric of the monitor is in one made for it."""

from __future__ import annotations

import json
from functools import partial

import pytest

from normscope.monitor.chart import COMMON, Chart, all_charts, charts_of, described_in_run
from normscope.monitor.quantities import charts, descriptions

SAID = [d.to_dict() for d in descriptions()]
CHARTS = all_charts(chart.to_dict() for chart in charts())
drawn = partial(charts_of, charts=CHARTS)
NAMES = [d.pattern.replace("*", "blocks.0.conv1") for d in descriptions()]


def test_keys_and_places_are_unique() -> None:
    """Otherwise two charts would be one, or their order would depend on which file is read first."""
    every = (*COMMON, *charts())
    assert len({chart.key for chart in every}) == len(every)
    assert len({chart.place for chart in every}) == len(every)


def test_charts_survive_json_and_stand_in_order() -> None:
    """A page reads them from the configuration of a run."""
    found = all_charts(json.loads(json.dumps(chart.to_dict())) for chart in charts())
    assert set(found) == {*COMMON, *charts()}
    assert [chart.place for chart in found] == sorted(chart.place for chart in found)


def test_what_is_no_chart_is_passed_over() -> None:
    """A run of an older version declares none, and a file may be damaged."""
    assert all_charts([3, None, {"key": "a"}, {"key": "a", "patterns": 1, "place": 2}]) == list(COMMON)


def test_two_runs_share_their_charts() -> None:
    """The same chart declared twice is one."""
    chart = Chart("a", "A", "log", ("a/*",), 70).to_dict()
    assert len(all_charts([chart, chart])) == len(COMMON) + 1


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_the_monitor_has_a_chart(name: str) -> None:
    """None is left to the charts of unknown metrics, and its kind and words are those of its description."""
    (chart,) = drawn([name], SAID)
    assert chart.key in {c.key for c in CHARTS}
    what = next(d for d in descriptions() if d.matches(name))
    line = chart.lines[name]
    assert line["kind"] == ("attained" if what.kind.value == "lower" else what.kind.value)
    assert (line["words"], line["statement"], line["domain"]) == (what.words, what.statement, what.domain)
    assert chart.log10 == what.log10


def test_logarithms_never_share_a_chart_with_plain_numbers() -> None:
    """A chart has one scale."""
    for chart in drawn(NAMES, SAID):
        assert {next(d for d in descriptions() if d.matches(n)).log10 for n in chart.lines} == {chart.log10}


def test_an_undescribed_logarithm_stands_alone() -> None:
    """A run may describe a metric as a logarithm where its chart holds plain numbers."""
    said = [{"pattern": "norm/odd", "kind": "estimate", "log10": True}, {"pattern": "norm/*", "kind": "lower"}]
    found = drawn(["norm/a", "norm/odd"], said)
    assert [(c.log10, list(c.lines)) for c in found] == [(False, ["norm/a"]), (True, ["norm/odd"])]


def test_order_and_own_numbers() -> None:
    """Loss first, numbers of the training loop each in a chart of its own, unknown ones last."""
    found = drawn(["odd/x", "norm/a", "train/lr", "train/beta", "train/loss", "probe/loss"], SAID)
    assert [c.key for c in found] == ["loss", "train/lr", "train/beta", "norm", "odd"]
    assert list(found[0].lines) == ["train/loss", "probe/loss"]
    assert described_in_run("train/lr", SAID)["kind"] == "own"


def test_labels_are_layers_where_the_title_says_the_rest() -> None:
    """Names of layers are kept whole."""
    found = {c.key: c for c in drawn(NAMES, SAID)}
    assert found["norm"].lines["norm/blocks.0.conv1"]["label"] == "blocks.0.conv1"
    assert found["product"].lines["product/folded_log10"]["label"] == "folded"
    assert found["certified"].lines["certified/global_log10"]["label"] == "global"
