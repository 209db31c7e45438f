"""Plots of a result with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from normscope.core.errors import InputError, MissingDependencyError
from normscope.core.result import Result
from normscope.report.charts import Chart, depth_chart, layer_chart, variance_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that colour-blind readers can tell apart (Okabe and Ito).
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, _, BLACK = OKABE_ITO
#: Colours of the lines of charts, by style.
COLOURS = {
    "global": BLUE,
    "variance_floor": GREEN,
    "without_normalizers": VERMILION,
    "lower": BLACK,
    "variance-max": ORANGE,
    "variance-mean": BLUE,
    "variance-min": GREEN,
}
#: Most places that are labelled; if there are more, only evenly spaced ones are.
_NAMES = 40


def plot(result: Result, kind: str = "depth", ax: Axes | None = None) -> Figure:
    """Draw one view of a result.

    Args:
        result: what ``analyze`` returned.
        kind: ``"depth"`` (how the bounds build up), ``"layers"`` (norm of each layer, alone and folded),
            ``"variances"`` (before each normalizer, over channels), or ``"all"`` (the three, one above the other).
        ax: where to draw; by default a new figure, made without pyplot's global state. Not with ``"all"``.

    Returns:
        The figure; save it with ``figure.savefig("depth.pdf")``.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        InputError: if the kind is unknown or the result has nothing of that kind.

    >>> import torch, normscope
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> figure = plot(normscope.analyze(model, torch.ones(2, 3)))
    >>> figure.axes[0].get_ylabel()
    'log10 Lipschitz constant'
    """
    if kind != "all" and kind not in VIEWS:
        raise InputError(f"Expected one of {', '.join(VIEWS)} or all, got {kind!r}.")
    if kind == "all" and ax is not None:
        raise InputError("kind='all' draws its own figure. Leave ax out.")
    asked = VIEWS if kind == "all" else {kind: VIEWS[kind]}
    found = ((make(result, name), label) for name, (make, label, _) in asked.items())
    charts = [(chart, label) for chart, label in found if chart is not None]
    if not charts and kind == "all":
        raise InputError("Nothing to draw: the result has no layers, normalizers or depth curve.")
    if not charts:
        raise InputError(f"Nothing to draw for {kind!r} ({VIEWS[kind][2]}).")
    if ax is None:
        height = 2.8 * len(charts) if kind == "all" else 3.2
        figure: Figure = figure_class()(figsize=(7.0, height), layout="constrained")
        for i, (chart, label) in enumerate(charts):
            draw(chart, figure.add_subplot(len(charts), 1, i + 1), label)
        return figure
    ((chart, label),) = charts
    draw(chart, ax, label)
    owner = ax.get_figure(root=True)
    if owner is None:
        raise InputError("Expected axes that belong to a figure.")
    return owner


def figure_class() -> Any:
    """Return matplotlib's figure, without pyplot: nothing global is touched, and no display is needed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            f"Plots need matplotlib, which cannot be imported ({error}). Install it with: pip install 'normscope[plot]'"
        ) from error

    class Inline(Figure):
        """A figure that notebooks show, whether pyplot was imported or not."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png", dpi=110)
            return picture.getvalue()

    return Inline


def grid(count: int, width: float, height: float, *, times: int = 1) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure and its axes: ``times`` groups of ``count`` axes, at most three in a row."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure: Figure = figure_class()(figsize=(width * columns, height * rows * times), layout="constrained")
    place = [[i * rows * columns + j + 1 for j in range(count)] for i in range(times)]
    return figure, [[figure.add_subplot(rows * times, columns, k) for k in row] for row in place]


def open_frame(ax: Axes) -> None:
    """Hide the top and right spines."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def draw(chart: Chart, ax: Axes, y_label: str) -> None:
    """Draw the lines of a chart over its places, in decimal logarithms; what is infinite is not drawn."""
    places = range(len(chart.places))
    for line in chart.lines:
        heights = [math.nan if x is None or math.isinf(x) else x for x in line.log10]
        ax.plot(places, heights, color=COLOURS[line.style], label=line.label, linewidth=1.3, marker="o", markersize=2.5)
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.set_ylabel(y_label)
    step = max(1, -(-len(places) // _NAMES))
    ax.set_xticks(places[::step], chart.places[::step], rotation=90, fontsize="x-small")
    ax.set_xlabel("from the input to the output")
    ax.legend(frameon=False, fontsize="small")
    open_frame(ax)


#: The chart of each view, the label of its numbers, and what a result without it lacks.
VIEWS: dict[str, tuple[Callable[[Result, str], Chart | None], str, str]] = {
    "depth": (
        depth_chart,
        "log10 Lipschitz constant",
        "it was written by a version without curves along the depth",
    ),
    "layers": (layer_chart, "log10 norm of the layer", "the network has no linear layer"),
    "variances": (
        variance_chart,
        "log10 variance before the normalizer",
        "no normalizer saw data or has running statistics",
    ),
}
