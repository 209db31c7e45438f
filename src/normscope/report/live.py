"""The page of training runs: live during training, or static with the numbers inside."""

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from normscope.core.errors import listed
from normscope.core.number_text import digits
from normscope.monitor.run import Run
from normscope.report import embed
from normscope.report.html import GLOSSARY, LICENCE, policy, source, template
from normscope.report.numbers import page_float, plural, power_text
from normscope.report.table import Section, Table

STYLES = ("vendor/uPlot.min.css", "page/page.css", "page/watch.css")
_NAMES = ("charts", "theme", "watch_lines", "watch_charts", "watch")
SCRIPTS = ("vendor/uPlot.iife.min.js", *(f"page/{name}.js" for name in _NAMES))
#: Lines of a chart that are all drawn in colour; of more, the largest are.
FEW = 8


def render_live(state: Mapping[str, Any], data: Mapping[str, Any] | None = None, *, title: str = "") -> str:
    """Return the page of some runs.

    Args:
        state: everything but the lines of its charts, from :meth:`normscope.monitor.live.feed.LiveFeed.state`.
        data: the lines by the key of their chart, for a static page; ``None`` for a live one, which requests them.
        title: of the page; by default the names of the runs.

    >>> "No points yet" in render_live({"runs": [], "groups": [], "position": "", "shape": ""})
    True
    """
    from normscope import __version__

    live = data is None
    body, encoding = embed.packed({"live": live, "state": state, "data": data, "few": FEW})
    thinned = any(not block["exact"] for series in (data or {}).values() for block in series["runs"])
    return template("watch.html.j2").render(
        title=title or _title([run["name"] for run in state["runs"]]),
        state=state,
        live=live,
        thinned=thinned,
        few=FEW,
        line_descriptions=line_descriptions,
        nonfinite_warnings=lambda group: nonfinite_warnings(group, state["runs"]),
        last=last_text,
        glossary=GLOSSARY,
        version=__version__,
        policy=policy_of(live=live),
        style=Markup(source(*STYLES)),
        script=Markup(source(*SCRIPTS)),
        licence=source(LICENCE),
        encoding=encoding,
        data=Markup(body),
    )


def _title(names: list[str]) -> str:
    """Return the names of runs as a title.

    >>> _title(["a", "b", "c"]), _title(["a"]), _title(list("abcdef"))
    ('a, b and c', 'a', '6 runs')
    """
    if len(names) > 4:
        return f"{len(names)} runs"
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part) or "no run"


def policy_of(*, live: bool) -> str:
    """Return the content security policy of the page: its own script and style and, if it is live, its own server.

    >>> "connect-src 'self'" in policy_of(live=True), "connect-src" in policy_of(live=False)
    (True, False)
    """
    return policy(STYLES, SCRIPTS, "img-src data:; " + ("connect-src 'self'; " if live else ""))


def line_descriptions(group: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the descriptions of the lines of a chart, one for each group of equal ones.

    >>> line = {"kind": "attained", "words": "norm", "statement": "", "domain": ""}
    >>> [s["label"] for s in line_descriptions({"lines": [{"label": "a", **line}, {"label": "b", **line}]})]
    ['']
    """
    keys = ("words", "kind", "statement", "domain")
    different: dict[tuple[str, ...], list[str]] = {}
    for line in group["lines"]:
        different.setdefault(tuple(line[key] for key in keys), []).append(line["label"])
    return [
        {"label": "" if len(different) == 1 else listed(labels, 3), **dict(zip(keys, what, strict=True))}
        for what, labels in different.items()
    ]


def nonfinite_warnings(group: Mapping[str, Any], runs: list[Mapping[str, Any]]) -> list[str]:
    """Return warnings about numbers that are not finite and therefore not drawn."""
    found = [
        (run["name"], line["label"], *run["broken"][line["name"]])
        for run in runs
        for line in group["lines"]
        if line["name"] in run["broken"]
    ]
    warnings = [
        f"{run}, {label}: {plural(count, 'number')} not finite, first at step {step:,}"
        for run, label, count, step in found
    ]
    more = len(warnings) - 5
    return warnings[:5] + ([f"and {plural(more, 'line')} more with numbers that are not finite"] if more > 0 else [])


def last_text(run: Mapping[str, Any], name: str, log10: bool) -> str:
    """Return the last number of a metric as text, empty if the run does not have the metric.

    >>> last_text({"last": {"a": 3.0}}, "a", True), last_text({"last": {}}, "a", True)
    ('1000', '')
    """
    if name not in run["last"]:
        return ""
    number = float(run["last"][name])
    if math.isnan(number):
        return "not a number"
    if log10:
        return power_text(number)
    return page_float(number) if number >= 0 else digits(number)


def run_sections(run: Run) -> list[Section]:
    """Return a run as a section: its last step, its notes, and the first and last number of each metric."""
    rows = []
    for name in run.names:
        series = run.series(name)
        rows.append((name, str(len(series)), digits(float(series.values[0])), digits(float(series.values[-1]))))
    table = Table(("metric", "points", "first", "last"), tuple(rows), ("metric",))
    return [Section(f"{run.path}: {run.last_step} steps", lines=tuple(run.notes), table=table)]
