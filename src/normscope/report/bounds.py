"""Generalization bounds as a table, as a chart of the report page, and drawn with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normscope.analysis.bounds.result import BoundRow, BoundsResult, shown
from normscope.generalization.bench.run import BenchResult, Trial
from normscope.report.charts import Chart, ChartLine, log10_of
from normscope.report.plot import BLUE, ORANGE, PURPLE, grid, open_frame
from normscope.report.table import Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = ("bound", "error at most", "", "status", "of", "statement")
_BENCH = ("problem", "draws", "violations", "p-value", "mean bound", "mean risk", "verdict")
#: How the page draws each status.
_STYLES = {"certificate": "global", "estimate": "lower", "scale only": "printed"}
_LEFT = ("bound", "", "status", "of", "statement")
_COLOURS = {"certificate": BLUE, "estimate": ORANGE, "scale only": PURPLE}
#: Raw margins divided by one number for all samples: each gives the same line once divided by its median.
_MULTIPLES = ("certified distance", "over spectral complexity")
#: Layers whose margins are drawn.
_LAYERS = 4


def bounds_sections(result: BoundsResult) -> list[Section]:
    """Return the errors, the bounds and the margins as sections."""
    truth = result.truth
    lines = (
        f"training error {truth['train_error']:.4g} ({truth['train_samples']} samples), test error "
        f"{truth['test_error']:.4g} ({truth['test_samples']} samples), gap {truth['gap']:.4g}",
        f"each certificate fails with probability at most {truth['delta']:g}",
    )
    table = Table(_COLUMNS, tuple(map(_cells, result.rows)), _LEFT)
    same: dict[str, list[str]] = {}
    for row in result.rows:
        same.setdefault(row.reason, []).append(row.name)
    notes = [f"{'; '.join(names)}: {reason}" for reason, names in same.items() if reason]
    best = result.best
    if best is not None:
        notes.insert(0, f"best certificate for this network: {best.name}, error at most {shown(best.bound)}")
    said = (*notes, *result.messages)
    sections = [Section(f"generalization bounds of {result.model}", lines, table, said, _chart(result))]
    if result.margins:
        sections.append(_margins(result.margins))
    return sections


def _cells(row: BoundRow) -> tuple[str, ...]:
    vacuous = "" if row.bound is None else "vacuous" if row.vacuous else "informative"
    return (row.name, shown(row.bound), vacuous, row.status, row.of if row.bound is not None else "", row.statement)


def _margins(margins: Mapping[str, Any]) -> Section:
    names = [str(key) for key in margins["raw"]]
    rows = tuple(
        (name, *(f"{values[q]:.3g}" for q in names)) if "refused" not in values else (name, *[""] * len(names))
        for name, values in margins.items()
    )
    columns = ("margin", *(f"{100 * float(q):g} %" for q in names))
    notes = tuple(f"{name}: {values['refused']}" for name, values in margins.items() if "refused" in values)
    return Section("margins on the training data, quantiles", table=Table(columns, rows, ("margin",)), after=notes)


def _chart(result: BoundsResult) -> Chart | None:
    """Return every bound beside the test error, one line per status."""
    rows = [(row, row.bound.log10) for row in result.rows if row.bound is not None]
    if not rows:
        return None
    lines = tuple(
        ChartLine(style, status, status, status, tuple(log10 if row.status == status else None for row, log10 in rows))
        for status, style in _STYLES.items()
        if any(row.status == status for row, _ in rows)
    )
    error = float(result.truth["test_error"])
    names = tuple(row.name for row, _ in rows)
    return Chart(
        "bounds", "Every bound on the error", names, lines, ("bound",) * len(names), log10_of(error),
        f"test error {error:.4g}", "bound", "error at most",
    )  # fmt: skip


def plot_bounds(result: BoundsResult) -> Figure:
    """Draw every bound beside the test error, and the quantiles of the margins, each over its median.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    drawn, ((left, right),) = grid(2, 5.5, 5.0)
    _draw_bounds(result, left)
    for name in _drawn(result):
        values = result.margins[name]
        right.plot([float(q) for q in values], [v / values["0.5"] for v in values.values()], marker="o", label=name)
    right.axhline(0.0, color="0.7", linewidth=0.8)
    right.set_xlabel("share of the training samples")
    right.set_ylabel("margin over its median")
    if right.lines:
        right.legend(frameon=False, fontsize="x-small", loc="lower right")
    for ax in (left, right):
        open_frame(ax)
    return drawn


def _drawn(result: BoundsResult) -> list[str]:
    """Return the margins to draw: none that is a multiple of another, and at most a few layers."""
    known = [n for n, v in result.margins.items() if n not in _MULTIPLES and v.get("0.5", 0.0) > 0]
    layers = [n for n in known if n.startswith("distance in ")]
    few = {layers[round(i * (len(layers) - 1) / (_LAYERS - 1))] for i in range(_LAYERS)} if layers else set()
    return [n for n in known if n in few or n not in layers]


def _draw_bounds(result: BoundsResult, ax: Axes) -> None:
    """Draw a point for every bound on a logarithmic axis."""
    rows = [r for r in result.rows if r.bound is not None][::-1]
    for status, colour in _COLOURS.items():
        chosen = [(r.bound.log10, i) for i, r in enumerate(rows) if r.status == status and r.bound is not None]
        if chosen:
            ax.scatter(*zip(*chosen, strict=True), color=colour, label=status, zorder=3)
    error = result.truth["test_error"]
    if error > 0:
        ax.axvline(math.log10(error), color="0.3", linestyle="--", linewidth=1.0, label="test error")
    ax.axvline(0.0, color="0.8", linewidth=0.8)
    ax.set_yticks(range(len(rows)), [r.name for r in rows], fontsize="x-small")
    ax.set_xlabel("log10 of the bound on the error")
    ax.legend(frameon=False, fontsize="x-small")


def bench_sections(result: BenchResult) -> list[Section]:
    """Return the verdict on a bound, then its trial on each problem."""
    verdict = (
        f"broken: it fails more often than {100 * result.delta:g} % of the time"
        if result.broken
        else f"not broken: on no problem does it fail more often than {100 * result.delta:g} % of the time"
    )
    table = Table(_BENCH, tuple(map(_trial, result.trials)), ("problem", "verdict"))
    return [Section(f"the bound {result.name} on problems of known risk", (verdict,), table)]


def _trial(trial: Trial) -> tuple[str, ...]:
    if not trial.draws:
        return (trial.problem, "", "", "", "", "", "no bound")
    verdict = "broken" if trial.broken else "holds"
    numbers = (f"{trial.p_value:.2g}", f"{trial.bound:.4g}", f"{trial.risk:.4g}")
    return (trial.problem, str(trial.draws), str(trial.violations), *numbers, verdict)
