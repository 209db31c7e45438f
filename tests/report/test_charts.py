"""The charts as data: the right lines, gaps where there is no number, places shared where they are called alike."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from normscope.core.depth_curve import Curve, Depth
from normscope.core.value import Kind
from normscope.report.charts import depth_chart, overlay_chart, variance_chart
from report.samples import result


def test_the_depth_chart_has_the_curves_of_the_result() -> None:
    """Each with its kind; what was not measured is a gap, bridged for what is attained."""
    chart = depth_chart(result(), "c")
    assert chart is not None
    assert [(x.style, x.kind, x.gaps) for x in chart.lines] == [
        ("global", "certified", False),
        ("variance_floor", "certified", False),
        ("lower", "attained", True),
    ]
    assert chart.lines[0].log10 == result().depth.curves["global"].log10
    assert chart.lines[2].log10[2] is None
    assert depth_chart(result(depth=Depth()), "c") is None


def test_a_curve_on_top_of_another_is_left_out() -> None:
    """Where the floor changes nothing, one line is drawn."""
    curve = Curve.of([0.0, 1.0], Kind.CERTIFIED)
    depth = Depth(("input", "output"), ("input", "output"), {"global": curve, "variance_floor": curve})
    chart = depth_chart(result(depth=depth), "c")
    assert chart is not None
    assert [x.style for x in chart.lines] == ["global"]


def test_no_bound_is_said() -> None:
    """From where on, by name; the script gets the word and draws a gap."""
    curve = Curve.of([0.0, math.inf, math.inf], Kind.CERTIFIED)
    depth = Depth(("input", "a", "output"), ("input", "layer", "output"), {"global": curve})
    chart = depth_chart(result(depth=depth), "c")
    assert chart is not None
    assert chart.notes == ("certified, all inputs: no bound from a onwards",)
    assert chart.to_dict()["lines"][0]["log10"] == [0.0, "inf", "inf"]


def test_a_constant_of_zero_is_no_missing_bound() -> None:
    """Its logarithm is minus infinity, another word for the script."""
    curve = Curve.of([0.0, -math.inf], Kind.CERTIFIED)
    chart = depth_chart(result(depth=Depth(("input", "output"), ("input", "output"), {"global": curve})), "c")
    assert chart is not None
    assert chart.to_dict()["lines"][0]["log10"] == [0.0, "-inf"]


def test_results_side_by_side() -> None:
    """Places called alike are shared; others are counted; styles come round again."""
    short = Depth(
        ("input", "out", "output"), ("input", "layer", "output"), {"global": Curve.of([0, 1, 2], Kind.PRINTED)}
    )
    chart = overlay_chart({"a": result(), "b": result(depth=short)}, "o")
    assert chart is not None
    assert chart.places == result().depth.names
    assert [x.style for x in chart.lines] == ["run0", "run0-lower", "run1"]
    assert [x is None for x in chart.lines[2].log10] == [False, True, True, False, False]
    strange = Depth(("input", "else"), ("input", "output"), {"global": Curve.of([0, 1], Kind.PRINTED)})
    counted = overlay_chart({"a": result(), "b": result(depth=strange)}, "o")
    assert counted is not None
    assert counted.places[:2] == ("place 0", "place 1")
    assert counted.lines[2].log10[2:] == (None, None, None)


def test_variances_against_the_line_at_one() -> None:
    """Seen in the data, or of the running statistics; a variance of zero is a gap."""
    chart = variance_chart(result(), "v")
    assert chart is not None
    assert chart.baseline == 0.0
    assert [x.log10[0] for x in chart.lines] == pytest.approx([math.log10(20), math.log10(0.5), -1.0])
    (normalizer,) = result().normalizers
    running = replace(normalizer, details={"std_min": 0.0, "std_max": 2.0})
    chart = variance_chart(result(normalizers=(running,)), "v")
    assert chart is not None
    assert "running" in chart.title
    assert [x.log10[0] for x in chart.lines] == pytest.approx([math.log10(4.0)])
    assert variance_chart(result(normalizers=()), "v") is None
