"""Studies of a paper as figures and tables: the charts with matplotlib (the extra ``plot``), the claims as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.core.errors import InputError
from normscope.core.files import write_text
from normscope.papers.study import STUDIES, Panel, Study, run_study
from normscope.papers.than2025.figures.setting import FIGURES
from normscope.report.figures import Reproduction
from normscope.report.figures import reproduce as reproduce_figure
from normscope.report.plot import figure_class

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Panels side by side.
COLUMNS = 3
#: Lines whose legend stands inside a chart; that of more stands below.
BESIDE = 4
#: A range of numbers as wide as this has powers of ten along its axis, a narrower one powers of two.
DECADES = 1000
#: Colours that people with any colour vision tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


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
    if name in FIGURES:
        return reproduce_figure(
            name, scale, out=out, data_root=data_root, seed=seed, certify=certify, progress=progress
        )
    if name not in STUDIES:
        raise InputError(f"Unknown figure or study {name!r}. Choose from: {', '.join((*FIGURES, *STUDIES))}.")
    figure_class()  # a missing matplotlib is reported before the work
    study = run_study(name, scale, seed=seed, data_root=data_root, progress=progress)
    place = Path(out) / f"{scale}-{seed}"
    text = json.dumps(study.to_dict(), indent=1, allow_nan=False) + "\n"
    written = write_text(place / f"{name}.json", text)
    pictures = [place / f"{name}.{ending}" for ending in ("png", "svg")]
    drawn = draw_study(study)
    for file in pictures:
        drawn.savefig(file, dpi=150)
    return Reproduction(study.to_dict(), list(study.evidence), (*pictures, written))


def draw_study(study: Study) -> Figure:
    """Draw the charts of a study, three in a row at most.

    Args:
        study: what was measured.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    count = len(study.panels)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    drawn: Figure = figure_class()(figsize=(4.6 * columns, 3.6 * rows), layout="constrained")
    for k, panel in enumerate(study.panels):
        _draw_panel(panel, drawn.add_subplot(rows, columns, k + 1))
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
    if len(panel.lines) > 1:
        if len(panel.lines) > BESIDE:
            ax.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        else:
            ax.legend(frameon=False, fontsize="x-small")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
