"""The still picture: well-formed, inside its frame, escaped, and of bounded size."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from normscope.report.charts import Chart, ChartLine
from normscope.report.svg import HEIGHT, POINTS, WIDTH, span, static_svg, ticks

NUMBERS = st.one_of(st.none(), st.floats(-1e15, 1e15), st.sampled_from([math.inf, -math.inf]))


def _chart(*lines: tuple[float | None, ...], names: str = "a", **rest: object) -> Chart:
    count = max(len(x) for x in lines)
    made = tuple(ChartLine("global", "proved", "certified", "", x) for x in lines)
    return Chart("c", "a title", (names,) * count, made, **rest)  # type: ignore[arg-type]


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_whatever_the_numbers_it_is_a_picture(numbers: list[float | None]) -> None:
    """Gaps, infinities, one point, huge ranges: XML that parses, every point inside the frame."""
    root = ElementTree.fromstring(static_svg(_chart(tuple(numbers))))
    for path in root.iter("path"):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d") or ""):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


def test_names_are_escaped_and_numbers_told() -> None:
    """A name cannot become markup; those who do not see the picture are told its ends."""
    text = static_svg(_chart((0.0, 2.0), names="<b>&\"'"))
    assert "<b>" not in text
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == "a title: proved (certified) from 1 to 100"


def test_a_long_line_is_thinned() -> None:
    """Its size does not grow with the network, and its last point is kept."""
    numbers = tuple(float(i % 7) for i in range(20_000))
    text = static_svg(_chart(numbers))
    assert text.count("L") <= POINTS + 1
    assert len(text) < 20_000


@given(st.floats(-1e3, 1e3), st.floats(0.5, 1e3))
def test_there_are_a_handful_of_ticks_inside(low: float, width: float) -> None:
    """Never none, never a crowd, all inside."""
    chart = _chart((low, low + width))
    bottom, top = span(chart)
    found = ticks(bottom, top)
    assert 1 <= len(found) <= 10
    assert all(bottom - 1e-9 <= t <= top + 1e-9 for t in found)
    assert math.isfinite(bottom)
