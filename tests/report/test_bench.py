"""The bench as text."""

from __future__ import annotations

from normscope.generalization.bench.run import try_bound
from normscope.report.bench import bench_sections
from normscope.report.table import plain_text


def test_verdicts() -> None:
    """Broken ones say so first; problems a bound says nothing about are named."""
    text = plain_text(bench_sections(try_bound("than-phan", draws=15)))
    assert "broken: it fails more often than 5 %" in text
    assert "memorizer" in text
    text = plain_text(bench_sections(try_bound("pac-bayes-kl", draws=3)))
    assert "not broken" in text
    assert "says nothing" in text
