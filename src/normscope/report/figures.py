"""The paper's figures, drawn from recorded runs with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.core.errors import InputError
from normscope.core.files import write_text
from normscope.monitor.run import Run
from normscope.papers.than2025.figures.evidence import Evidence, product_of_variances, variances
from normscope.papers.than2025.figures.record import record
from normscope.papers.than2025.figures.reproduction import evidence_of, facts
from normscope.papers.than2025.figures.setting import settings_of
from normscope.report.plot import figure_class

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Panels side by side.
COLUMNS = 3
TITLES = {"relu10": "ReLU network, 10 layers", "resnet18": "ResNet-18", "efficientnet_b3": "EfficientNet-B3"}


@dataclass(frozen=True)
class Reproduction:
    """A figure of the paper, trained and drawn again.

    Attributes:
        facts: the claims and measurements, as JSON has them.
        evidence: each claim beside what was measured.
        files: the pictures and the JSON file that were written.
    """

    facts: dict[str, Any]
    evidence: list[Evidence]
    files: tuple[Path, ...]


def reproduce(
    figure: str,
    scale: str = "laptop",
    *,
    out: str | Path = "normscope-reproduce",
    data_root: str | Path | None = None,
    seed: int = 0,
    certify: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Reproduction:
    """Train the networks of a figure as far as they are not trained yet, draw it, and compare it with the paper.

    Args:
        figure: ``fig1``, ``fig2`` or ``fig3`` of Than 2025.
        scale: ``smoke`` (a minute), ``laptop`` (half an hour), ``long`` (100 epochs of smaller networks) or
            ``paper`` (100 epochs).
        out: folder for runs and figures; the same call goes on where an earlier one stopped.
        data_root: folder of CIFAR-10.
        seed: random seed.
        certify: bound the networks at start and end.
        progress: called with a line of text at each step.

    Raises:
        InputError: if the figure or the scale is unknown, or the data are not found.
        MissingDependencyError: if matplotlib is not installed.
    """
    settings = settings_of(figure, scale, seed)
    figure_class()  # a missing matplotlib is told before half an hour of training
    place, root = Path(out) / f"{scale}-{seed}", None if data_root is None else Path(data_root)
    runs = {s.name: record(s, place / s.name, root=root, progress=progress, certify=certify) for s in settings}
    evidence = evidence_of(figure, runs, place)
    found = facts(figure, scale, settings, evidence, certify=certify, located=root is not None)
    progress("drawing")
    drawn = draw(figure, runs)
    pictures = [place / f"{figure}.{ending}" for ending in ("png", "svg")]
    for file in pictures:
        drawn.savefig(file, dpi=150)
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    return Reproduction(found, evidence, (*pictures, write_text(place / f"{figure}.json", text)))


def draw(figure: str, runs: Mapping[str, Run]) -> Figure:
    """Draw a figure of the paper from runs, three panels a row at most, each network from a new row on.

    Args:
        figure: ``fig1`` (norms, their product, accuracy), ``fig2`` (variances, their product) or ``fig3`` (both).
        runs: recorded runs by the name of their network.

    Returns:
        The figure.

    Raises:
        InputError: if the figure is unknown.
        MissingDependencyError: if matplotlib is not installed.
    """
    if figure not in PANELS:
        raise InputError(f"Expected one of {', '.join(PANELS)}, got {figure!r}.")
    panels = PANELS[figure]
    columns = min(len(panels), COLUMNS)
    rows = -(-len(panels) // columns)
    drawn: Figure = figure_class()(figsize=(4.0 * columns, 2.9 * rows * len(runs)), layout="constrained")
    for i, (network, run) in enumerate(runs.items()):
        for j, panel in enumerate(panels):
            ax = drawn.add_subplot(rows * len(runs), columns, i * rows * columns + j + 1)
            panel(run, ax)
            ax.set_xlabel("update")
            if j == 0:
                ax.set_title(TITLES.get(network, network), loc="left", fontsize="medium")
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
    return drawn


def norms_panel(run: Run, ax: Axes) -> None:
    """Draw the norm of every layer over time."""
    _layers(ax, {name: (s.steps, s.values) for name, s in run.group("norm").items()})
    ax.set_ylabel("norm of the layer")


def product_panel(run: Run, ax: Axes) -> None:
    """Draw the product of all norms, and of the folded ones where there are normalizers."""
    series = run.series("product/norms_log10")
    ax.plot(series.steps, series.values, color="#D55E00", label="prod ||W||")
    if "product/folded_log10" in run.names:
        folded = run.series("product/folded_log10")
        ax.plot(folded.steps, folded.values, color="#009E73", label="prod ||diag(gamma/sigma) W||")
    ax.set_ylabel("log10 of the product")
    _legend(ax)


def accuracy_panel(run: Run, ax: Axes) -> None:
    """Draw the accuracy on training images."""
    series = run.series("probe/accuracy")
    ax.plot(series.steps, series.values, color="#0072B2")
    ax.set_ylim(0, 1)
    ax.set_ylabel("accuracy, training images")


def variances_panel(run: Run, ax: Axes) -> None:
    """Draw the variance before every normalizer or activation, and the line at one."""
    _layers(ax, {name: (s.steps, s.values) for name, s in variances(run).items()})
    ax.axhline(1.0, color="0.5", linestyle="--", linewidth=0.8)
    ax.set_yscale("log")
    ax.set_ylabel("variance before the layer")


def variance_product_panel(run: Run, ax: Axes) -> None:
    """Draw the product of variances, and the products of the normalizers' constants where there are some."""
    series = product_of_variances(run)
    ax.plot(series.steps, series.values, color="#D55E00", label="prod sigma^2")
    for name, colour, words in (
        ("product/inverse_sigma_printed_log10", "#CC79A7", "prod ||1/sigma||, printed"),
        ("product/inverse_sigma_slides_log10", "#E69F00", "prod ||gamma/sigma||, printed"),
        ("product/inverse_sigma_proved_log10", "#009E73", "prod max |gamma|/sigma"),
    ):
        if name in run.names:
            other = run.series(name)
            ax.plot(other.steps, other.values, color=colour, label=words)
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.set_ylabel("log10 of the product")
    _legend(ax)


def _layers(ax: Axes, series: Mapping[str, tuple[Any, Any]]) -> None:
    """Draw one line per layer, coloured by its place from input to output."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    last = max(2, len(series))
    places, colours = Normalize(1 - 0.15 * last, last), colormaps["viridis_r"]  # its lightest part is hardly seen
    for place, values in enumerate(series.values(), start=1):
        ax.plot(*values, color=colours(places(place)), linewidth=1.0 if len(series) < 40 else 0.6)
    scale = ax.figure.colorbar(ScalarMappable(places, colours), ax=ax, pad=0.02, aspect=30)
    scale.ax.set_ylim(1, last)
    scale.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    scale.ax.tick_params(labelsize="small")
    scale.set_label("layer", fontsize="small")


def _legend(ax: Axes) -> None:
    """Name the lines above the axes, where they cover nothing."""
    ax.legend(frameon=False, fontsize="x-small", loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=2)


PANELS: dict[str, tuple[Callable[[Run, Any], None], ...]] = {
    "fig1": (norms_panel, product_panel, accuracy_panel),
    "fig2": (variances_panel, variance_product_panel),
    "fig3": (norms_panel, product_panel, accuracy_panel, variances_panel, variance_product_panel),
}
