"""Small line charts: blocks, ticks and a picture that is well-formed and shows every line."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from normscope.report.line_chart import BLOCKS, PLAIN_BLOCKS, blocks_for, round_ticks, sparkline, svg_chart


def test_blocks_follow_the_numbers() -> None:
    """Least low, largest high, gaps for what is not finite, thinned when long."""
    assert sparkline([1.0, 2.0, 3.0]) == BLOCKS[0] + BLOCKS[4] + BLOCKS[-1]
    assert sparkline([1.0, math.inf, 3.0], blocks=PLAIN_BLOCKS) == "_ #"
    assert sparkline([math.nan]) == " "
    assert len(set(sparkline([5.0, 5.0]))) == 1
    assert len(sparkline(list(range(1000)), width=50)) == 50
    assert blocks_for(None) == PLAIN_BLOCKS
    assert blocks_for("no such encoding") == PLAIN_BLOCKS


@pytest.mark.parametrize(("low", "high"), [(0.0, 1505.1), (-3.2, 4.7), (1e-9, 2e-9), (5.0, 5.0)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    """Between the ends, between one and a dozen."""
    ticks = round_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(low - 1e-12 * abs(low) <= t <= high + 1e-12 * abs(high) for t in ticks)


def test_picture() -> None:
    """Well-formed, one line for each name, text escaped, points inside the frame."""
    text = svg_chart(
        "a < b", "layer", "log10", {"one": [(1, -1500.0), (2, 0.0)], "two & more": [(1, 3.0), (2, math.inf)]}
    )
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    lines = root.findall(f"{space}polyline")
    assert len(lines) == 2
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 1]
    for line in lines:
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 760
            assert 0 <= y <= 420
    words = {node.text for node in root.iter(f"{space}text")}
    assert {"a < b", "layer", "log10", "one", "two & more", "-1400"} <= words


def test_nothing_to_draw() -> None:
    """No line, or no finite point: an empty frame; one point is drawn as one."""
    for series, drawn in (({}, 0), ({"a": []}, 0), ({"a": [(1.0, math.nan)]}, 0), ({"a": [(1.0, 2.0)]}, 1)):
        root = ElementTree.fromstring(svg_chart("", "", "", series))
        lines = [node.get("points") for node in root.iter() if node.tag.endswith("polyline")]
        assert sum(len(line.split()) for line in lines if line) == drawn
