"""Panels of the report page: every measurement beside a capacity result, or alone."""

from __future__ import annotations

import re

import torch

from curved import classifier, labelled
from normscope.curvature.run import curvature
from normscope.report.html import report_html
from normscope.report.panels import Panel, panel_sections
from normscope.weight_normalization import WeightNormNetwork, verify
from report.samples import result
from report.test_bounds import bounds_result


def _panels() -> list[Panel]:
    curved = curvature(classifier(), labelled(), density=1, probes=2, top=1)
    proved = verify(WeightNormNetwork(3, width=8, depth=2, seed=0), torch.eye(3), torch.ones(3, 1))
    return [curved, bounds_result(), proved]


def test_a_page_shows_every_panel_with_its_charts() -> None:
    """Beside a capacity result: each title once as a heading, each chart drawn under a name of its own."""
    panels = _panels()
    sections = panel_sections(panels)
    page = report_html(result(), panels=panels)
    for title in ("density", "generalization bounds of &lt;net&gt;", "weight normalization: bounds and"):
        assert f"<h2>{title}" in page
    charts = [s.chart for s in sections if s.chart is not None]
    assert len(charts) == 4
    drawn = re.findall(r'<figure class="chart" id="(panel\d+)"', page)
    assert drawn == [c.id for c in charts]
    assert len(set(drawn)) == 4
    for chart in charts:
        assert f'"{chart.id}":' in page  # what the script draws


def test_panels_alone_make_a_page() -> None:
    """The title is the first section's; names are spelled safely, and nothing is fetched."""
    page = report_html({}, panels=[bounds_result()])
    assert "<h1>generalization bounds of &lt;net&gt;</h1>" in page
    assert "<net>" not in page
    assert "a &lt;skip&gt;" in page
