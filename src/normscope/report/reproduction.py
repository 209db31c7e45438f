"""Figures and experiments of the papers, reproduced: charts with matplotlib (the extra ``plot``), claims as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.core.errors import InputError
from normscope.core.files import write_text
from normscope.core.number_text import digits
from normscope.monitor.run import Run, Series
from normscope.papers.study import STUDIES, Evidence, Study, StudyChart, run_study
from normscope.papers.than2025.figures.figures_1_to_3 import evidence_of, facts, product_of_variances, variances
from normscope.papers.than2025.figures.record import record
from normscope.papers.than2025.figures.training_setting import FIGURES, settings_of
from normscope.report.plot import BLUE, GREEN, OKABE_ITO, ORANGE, PURPLE, VERMILION, figure_class, grid, open_frame
from normscope.report.table import Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most lines for which the legend is inside the chart; for more it is below.
LINES_WITH_LEGEND_INSIDE = 4
#: An axis whose largest number is this many times the smallest has powers of ten as ticks, otherwise powers of two.
DECADES = 1000
#: Networks of the figures.
TITLES = {"relu10": "ReLU network, 10 layers", "resnet18": "ResNet-18", "efficientnet_b3": "EfficientNet-B3"}
_WORDS = {True: "agrees", False: "disagrees", None: "not claimed"}


@dataclass(frozen=True)
class Reproduction:
    """A reproduced figure or experiment of a paper."""

    facts: dict[str, Any]  #: the claims and measurements, as JSON has them
    evidence: list[Evidence]  #: each claim with its measurements
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
        drawn = draw_figure(name, runs)
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
    return Section(f"{figure}, {scale} scale", table=Table(columns, rows, columns))


def draw_study(study: Study) -> Figure:
    """Draw the charts of a study, three in a row at most."""
    drawn, (axes,) = grid(len(study.charts), 4.6, 3.6)
    for chart, ax in zip(study.charts, axes, strict=True):
        _draw_chart(chart, ax)
    return drawn


def _draw_chart(chart: StudyChart, ax: Axes) -> None:
    """Draw one chart: lines with the range over seeds, dashed where they are bounds or formulas."""
    for colour, line in zip(OKABE_ITO * 3, chart.lines, strict=False):
        marker = "o" if len(line.x) < 12 else None
        style = "--" if line.dashed else "-"
        ax.plot(line.x, line.y, style, color=colour, label=line.label, marker=marker, markersize=3, linewidth=1.3)
        if line.low is not None and line.high is not None:
            ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if chart.log_x:
        places = [x for line in chart.lines for x in line.x]
        ax.set_xscale("log", base=10 if max(places) > DECADES * min(places) else 2)
    if chart.log_y:
        ax.set_yscale("log")
    ax.set_xlabel(chart.x_label)
    ax.set_ylabel(chart.y_label)
    ax.set_title(chart.title, loc="left", fontsize="medium")
    if len(chart.lines) > LINES_WITH_LEGEND_INSIDE:
        ax.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    elif len(chart.lines) > 1:
        ax.legend(frameon=False, fontsize="x-small")
    open_frame(ax)


def draw_figure(figure: str, runs: Mapping[str, Run]) -> Figure:
    """Draw a figure of the paper from runs, at most three panels per row, each network on a new row.

    Args:
        figure: ``fig1`` (norms, their product, accuracy), ``fig2`` (variances, their product) or ``fig3`` (both).
        runs: recorded runs by the name of their network.

    Raises:
        InputError: if the figure is unknown.
        MissingDependencyError: if matplotlib is not installed.
    """
    if figure not in PANELS:
        raise InputError(f"Expected one of {', '.join(PANELS)}, got {figure!r}.")
    drawn, axes = grid(len(PANELS[figure]), 4.0, 2.9, times=len(runs))
    for (network, run), row in zip(runs.items(), axes, strict=True):
        row[0].set_title(TITLES.get(network, network), loc="left", fontsize="medium")
        for panel, ax in zip(PANELS[figure], row, strict=True):
            panel(run, ax)
            ax.set_xlabel("update")
            open_frame(ax)
    return drawn


def norms_panel(run: Run, ax: Axes) -> None:
    """Draw the norm of every layer over time."""
    _layers(ax, run.group("norm"), "norm of the layer")


def product_panel(run: Run, ax: Axes) -> None:
    """Draw the product of all norms, and of the folded norms if there are normalizers."""
    _products(ax, run, {"norms": (VERMILION, "prod ||W||"), "folded": (GREEN, "prod ||diag(gamma/sigma) W||")})


def accuracy_panel(run: Run, ax: Axes) -> None:
    """Draw the accuracy on training images."""
    series = run.series("probe/accuracy")
    ax.plot(series.steps, series.values, color=BLUE)
    ax.set_ylim(0, 1)
    ax.set_ylabel("accuracy, training images")


def variances_panel(run: Run, ax: Axes) -> None:
    """Draw the variance before every normalizer or activation, and a line at one."""
    _layers(ax, variances(run), "variance before the layer")
    ax.axhline(1.0, color="0.5", linestyle="--", linewidth=0.8)
    ax.set_yscale("log")


def variance_product_panel(run: Run, ax: Axes) -> None:
    """Draw the product of variances, and the products of the constants of the normalizers if there are any."""
    series = product_of_variances(run)
    ax.plot(series.steps, series.values, color=VERMILION, label="prod sigma^2")
    products = {
        "inverse_sigma_printed": (PURPLE, "prod ||1/sigma||, printed"),
        "inverse_sigma_slides": (ORANGE, "prod ||gamma/sigma||, printed"),
        "inverse_sigma_proved": (GREEN, "prod max |gamma|/sigma"),
    }
    _products(ax, run, products)
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)


def _layers(ax: Axes, layers: Mapping[str, Series], label: str) -> None:
    """Draw one line per layer, coloured by its depth."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    last = max(2, len(layers))
    places, colours = Normalize(1 - 0.15 * last, last), colormaps["viridis_r"]  # without its lightest part
    for place, series in enumerate(layers.values(), start=1):
        width = 1.0 if len(layers) < 40 else 0.6
        ax.plot(series.steps, series.values, color=colours(places(place)), linewidth=width)
    ax.set_ylabel(label)
    scale = ax.figure.colorbar(ScalarMappable(places, colours), ax=ax, pad=0.02, aspect=30)
    scale.ax.set_ylim(1, last)
    scale.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    scale.ax.tick_params(labelsize="small")
    scale.set_label("layer", fontsize="small")


def _products(ax: Axes, run: Run, products: Mapping[str, tuple[str, str]]) -> None:
    """Draw the products that a run recorded, each with its colour and label, and a legend above the axes."""
    for name, (colour, label) in products.items():
        if f"product/{name}_log10" in run.names:
            series = run.series(f"product/{name}_log10")
            ax.plot(series.steps, series.values, color=colour, label=label)
    ax.set_ylabel("log10 of the product")
    ax.legend(frameon=False, fontsize="x-small", loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=2)


#: The panels of each figure, in order.
PANELS: dict[str, tuple[Callable[[Run, Any], None], ...]] = {
    "fig1": (norms_panel, product_panel, accuracy_panel),
    "fig2": (variances_panel, variance_product_panel),
    "fig3": (norms_panel, product_panel, accuracy_panel, variances_panel, variance_product_panel),
}
