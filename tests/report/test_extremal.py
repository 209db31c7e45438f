"""What a construction shows, as text, chart and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

from normscope.core.value import Kind, Value
from normscope.papers.than2025.extremal.constructions import ConstructionReport, ConstructionSettings
from normscope.report.extremal import (
    BLOCKS,
    PLAIN_BLOCKS,
    blocks_for,
    extremal_chart,
    extremal_sections,
    sparkline,
)
from normscope.report.table import plain_text

SHOWN = ConstructionReport(
    "a title",
    {
        "constant": Value.of(100.0, Kind.CERTIFIED, statement="than2025 Theorem 6"),
        "nothing": Value(-math.inf, Kind.PRINTED),
    },
    {"up": [(1.0, -1.0), (2.0, 0.0), (3.0, 3.0)], "gone": [(1.0, 0.0), (3.0, -math.inf)]},
    "depth",
    "log10 of it",
    ("a note",),
)


def test_text_has_numbers_lines_and_notes() -> None:
    """Each number with its kind and statement, each line with its ends and as many blocks as points."""
    lines = plain_text(extremal_sections(SHOWN)).splitlines()
    assert lines[0] == "a title"
    assert next(line for line in lines if "constant" in line).split()[1:3] == ["100", "certified"]
    assert next(line for line in lines if "nothing" in line).split()[1:3] == ["0", "printed"]
    assert "it, by depth" in lines
    place = next(i for i, line in enumerate(lines) if "up:" in line)
    assert lines[place].strip() == "up: 0.1 at 1 .. 1000 at 3"
    assert lines[place + 1].strip() == BLOCKS[0] + BLOCKS[2] + BLOCKS[-1]
    assert lines[-1].strip() == "a note"


def test_a_terminal_without_blocks_gets_plain_ones() -> None:
    """Nothing that its encoding cannot write."""
    text = plain_text(extremal_sections(SHOWN, "ascii"))
    assert text.isascii()
    assert PLAIN_BLOCKS[0] + PLAIN_BLOCKS[2] + PLAIN_BLOCKS[-1] in text


def test_the_chart_has_every_line_and_label() -> None:
    """A document of its own; points that are not finite are left out, and markup in names is escaped."""
    root = ElementTree.fromstring(extremal_chart(replace(SHOWN, title="a < b")))
    space = "{http://www.w3.org/2000/svg}"
    drawn = [node.get("d") or "" for node in root.iter(f"{space}path")]
    assert [path.count("L") + 1 for path in drawn if "h22" not in path] == [3, 1]
    words = {node.text for node in root.iter(f"{space}text")}
    assert {"a < b", "depth", "it", "up", "gone", "1", "2", "3"} <= words


def test_nothing_to_draw() -> None:
    """No line, or no finite point: an empty frame; one point is drawn as one."""
    for series, drawn in (({}, 0), ({"a": []}, 0), ({"a": [(1.0, math.nan)]}, 0), ({"a": [(1.0, 2.0)]}, 1)):
        root = ElementTree.fromstring(extremal_chart(replace(SHOWN, series=series)))
        paths = [node.get("d") or "" for node in root.iter() if node.tag.endswith("path")]
        assert len([path for path in paths if "h22" not in path]) == drawn


def test_blocks_follow_the_numbers() -> None:
    """Least low, largest high, gaps for what is not finite, thinned when long."""
    assert sparkline([1.0, 2.0, 3.0]) == BLOCKS[0] + BLOCKS[4] + BLOCKS[-1]
    assert sparkline([1.0, math.inf, 3.0], blocks=PLAIN_BLOCKS) == "_ #"
    assert sparkline([math.nan]) == " "
    assert len(set(sparkline([5.0, 5.0]))) == 1
    assert len(sparkline(list(range(1000)), width=50)) == 50
    assert blocks_for(None) == PLAIN_BLOCKS
    assert blocks_for("no such encoding") == PLAIN_BLOCKS


def test_the_document_is_strict_json() -> None:
    """Infinities are words; one width stands for all that are equal."""
    shown = replace(SHOWN, construction="theorem-6", settings=ConstructionSettings((4, 4, 4), 3.0))
    read = json.loads(shown.to_json())
    assert (read["construction"], read["settings"]["widths"], read["settings"]["depth"]) == ("theorem-6", 4, 2)
    assert read["series"]["gone"] == {"x": [1.0, 3.0], "log10": [0.0, "-inf"]}
    assert read["values"]["constant"]["kind"] == "certified"
    assert read["notes"] == ["a note"]
    assert replace(SHOWN, settings=ConstructionSettings((2, 3))).to_dict()["settings"]["widths"] == [2, 3]
