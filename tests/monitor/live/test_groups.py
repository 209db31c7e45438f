"""Metrics in charts: every metric of the monitor is in a chart made for it, and says what it is."""

from __future__ import annotations

from functools import partial

import pytest

from normscope.monitor.chart import on_page
from normscope.monitor.live.groups import described
from normscope.monitor.live.groups import grouped as grouped_in
from normscope.monitor.quantities import charts, descriptions

SAID = [d.to_dict() for d in descriptions()]
CHARTS = on_page(chart.to_dict() for chart in charts())
grouped = partial(grouped_in, charts=CHARTS)
NAMES = [d.pattern.replace("*", "blocks.0.conv1") for d in descriptions()]


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_the_monitor_has_a_chart(name: str) -> None:
    """None is left to the charts of unknown metrics, and its kind and words are those of its description."""
    (group,) = grouped([name], SAID)
    assert group.key in {chart.key for chart in CHARTS}
    what = next(d for d in descriptions() if d.matches(name))
    line = group.lines[name]
    assert line["kind"] == ("attained" if what.kind.value == "lower" else what.kind.value)
    assert (line["words"], line["statement"], line["domain"]) == (what.words, what.statement, what.domain)
    assert group.log10 == what.log10


def test_logarithms_never_share_a_chart_with_plain_numbers() -> None:
    """A chart has one scale."""
    for group in grouped(NAMES, SAID):
        assert {next(d for d in descriptions() if d.matches(n)).log10 for n in group.lines} == {group.log10}


def test_an_undescribed_logarithm_stands_alone() -> None:
    """A run may describe a metric as a logarithm where its chart holds plain numbers."""
    said = [{"pattern": "norm/odd", "kind": "estimate", "log10": True}, {"pattern": "norm/*", "kind": "lower"}]
    groups = grouped(["norm/a", "norm/odd"], said)
    assert [(g.log10, list(g.lines)) for g in groups] == [(False, ["norm/a"]), (True, ["norm/odd"])]


def test_order_and_own_numbers() -> None:
    """Loss first, numbers of the training loop each in a chart of its own, unknown ones last."""
    groups = grouped(["odd/x", "norm/a", "train/lr", "train/beta", "train/loss", "probe/loss"], SAID)
    assert [g.key for g in groups] == ["loss", "train/lr", "train/beta", "norm", "odd"]
    assert list(groups[0].lines) == ["train/loss", "probe/loss"]
    assert described("train/lr", SAID)["kind"] == "own"


def test_labels_are_layers_where_the_title_says_the_rest() -> None:
    """Names of layers are kept whole."""
    groups = {g.key: g for g in grouped(NAMES, SAID)}
    assert groups["norm"].lines["norm/blocks.0.conv1"]["label"] == "blocks.0.conv1"
    assert groups["product"].lines["product/folded_log10"]["label"] == "folded"
    assert groups["certified"].lines["certified/global_log10"]["label"] == "global"
