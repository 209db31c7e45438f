"""The paper's figures, drawn from recorded runs with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from normscope.core.errors import InputError
from normscope.monitor.run import Run
from normscope.papers.than2025.figures.evidence import product_of_variances, variances
from normscope.report.plot import grid, open_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"relu10": "ReLU network, 10 layers", "resnet18": "ResNet-18", "efficientnet_b3": "EfficientNet-B3"}


def draw(figure: str, runs: Mapping[str, Run]) -> Figure:
    """Draw a figure of the paper from runs, three panels a row at most, each network from a new row on.

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
    _layers(ax, {name: (s.steps, s.values) for name, s in run.group("norm").items()})
    ax.set_ylabel("norm of the layer")


def product_panel(run: Run, ax: Axes) -> None:
    """Draw the product of all norms, and of the folded ones where there are normalizers."""
    _lines(
        run,
        ax,
        ("product/norms_log10", "#D55E00", "prod ||W||"),
        ("product/folded_log10", "#009E73", "prod ||diag(gamma/sigma) W||"),
    )


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
    _lines(
        run,
        ax,
        ("product/inverse_sigma_printed_log10", "#CC79A7", "prod ||1/sigma||, printed"),
        ("product/inverse_sigma_slides_log10", "#E69F00", "prod ||gamma/sigma||, printed"),
        ("product/inverse_sigma_proved_log10", "#009E73", "prod max |gamma|/sigma"),
    )
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)


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


def _lines(run: Run, ax: Axes, *lines: tuple[str, str, str]) -> None:
    """Draw the products that a run recorded, each (metric, colour, label), and name all lines above the axes."""
    for name, colour, label in lines:
        if name in run.names:
            series = run.series(name)
            ax.plot(series.steps, series.values, color=colour, label=label)
    ax.set_ylabel("log10 of the product")
    ax.legend(frameon=False, fontsize="x-small", loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=2)


PANELS: dict[str, tuple[Callable[[Run, Any], None], ...]] = {
    "fig1": (norms_panel, product_panel, accuracy_panel),
    "fig2": (variances_panel, variance_product_panel),
    "fig3": (norms_panel, product_panel, accuracy_panel, variances_panel, variance_product_panel),
}
