"""The report in a real browser: numbers as in result.json, sorting, filtering, folding, tooltips, themes, widths."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from normscope.report.numbers import kind_text, page_value, power_text

Visit = Callable[..., Any]
NETWORKS = ("mlp", "resnet50", "transformer")


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_numbers_are_those_of_the_file(visit: Visit, name: str) -> None:
    """Nothing is complained about, and each end-to-end constant and each layer shows the number of result.json."""
    page = visit(name)
    assert page.complaints() == []
    found = page.result
    for key, value in found.end_to_end.items():
        cells = page.all(f'td[data-key="{key}"] data')
        if value is None or not cells:
            assert value is None or key == "corollary_10"  # the first form equals Theorem 9 and has no row
            continue
        assert cells[0].get_attribute("textContent") == page_value(value)  # also what is folded away
        assert float(cells[0].get_attribute("value")) == pytest.approx(value.log10, rel=1e-8, abs=1e-12)
    rows = {row[1].removeprefix("◆ "): row for row in _rows(page)}
    assert len(rows) == len(found.layers) + len(found.normalizers)
    for layer in found.layers:
        assert f"{page_value(layer.upper)} {kind_text(layer.upper)}" in rows[layer.name]
        assert f"{page_value(layer.lower)} {kind_text(layer.lower)}" in rows[layer.name]
    for normalizer in found.normalizers:
        assert f"{page_value(normalizer.proved)} certified" in rows[normalizer.name]
    inside = page.driver.execute_async_script("normscope.results().then(arguments[0])")
    assert inside["results"][0]["result"] == json.loads(found.to_json())


def _rows(page: Any) -> list[list[str]]:
    """Return the texts of the shown rows of the layer table."""
    return page.run(
        "return [...document.querySelectorAll('.layers tbody tr')].filter(r => !r.hidden)"
        ".map(r => [...r.cells].map(c => c.textContent.trim().replace(/\\s+/g, ' ')))"
    )


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", [*NETWORKS, "odd"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_fits_its_width(visit: Visit, name: str, width: int) -> None:
    """No horizontal scrolling of the page; every chart is drawn as wide as its box."""
    page = visit(name, width=width)
    assert page.run("return document.documentElement.scrollWidth") == width
    for chart in page.all("figure.chart"):
        assert page.run("return arguments[0].querySelector('canvas').clientWidth", chart) > 0.8 * width - 320
        assert page.run("const c = arguments[0]; return c.scrollWidth <= c.clientWidth", chart)


def test_sorting(visit: Visit) -> None:
    """A press on a heading sorts by the numbers behind the cells, downwards first; again, upwards; empty cells last."""
    page = visit("transformer")
    headings = page.all(".layers thead th")
    column = next(i for i, h in enumerate(headings) if h.text == "certified, data floor")
    button = page.all(".layers thead th button")[column]
    keys = (
        "return [...document.querySelectorAll('.layers tbody tr')].map(r => r.cells[arguments[0]])"
        ".map(c => c.querySelector('data')).map(d => d ? Number(d.value) : null)"
    )
    for order, reverse in (("descending", True), ("ascending", False)):
        button.click()
        assert headings[column].get_attribute("aria-sort") == order
        values = page.run(keys, column)
        known = [v for v in values if v is not None]
        assert known == sorted(known, reverse=reverse)
        assert len(known) == len(page.result.normalizers)
        assert values[: len(known)] == known
    page.all(".layers thead th button")[0].send_keys(Keys.ENTER)
    assert headings[column].get_attribute("aria-sort") == "none"
    assert _rows(page)[0][0] == str(len(page.result.layers) + len(page.result.normalizers))


def test_filtering(visit: Visit) -> None:
    """By name and by kind; how many rows fit is said."""
    page = visit("resnet50")
    page.one(".filter input").send_keys("layer2.1")
    expected = [x.name for x in (*page.result.layers, *page.result.normalizers) if "layer2.1" in x.name]
    assert sorted(row[1].removeprefix("◆ ") for row in _rows(page)) == sorted(expected)
    total = len(page.result.layers) + len(page.result.normalizers)
    assert page.one(".filter output").text == f"{len(expected)} of {total} rows"
    page.one('.filter option[value="normalizer"]').click()
    assert {row[2] for row in _rows(page)} == {"batch norm"}
    page.one(".filter input").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    assert len(_rows(page)) == len(page.result.normalizers)


def test_folding(visit: Visit) -> None:
    """Equal blocks are shown once, every normalizer is marked, and all folds open and close."""
    page = visit("transformer")
    marks = page.texts(".tree .leaf .mark")
    assert [mark.split(":")[0] for mark in marks] == ["◆ layer norm ×6", "◆ layer norm ×6", "◆ layer norm"]
    assert "×6" in page.texts(".tree .repeat")
    state = "return [...document.querySelectorAll('.tree details')].map(d => d.open)"
    page.one('[data-fold="open"]').click()
    assert all(page.run(state))
    page.one('[data-fold="close"]').click()
    assert not any(page.run(state))


@pytest.mark.turns(2)
def test_tooltips_and_keys(visit: Visit) -> None:
    """Under the pointer and with the arrow keys the chart tells place and numbers, with their kinds."""
    page = visit("mlp")
    plot = page.one("#r0-depth .plot")
    page.run("arguments[0].scrollIntoView({block: 'center'})", plot)
    ActionChains(page.driver).move_to_element(page.one("#r0-depth .u-over")).perform()
    tip = page.one("#r0-depth .tip")
    assert tip.is_displayed()
    assert tip.text.splitlines()[0] in page.result.depth.names
    ActionChains(page.driver).move_to_element(page.one("#r0-h-depth")).perform()
    page.run("arguments[0].focus()", plot)
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    spoken = page.one("#r0-depth .spoken").get_attribute("textContent")
    assert spoken.startswith(f"{page.result.depth.names[2]}: ")
    for curve, label in (("global", "certified, all inputs"), ("lower", "attained")):
        value = page.result.depth.value(curve, 2)
        assert f"{label} {page_value(value)} {kind_text(value)}" in spoken
        assert page_value(value) in tip.text
    plot.send_keys(Keys.END)
    total = page.result.end_to_end["global"]
    assert total is not None
    assert page_value(total) in page.one("#r0-depth .spoken").get_attribute("textContent")


@pytest.mark.turns(2)
def test_lines_can_be_hidden_and_the_chart_zoomed(visit: Visit) -> None:
    """The legend takes lines away; dragging zooms, and a button shows the whole width again."""
    page = visit("mlp")
    button = page.one("#r0-depth .legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.run("return normscope.charts[0].plot.series[1].show") is False
    over = page.one("#r0-depth .u-over")
    page.run("arguments[0].scrollIntoView({block: 'center'})", over)
    ActionChains(page.driver).move_to_element(over).click_and_hold().move_by_offset(120, 0).release().perform()
    scale = "const {min, max} = normscope.charts[0].plot.scales.x; return [min, max]"
    low, high = page.run(scale)
    assert high - low < 0.5 * len(page.result.depth.names)
    page.one("#r0-depth .reset").click()
    assert page.run(scale) == [0, len(page.result.depth.names) - 1]


def test_script_and_page_write_numbers_alike(visit: Visit) -> None:
    """The two places that turn a logarithm into text agree, at every size."""
    page = visit("mlp")
    logs = [-4000.25, -300.5, -3.0, -2.9999, -0.5, 0.0, 0.30103, 3.99999, 4.0, 5.9999999, 14.59, 250.0, 3295.67]
    assert page.run("return arguments[0].map(normscope.text)", logs) == [power_text(x) for x in logs]
    assert page.run("return normscope.text('inf')") == power_text(math.inf)


def test_dark_and_light(visit: Visit) -> None:
    """The system's choice is followed, the button turns it round, and text stays readable on its ground."""
    colours = (
        "const s = (x) => getComputedStyle(document.querySelector(x));"
        "return [s(':root').backgroundColor, s(':root').color, s('.quiet').color, s('.mark').color]"
    )
    grounds = []
    for dark in (False, True):
        page = visit("mlp", dark=dark)
        ground, *inks = page.run(colours)
        grounds.append(ground)
        assert all(_contrast(ground, ink) >= 4.5 for ink in inks)
    page.one("#theme").click()
    assert page.run(colours)[0] == grounds[0] != grounds[1]
    assert page.one("#theme").get_attribute("aria-pressed") == "false"
    assert page.complaints() == []


