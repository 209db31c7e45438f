"""Curvature as text."""

from __future__ import annotations

import numpy as np
import pytest

from curved import classifier, labelled
from normscope.curvature.run import curvature
from normscope.report.curvature import curvature_sections
from normscope.report.table import plain_text


def test_every_part_is_shown() -> None:
    found = curvature(classifier(), labelled(), matrix="ggn", modes=True, density=1, probes=2)
    titles = [section.title for section in curvature_sections(found)]
    assert titles[0] == "curvature of Sequential"
    for title in ("modulo symmetries", "modes of BatchNorm", "trace by parameter", "density"):
        assert title in titles
    text = plain_text(curvature_sections(found, everything=True))
    assert "batch mode" in text
    assert "condition number" in text
    assert "0.weight" in text
    assert found._repr_html_().count("<b>") == len(titles)


def test_charts_show_the_numbers() -> None:
    """The trace of every parameter, and shares of eigenvalues that add up to one."""
    found = curvature(classifier(), labelled(), density=2, probes=2)
    charts = {s.title: s.chart for s in curvature_sections(found)}
    traces, density = charts["trace by parameter"], charts["density"]
    assert traces is not None
    assert density is not None
    assert traces.places == tuple(row.name for row in found.layers)
    assert (traces.y_title, density.x_title) == ("trace", "eigenvalue")
    for i, row in enumerate(found.layers):
        drawn = [sign * 10**x for sign, line in zip((1, -1), traces.lines, strict=False)
                 if (x := line.log10[i]) is not None]  # fmt: skip
        assert drawn == pytest.approx([row.trace])
    assert np.sum([10**x for x in density.lines[0].log10 if x is not None]) == pytest.approx(1.0)
