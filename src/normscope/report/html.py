"""The report as one self-contained HTML file: no network, no server, readable without scripts."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from normscope.core.errors import InputError, attempt
from normscope.core.files import write_text
from normscope.core.finding import Finding, order
from normscope.core.result import LayerResult, NormalizerResult, Result
from normscope.core.value import Kind, Value
from normscope.core.words import KINDS
from normscope.report import embed
from normscope.report.analysis import (
    EFFECTS,
    END_TO_END,
    Facts,
    around_section,
    checked_facts,
    compare_rows,
    effect_value,
    gap_section,
)
from normscope.report.architecture import ModuleBranch, architecture
from normscope.report.charts import Chart, depth_chart, overlay_chart, variance_chart
from normscope.report.numbers import (
    guarantee,
    kind_text,
    page_float,
    page_value,
    plural,
    power_text,
    short_guarantee,
    sort_key,
    with_powers,
)
from normscope.report.svg import static_svg
from normscope.report.table import Section
from normscope.report.verdict import verdict

if TYPE_CHECKING:
    from normscope.analysis.checkpoint import CheckpointResult
    from normscope.analysis.stored_results import PanelResult

#: The doctor's findings: on the one result, or on each by name; ``None`` if no checks were run.
Findings = Sequence[Finding] | Mapping[str, Sequence[Finding]] | None
#: Sources of the page that are put into it.
STYLES = ("vendor/uPlot.min.css", "page/page.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "page/charts.js", "page/tables.js", "page/theme.js", "page/page.js")
LICENCE = "vendor/LICENSE-uPlot.txt"
#: Most rows of the table of a chart's numbers.
CHART_ROWS = 300
#: Most hot channels the page lists.
HOTTEST = 20
#: The words beside numbers, and what they mean.
GLOSSARY: tuple[tuple[str, str], ...] = tuple((word, KINDS[word]) for word in KINDS if word != "measured")
_NO_TREE = ModuleBranch("", "", 1, 0, 0, (), 0, ())


def report_html(
    results: Result | CheckpointResult | Mapping[str, Result],
    *,
    findings: Findings = None,
    facts: Facts | None = None,
    sections: Sequence[Section] = (),
    panels: Sequence[PanelResult] = (),
    title: str = "",
) -> str:
    """Return a report as the text of one HTML file.

    Args:
        results: one result, or several by name, which are shown side by side; none if there are panels or sections.
        findings: findings of the one result, or of each by its name; ``None`` if no checks were run.
        facts: for several results more rows of their table, each a name and one cell per result.
        sections: more parts of the page, e.g. of a comparison.
        panels: what ``curvature``, ``bounds``, ``symmetry`` or ``weight_normalization.verify`` returned.
        title: of the page; by default the name of the model.

    Returns:
        The page; it holds the results, which :func:`normscope.report.embed.read_back` reads again.

    Raises:
        ValueError: if there is no result, or a row of facts does not have one cell per result.

    >>> from normscope.core.result import Coverage
    >>> page = report_html(Result({"name": "<tiny>"}, {}, Coverage(0, 0, 1.0, 0), (), (), {}))
    >>> "&lt;tiny&gt;" in page, "<tiny>" in page
    (True, False)
    """
    if not isinstance(results, Mapping | Result):
        if getattr(results, "checkpoint", None) is None:
            raise InputError(f"Expected one result of analyze, or several by name, got {type(results).__name__}.")
        return _weights_page(results, title)
    named = {str(results.model.get("name") or "model"): results} if isinstance(results, Result) else dict(results)
    if not named and not panels and not sections:
        raise ValueError("Expected at least one result.")
    said: dict[str, Any] = {name: r.findings for name, r in named.items()}
    if findings is not None:
        said |= findings if isinstance(findings, Mapping) else dict.fromkeys(list(named)[:1], findings)
    named = {name: replace(r, findings=None if said[name] is None else tuple(said[name])) for name, r in named.items()}
    views = [_view(i, name, result) for i, (name, result) in enumerate(named.items())]
    charts = [v[key] for v in views for key in ("depth", "variances") if v[key] is not None]
    overlay = overlay_chart(named, "overlay") if len(named) > 1 else None
    sections = [*sections, *(panel_sections(panels) if panels else ())]
    return _page(
        title or " and ".join(named) or sections[0].title,
        sections,
        [{"name": v["name"], "result": v["result"].to_dict()} for v in views],
        [*charts, *([overlay] if overlay else []), *(s.chart for s in sections if s.chart is not None)],
        views=views,
        overlay=overlay,
        compared=compare_rows(list(named.values())) if len(named) > 1 else (),
        facts=checked_facts(facts or {}, len(named)),
    )


def save_html(
    results: Result | CheckpointResult | Mapping[str, Result], path: str | os.PathLike[str], **rest: Any
) -> Path:
    """Write a report atomically: the whole file or nothing.

    Args:
        results: as for :func:`report_html`.
        path: the file.
        **rest: as for :func:`report_html`.

    Returns:
        The file.
    """
    return write_text(path, report_html(results, **rest))


def _view(index: int, name: str, result: Result) -> dict[str, Any]:
    """Return the variables of the template for one result."""
    told: list[str] = []
    hot, total = attempt("the hot channels", lambda: hot_rows(result), ([], 0), told)
    id, blocks, normalizers, around = f"r{index}", result.blocks, result.normalizers, result.around
    view: dict[str, Any] = {
        "id": id,
        "name": name,
        "verdict": verdict(result),
        "findings": None if result.findings is None else grouped(result.findings),
        "rows": attempt("the table of layers", lambda: layer_rows(result), [], told),
        "depth": attempt("the chart along depth", lambda: depth_chart(result, f"{id}-depth"), None, told),
        "variances": attempt("the chart of variances", lambda: variance_chart(result, f"{id}-variances"), None, told),
        "tree": attempt("the tree of modules", lambda: architecture(blocks, normalizers), _NO_TREE, told),
        "around": attempt("what holds around the data", lambda: around and around_section(around), None, told),
        "gap": attempt("where the gap comes from", lambda: result.gap and gap_section(result.gap), None, told),
        "hot": hot,
        "hot_total": total,
    }
    return view | {"result": replace(result, messages=(*result.messages, *told)) if told else result}


def panel_sections(panels: Sequence[PanelResult]) -> list[Section]:
    """Return the sections of panels in order, with whole tables and a unique name for each chart."""
    from normscope.curvature.result import CurvatureResult  # late: they need torch, a page does not
    from normscope.geometry.discover import Symmetries

    found: list[Section] = []
    for panel in panels:
        shortened = isinstance(panel, CurvatureResult | Symmetries)
        found += panel.sections(everything=True) if shortened else panel.sections()
    return [
        section if section.chart is None else replace(section, chart=replace(section.chart, id=f"panel{k}"))
        for k, section in enumerate(found)
    ]


def _weights_page(result: CheckpointResult, title: str) -> str:
    """Return the report on a checkpoint without its model: its sections as they are."""
    from normscope.report.checkpoint import checkpoint_sections

    name = str(result.checkpoint["name"])
    sections = checkpoint_sections(result, everything=True)
    return _page(title or name, sections, [{"name": name, "result": result.to_dict()}])


def _page(
    title: str,
    sections: Sequence[Section],
    results: Sequence[Mapping[str, Any]],
    charts: Sequence[Chart] = (),
    *,
    views: Sequence[Mapping[str, Any]] = (),
    overlay: Chart | None = None,
    compared: Sequence[tuple[str, list[Value | None]]] = (),
    facts: Facts | None = None,
) -> str:
    """Fill the template; what a page does not have is left out."""
    from normscope import __version__

    data, encoding = embed.packed({"format": embed.FORMAT, "version": embed.VERSION, "results": list(results)})
    return template("report.html.j2").render(
        title=title,
        views=views,
        sections=sections,
        overlay=overlay,
        compared=[row for row in compared if not _is_printed(row[1])],
        papers=[row for row in compared if _is_printed(row[1])],
        facts=facts or {},
        version=__version__,
        glossary=GLOSSARY,
        end_to_end=END_TO_END,
        effects=EFFECTS,
        policy=policy(STYLES, SCRIPTS),
        style=Markup(source(*STYLES)),
        script=Markup(source(*SCRIPTS)),
        licence=source(LICENCE),
        element=embed.ELEMENT,
        encoding=encoding,
        data=Markup(data),
        charts=Markup(embed.script_json({c.id: c.to_dict() for c in charts})),
    )


@functools.cache
def source(*names: str) -> str:
    """Return the text of files that are part of the package, one after the other."""
    return "\n".join(files("normscope.report").joinpath(name).read_text(encoding="utf-8") for name in names)


def policy(styles: Sequence[str], scripts: Sequence[str], more: str = "") -> str:
    """Return the content security policy of a page: its own styles and scripts, and what more is allowed."""
    own = f"script-src {embed.digest(source(*scripts))}; style-src {embed.digest(source(*styles))}"
    return f"default-src 'none'; {own}; {more}base-uri 'none'; form-action 'none'"


@functools.cache
def template(name: str) -> jinja2.Template:
    """Return the template of a page; everything put into it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: source(f"page/{name}")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": page_value,
        "power": power_text,
        "plain": page_float,
        "guarantee": guarantee,
        "short": short_guarantee,
        "key": sort_key,
        "kind": kind_text,
        "count": "{:,}".format,
        "static_svg": lambda chart: Markup(static_svg(chart)),
        "code": with_code,
        "powers": with_powers,
        "whole": whole_sentence,
    }
    environment.globals |= {"plural": plural, "effect_value": effect_value, "thinned": thinned, "infinity": math.inf}
    return environment.get_template(name)