def _contrast(a: str, b: str) -> float:
    """Return the contrast of two colours by the formula of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_without_scripts(visit: Visit) -> None:
    """Verdict, still charts and every row are there; controls that would do nothing are not."""
    page = visit("mlp", script=False)
    assert page.one(".headline").text.startswith("Moving the input by 1 moves the output by at most")
    assert len([svg for svg in page.all("svg.still") if svg.is_displayed()]) == 2
    assert len(page.all(".layers tbody tr")) == 19
    assert not any(element.is_displayed() for element in page.all(".js"))


def test_printing(visit: Visit) -> None:
    """On paper the charts are the still pictures, on white, and long tables are not cut."""
    page = visit("transformer", dark=True)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.one("#r0-depth svg.still").is_displayed()
    assert not page.one("#r0-depth canvas").is_displayed()
    assert page.run("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("const t = document.querySelector('.tall'); return t.scrollHeight <= t.clientHeight + 2")


def test_side_by_side(visit: Visit) -> None:
    """Two results: one table, one chart with both, a part for each, findings where they belong."""
    page = visit("mlp", twice=True)
    assert page.complaints() == []
    assert page.texts(".verdicts dt") == ["first", "second"]
    assert page.run("return normscope.charts.length") == 5
    assert len(page.all("#r0 .findings li")) == 1
    assert "No checks were run" in page.one("#r1").text
    page.one('.verdicts a[href="#r1"]').click()
    assert page.run("return location.hash") == "#r1"


@pytest.mark.turns(3)
def test_a_thousand_layers_are_usable(visit: Visit) -> None:
    """Drawn, sorted and filtered without complaint, each within a second or so."""
    page = visit("deep")
    assert page.complaints() == []
    assert len(page.all(".layers tbody tr")) == 2000
    timing = page.run(
        "const t = performance.now(); document.querySelectorAll('.layers thead th button')[5].click();"
        "const s = performance.now(); const i = document.querySelector('.filter input'); i.value = 'blocks.99';"
        "i.dispatchEvent(new Event('input', {bubbles: true})); return [s - t, performance.now() - s]"
    )
    assert max(timing) < 3000
    assert len(_rows(page)) == 20
    inside = page.driver.execute_async_script("normscope.results().then(arguments[0])")
    assert len(inside["results"][0]["result"]["layers"]) == 1000


def test_nothing_leaves_the_page(visit: Visit) -> None:
    """The policy forbids every request, and the page makes none."""
    page = visit("mlp")
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    refused = page.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/x').then(() => done('sent'), () => done('refused'))"
    )
    assert refused == "refused"
    assert any("Content Security Policy" in text for text in page.complaints())


@pytest.mark.turns(3)
def test_a_chart_can_be_fed_live(visit: Visit) -> None:
    """New data, also 100,000 points, is drawn at once; what the reader zoomed into stays."""
    page = visit("mlp")
    spent = page.run(
        "const chart = normscope.charts[0], lines = chart.plot.series.length - 1, n = 100000;"
        "const wave = (k) => Array.from({length: n}, (_, i) => k + Math.sin(i / 1000));"
        "const data = {title: 'live', places: Array.from({length: n}, (_, i) => `step ${i * 10}`), kinds: [],"
        " x: Array.from({length: n}, (_, i) => i * 10), lines: Array.from({length: lines}, (_, k) =>"
        " ({style: 'global', label: `run ${k}`, kind: 'measured', log10: wave(k), gaps: false}))};"
        "const t = performance.now(); chart.update(data); window.fed = data; return performance.now() - t"
    )
    assert spent < 3000
    assert page.run("return normscope.charts[0].plot.data[0].length") == 100_000
    page.run("normscope.charts[0].plot.setScale('x', {min: 5000, max: 9000})")
    page.run("return new Promise((done) => setTimeout(done, 50))")
    page.run("normscope.charts[0].update(window.fed)")
    assert page.run("const {min, max} = normscope.charts[0].plot.scales.x; return [min, max]") == [5000, 9000]
    assert page.complaints() == []


def test_tables_are_cards_on_a_phone(visit: Visit) -> None:
    """Nothing is cut off at the side: each cell says what it is, and no table is wider than its box."""
    page = visit("mlp", width=390)
    wide = "return [...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1).length"
    assert page.run(wide) == 0
    label = "return getComputedStyle(document.querySelector('td[data-key=global]'), '::before').content"
    assert page.run(label) == '"value: "'
    wide_screen = visit("mlp", width=1440)
    assert wide_screen.run(label) == "none"
