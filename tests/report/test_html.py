"""The page as a file: complete without scripts, escaped, self-contained, small, valid in its structure."""

from __future__ import annotations

import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import normscope
from curved import classifier, labelled
from normscope.analysis.checkpoint import CheckpointResult, TensorResult
from normscope.analysis.stored_results import PanelResult
from normscope.core.depth_curve import Depth
from normscope.core.errors import InputError
from normscope.core.finding import Certainty, Finding, Severity
from normscope.core.result import Coverage, Result
from normscope.curvature.run import curvature
from normscope.report.analysis import compare_rows
from normscope.report.embed import digest, read_back
from normscope.report.html import HOTTEST, hot_rows, layer_rows, panel_sections, report_html, save_html
from normscope.report.numbers import page_value, sort_key
from normscope.weight_normalization import WeightNormNetwork, verify
from report.samples import deep, opaque, result
from report.test_bounds import bounds_result

VENDOR = files("normscope.report") / "vendor"
VOID = {"meta", "input", "br", "link", "img", "path", "line"}


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects what tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        self.attributes.append((tag, dict(attrs)))
        self.ids += [v for k, v in attrs if k == "id" and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that closes itself."""
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last."""
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


FINDINGS = [
    Finding("NS2", Severity.INFO, "fc", "small", {"ratio": 0.25}, Certainty.MEASURED, "than2025 Lemma 1", "leave it"),
    Finding("NS1", Severity.ERROR, "<norm>", "a & b", {"count": 3}, Certainty.PROVED, "", "mend it"),
    Finding("NS1", Severity.ERROR, "out", "again"),
]


@pytest.mark.parametrize(
    "page",
    [
        lambda: report_html(result(), findings=FINDINGS),
        lambda: report_html({"a": result(), "b <i>": result(coverage=opaque())}, facts={"accuracy": ["1 %", "2 %"]}),
        lambda: report_html(Result({}, {}, Coverage(0, 0, 1.0, 0), (), (), {})),
        lambda: report_html(deep(30)),
    ],
)
def test_the_structure_is_sound(page: object) -> None:
    """Elements are closed in order, ids are unique, labels point to what exists, tables have captions and scopes."""
    text = page()  # type: ignore[operator]
    outline = Outline(text)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    for tag, attributes in outline.attributes:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(outline.ids)
        assert tag != "th" or attributes.get("scope") in ("row", "col")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        if tag == "a":
            assert (attributes["href"] or "").removeprefix("#") in outline.ids
    assert text.count("<table") == text.count("<caption>")


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address but the library's own comment; the policy allows this script and this style alone."""
    text = report_html(result())
    assert set(re.findall(r"https?://[^\s\"'*)]+", text)) <= {"https://github.com/leeoniya/uPlot"}
    assert not re.search(r"\ssrc=|<link|@import|url\(", text)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])  # type: ignore[index]
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src {digest(script)};" in policy
    assert f"style-src {digest(style)};" in policy


def test_names_cannot_become_markup() -> None:
    """Wherever a name comes from, it is text."""
    evil = "</script><script>alert(1)</script>\"'<b>"
    (normalizer,) = result().normalizers
    found = result(
        model={"name": evil, "class": evil},
        normalizers=(replace(normalizer, name=evil, kind=evil),),
        messages=(evil,),
        blocks=({"name": evil, "type": evil, "repeat": 1, "ops": [], "parameters": 1, "children": []},),
    )
    finding = Finding(evil, Severity.INFO, evil, evil, {evil: evil}, Certainty.PROVED, evil, evil)
    text = report_html({evil: found, "b": found}, findings={evil: [finding]}, facts={evil: [evil, evil]}, title=evil)
    assert "alert(1)</script>" not in text
    assert "<b>" not in text
    assert Outline(text).open == []
    assert read_back(text)[evil] == json.loads(replace(found, findings=(finding,)).to_json())


def test_every_number_is_there_with_its_kind() -> None:
    """Without scripts: each value of the result as text, beside it what it guarantees, and the same on hover."""
    found = result()
    text = report_html(found)
    values = [v for v in found.end_to_end.values() if v is not None]
    values += [v for x in found.layers for v in (x.upper, x.lower, x.folded) if v is not None]
    values += [v for n in found.normalizers for v in (n.printed, n.proved, n.on_floor) if v is not None]
    cells = re.findall(r'<data value="([^"]*)" title="([^"]*)">([^<]*)</data> <small>([^<]*)</small>', text)
    for value in values:
        near = [cell for cell in cells if cell[0] == sort_key(value) and cell[2] == page_value(value)]
        assert any((value.kind.value == "lower" and k == "attained") or k == value.kind.value for *_, k in near), value
        assert any(value.domain in html.unescape(title) for _, title, *_ in near)