def with_code(text: str) -> Markup:
    """Return a text as HTML, with code between backticks marked up.

    >>> str(with_code("run `normscope fix` if a < b"))
    'run <code>normscope fix</code> if a &lt; b'
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def whole_sentence(text: str) -> str:
    """Return a line with a capital letter and a full stop.

    >>> whole_sentence("each row is a step"), whole_sentence("||W|| is fixed."), whole_sentence("so it is:")
    ('Each row is a step.', '||W|| is fixed.', 'So it is:')
    """
    return text[:1].upper() + text[1:] + ("" if text[-1:] in ".:!?" else ".")


def _is_printed(values: Iterable[Value | None]) -> bool:
    return any(value is not None and value.kind is Kind.PRINTED for value in values)


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings by rule and severity, most severe first.

    >>> from normscope.core.finding import Severity
    >>> found = [Finding(code, Severity.INFO, place, "m") for code, place in (("B", "x"), ("A", "y"), ("B", "z"))]
    >>> [[f.place for f in group] for group in grouped(found)]
    [['y'], ['x', 'z']]
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in order(findings):
        groups.setdefault((finding.code, finding.severity.value), []).append(finding)
    return list(groups.values())


def thinned(chart: Chart) -> list[int]:
    """Return the places of a chart whose numbers are listed, evenly thinned if there are many.

    >>> thinned(Chart("c", "", ("a",) * 3, ()))
    [0, 1, 2]
    """
    count = len(chart.places)
    step = max(1, -(-count // CHART_ROWS))
    return sorted({*range(0, count, step), count - 1})


@dataclass(frozen=True)
class LayerTableRow:
    """One layer or normalizer, the ``place``-th of the network."""

    place: int
    name: str
    role: str  #: ``layer`` or ``normalizer``
    what: str  #: kind of layer or normalizer
    size: str  #: shape of the weight, or size of a normalizer's group
    note: str  #: how it was found, or facts
    proved: Value
    attained: Value | None = None
    folded: Value | None = None  #: norm together with the normalizer after it
    floor: Value | None = None  #: certified bound on the variance floor of the data
    printed: Value | None = None  #: the formula printed in the paper, and whether it is a bound, if known
    is_bound: bool | None = None


def layer_rows(result: Result) -> list[LayerTableRow]:
    """Return every layer and normalizer, in the order of the network."""
    order = {name: place for place, name in enumerate(result.depth.names)}
    items: list[LayerResult | NormalizerResult] = [*result.layers, *result.normalizers]
    items.sort(key=lambda item: order.get(item.name, len(order)))
    return [
        _layer_row(i, item) if isinstance(item, LayerResult) else _normalizer_row(i, item)
        for i, item in enumerate(items, 1)
    ]


def _layer_row(place: int, x: LayerResult) -> LayerTableRow:
    """Return the row of a linear layer; in the paper, the factor of a layer is its norm."""
    shape = "×".join(map(str, x.shape))
    note = f"certificate: {x.method}" if x.method else ""
    return LayerTableRow(place, x.name, "layer", x.kind, shape, note, x.upper, x.attained, x.folded)


def _normalizer_row(place: int, n: NormalizerResult) -> LayerTableRow:
    group = n.details.get("group_size") or n.details.get("channels")
    size = "" if group is None else f"{group:,} per group" if "group_size" in n.details else f"{group:,} channels"
    facts = [f"eps {page_float(n.details['eps'])}"] if "eps" in n.details else []
    if n.floor is not None:
        facts.append(f"least std seen {page_float(n.floor)}")
    elif "std_min" in n.details:
        facts.append(f"least running std {page_float(n.details['std_min'])}")
    if n.details.get("written_out"):
        facts.append("written in plain arithmetic")
    said = (n.kind.replace("_", " "), size, ", ".join(facts))
    return LayerTableRow(
        place, n.name, "normalizer", *said, n.proved, None, None, n.on_floor, n.printed, n.printed_is_bound
    )


def hot_rows(result: Result) -> tuple[list[dict[str, Any]], int]:
    """Return the hottest channels of the network, hottest first, as the page shows them, and how many there are."""
    found = [(n, item) for n in result.normalizers for item in n.details.get("hot_channels", ())]
    found.sort(key=lambda pair: -_heat(pair[1]))
    keys = ("factor", "factor_over_median", "variance", "variance_over_median")
    rows = [
        {"name": n.name, "kind": n.kind.replace("_", " "), "channel": int(item["channel"]), "heat": _heat(item)}
        | {key: page_float(item.get(key)) for key in keys}
        for n, item in found[:HOTTEST]
    ]
    return rows, len(found)


def _heat(item: Mapping[str, Any]) -> float:
    """Return the larger of a channel's factor and variance over their medians."""
    return max(item.get("factor_over_median") or 0.0, item.get("variance_over_median") or 0.0)
