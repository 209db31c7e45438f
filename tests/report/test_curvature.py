"""Curvature as text."""

from __future__ import annotations

from curved import classifier, labelled
from normscope.curvature.run import curvature
from normscope.report.curvature import curvature_html, curvature_sections, curvature_text


def test_every_part_is_shown() -> None:
    found = curvature(classifier(), labelled(), matrix="ggn", modes=True, density=1, probes=2)
    titles = [section.title for section in curvature_sections(found)]
    assert titles[0] == "curvature of Sequential"
    for title in ("modulo symmetries", "modes of BatchNorm", "trace by parameter", "density"):
        assert title in titles
    text = curvature_text(found, everything=True)
    assert "batch mode" in text
    assert "condition number" in text
    assert "0.weight" in text
    assert curvature_html(found).count("<h4>") == len(titles)