def test_sections_for_what_was_not_analyzed() -> None:
    """Unknown operations, those without a constant, and what data could have told."""
    text = report_html(result(coverage=opaque(), statistics={}))
    for words in ("aten.bessel", "core.j0", "no rule for aten.bessel", "aten.sign", "it jumps", "No data was given"):
        assert words in text


def test_findings_are_shown_gravest_first_and_grouped() -> None:
    """Those of one rule together; whether the doctor was asked is said."""
    text = report_html(result(), findings=FINDINGS)
    assert text.index("NS1") < text.index("NS2")
    assert "&lt;norm&gt;" in text
    assert "at 2 places" in text
    assert "Fix:</strong> mend it" in text
    assert "ratio: 0.25" in text
    assert "No findings." in report_html(result(), findings=[])
    assert "No checks were run" in report_html(result())


@pytest.mark.turns(3)
def test_a_thousand_layers_stay_small(tmp_path: Path) -> None:
    """A thousand layers and as many normalizers: below 2.5 MB, every row on the page, the result inside."""
    found = deep(1000)
    path = save_html(found, tmp_path / "deep.html")
    assert path.stat().st_size < 2_500_000
    text = path.read_text()
    assert text.count('<tr class="layer"') == text.count('<tr class="normalizer"') == 1000
    assert read_back(text)["small"] == json.loads(found.to_json())


def test_the_same_result_gives_the_same_page() -> None:
    """No clock, no chance."""
    assert report_html(deep(40)) == report_html(deep(40))


def test_a_checkpoint_alone() -> None:
    """Its tensors are on the page and inside it."""
    checkpoint = {"name": "m.pt", "tensors": 1, "numbers": 4, "bytes": 16, "files": ["m.pt"]}
    found = CheckpointResult(checkpoint, (TensorResult("fc.weight", "matrix", (2, 2), "float32", 4),), {})
    text = report_html(found)
    assert "fc.weight" in text
    assert Outline(text).open == []
    assert read_back(text)["m.pt"] == json.loads(found.to_json())


def test_wrong_use() -> None:
    """No result, or facts that do not fit."""
    with pytest.raises(InputError, match="result of analyze"):
        report_html("result.json")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one result"):
        report_html({})
    with pytest.raises(ValueError, match="one cell for each of 2"):
        report_html({"a": result(), "b": result()}, facts={"accuracy": ["1 %"]})


def test_the_package_offers_it() -> None:
    """Under its public names."""
    assert normscope.report_html is report_html
    assert normscope.save_html is save_html


def test_vendored_files_are_what_they_are_said_to_be() -> None:
    """Digests, version and licence of the chart library; its licence is in every page."""
    said = (VENDOR / "VENDORED.md").read_text()
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() in said
    version = re.search(r"v([\d.]+)", (VENDOR / "uPlot.iife.min.js").read_text()[:80])
    assert version is not None
    assert f"| {version[1]} |" in said
    licence = (VENDOR / "LICENSE-uPlot.txt").read_text()
    assert licence.startswith("The MIT License")
    assert html.escape(licence.strip().splitlines()[-1], quote=False) in html.unescape(report_html(result()))


def test_rows_follow_the_network() -> None:
    """Layers and normalizers in one list, numbered from one; without places, layers come first."""
    assert [(r.place, r.name, r.role) for r in layer_rows(result())] == [
        (1, "fc", "layer"),
        (2, "norm", "normalizer"),
        (3, "out", "layer"),
    ]
    assert [r.name for r in layer_rows(replace(result(), depth=Depth()))] == ["fc", "out", "norm"]


def test_rows_hold_the_values_of_the_result() -> None:
    """The very same objects, and the facts in words."""
    fc, norm, out = layer_rows(result())
    found = result()
    assert (fc.proved, fc.attained, fc.folded) == (found.layers[0].upper, found.layers[0].lower, None)
    assert out.folded == found.layers[1].folded
    assert (norm.printed, norm.is_bound, norm.floor) == (
        found.normalizers[0].printed,
        False,
        found.normalizers[0].on_floor,
    )
    assert (norm.size, norm.note) == ("4 per group", "eps 1.000×10⁻⁵, least std seen 0.5")


def test_the_hottest_channels_come_first() -> None:
    """At most some of them, by how far they stand out in factor or variance."""
    rows, total = hot_rows(deep(20))
    assert (len(rows), total) == (HOTTEST, 40)
    assert [r["heat"] for r in rows] == sorted((r["heat"] for r in rows), reverse=True)
    ((only,), one) = hot_rows(result())
    assert (only["heat"], only["factor"], only["variance"], one) == (40.0, "9", "-", 1)


def test_side_by_side_leaves_out_what_nobody_has() -> None:
    """A constant that one of two results has is there, with a gap for the other."""
    rows = dict(compare_rows([result(), result(end_to_end={"global": None}, effect={})]))
    assert rows["certified, all inputs"][1] is None
    assert "printed (Corollary 11)" not in rows
    assert rows["bound with normalizers over bound without"][1] is None


def _panels() -> list[PanelResult]:
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
