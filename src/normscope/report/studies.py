"""Figures and studies of the papers, done again: charts with matplotlib (the extra ``plot``), claims as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.core.errors import InputError
from normscope.core.files import write_text
from normscope.core.number_text import digits
from normscope.papers.study import STUDIES, Evidence, Panel, Study, run_study
from normscope.papers.than2025.figures.evidence import evidence_of, facts
from normscope.papers.than2025.figures.record import record
from normscope.papers.than2025.figures.setting import FIGURES, settings_of
from normscope.report.figures import draw
from normscope.report.plot import figure_class, grid, open_frame
from normscope.report.table import Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Lines whose legend stands inside a chart; that of more stands below.
BESIDE = 4
#: A range of numbers as wide as this has powers of ten along its axis, a narrower one powers of two.
DECADES = 1000
#: Colours that people with any colour vision tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_WORDS = {True: "agrees", False: "does not", None: "not claimed"}


@dataclass(frozen=True)
class Reproduction:
    """A figure or an experiment of a paper, done again."""

    facts: dict[str, Any]  #: the claims and measurements, as JSON has them
    evidence: list[Evidence]  #: each claim beside what was measured
    files: tuple[Path, ...]  #: the pictures and the JSON file that were written


def reproduce(
    name: str,
    scale: str = "laptop",
    *,
    out: str | Path = "normscope-reproduce",
    data_root: str | Path | None = None,
    seed: int = 0,
    certify: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Reproduction:
    """Reproduce a figure or an experiment of a paper, draw it, and write charts, numbers and claims to a folder.

    Args:
        name: ``fig1``, ``fig2`` or ``fig3`` of Than 2025, or a study, e.g. ``wn-depth``.
        scale: ``smoke`` (seconds to a minute), ``laptop`` (at most half an hour) or, for figures, ``long``
            (hours) and ``paper``.
        out: folder for the files; a figure resumes where an earlier call stopped.
        data_root: folder of MNIST or CIFAR-10.
        seed: random seed; the first one if a study runs several.
        certify: bound the networks of a figure at start and end.
        progress: called with a line of text at each step.

    Raises:
        InputError: if the name or the scale is unknown, or the data are not found.
        MissingDependencyError: if matplotlib is not installed.
    """
    if name not in (*FIGURES, *STUDIES):
        raise InputError(f"Unknown figure or study {name!r}. Choose from: {', '.join((*FIGURES, *STUDIES))}.")
    figure_class()  # a missing matplotlib is reported before the work
    place = Path(out) / f"{scale}-{seed}"
    if name in FIGURES:
        settings, root = settings_of(name, scale, seed), None if data_root is None else Path(data_root)
        runs = {s.name: record(s, place / s.name, root=root, progress=progress, certify=certify) for s in settings}
        evidence = evidence_of(name, runs, place)
        found = facts(name, scale, settings, evidence, certify=certify, located=root is not None)
        progress("drawing")
        drawn = draw(name, runs)
    else:
        study = run_study(name, scale, seed=seed, data_root=data_root, progress=progress)
        evidence, found, drawn = list(study.evidence), study.to_dict(), draw_study(study)
    written = write_text(place / f"{name}.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    pictures = [place / f"{name}.{ending}" for ending in ("png", "svg")]
    for file in pictures:
        drawn.savefig(file, dpi=150)
    return Reproduction(found, evidence, (*pictures, written))


def evidence_section(figure: str, scale: str, evidence: Sequence[Evidence]) -> Section:
    """Return the claims around a figure or study, beside the measurements, as a section.

    >>> from normscope.report.table import plain_text
    >>> print(plain_text([evidence_section("fig1", "smoke", [Evidence("norms grow", "net", {"share": 0.5}, True)])]))
    fig1, smoke scale
      claim       network  measured   the run
      norms grow  net      share 0.5  agrees
    """
    columns = ("claim", "network", "measured", "the run")
    rows = tuple(
        (e.claim, e.network, ", ".join(f"{key} {digits(float(x))}" for key, x in e.measured.items()), _WORDS[e.agrees])
        for e in evidence
    )
    return Section(f"{figure}, {scale} scale", table=Table(columns, rows, frozenset(columns)))


def draw_study(study: Study) -> Figure:
    """Draw the charts of a study, three in a row at most."""
    drawn, (axes,) = grid(len(study.panels), 4.6, 3.6)
    for panel, ax in zip(study.panels, axes, strict=True):
        _draw_panel(panel, ax)
    return drawn


def _draw_panel(panel: Panel, ax: Axes) -> None:
    """Draw one chart: lines with the range over seeds, dashed where they are bounds or formulas."""
    for colour, line in zip(COLOURS * 3, panel.lines, strict=False):
        marker = "o" if len(line.x) < 12 else None
        style = "--" if line.dashed else "-"
        ax.plot(line.x, line.y, style, color=colour, label=line.label, marker=marker, markersize=3, linewidth=1.3)
        if line.low is not None and line.high is not None:
            ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if panel.log_x:
        places = [x for line in panel.lines for x in line.x]
        ax.set_xscale("log", base=10 if max(places) > DECADES * min(places) else 2)
    if panel.log_y:
        ax.set_yscale("log")
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    ax.set_title(panel.title, loc="left", fontsize="medium")
    if len(panel.lines) > BESIDE:
        ax.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    elif len(panel.lines) > 1:
        ax.legend(frameon=False, fontsize="x-small")
    open_frame(ax)
