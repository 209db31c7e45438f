"""Plots of a result with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from normscope.core.errors import InputError, MissingDependencyError
from normscope.core.result import Result
from normscope.core.value import Value
from normscope.report.charts import DEPTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that colour-blind readers can tell apart (Okabe and Ito).
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, _, BLACK = OKABE_ITO
#: Colours of the depth curves.
COLOURS = {"global": BLUE, "variance_floor": GREEN, "without_normalizers": VERMILION, "lower": BLACK}
#: Most places that are named; of more, some evenly apart.
_NAMES = 40


def plot(result: Result, kind: str = "depth", ax: Axes | None = None) -> Figure:
    """Draw one view of a result.

    Args:
        result: what ``analyze`` returned.
        kind: ``"depth"`` (how the bounds build up), ``"layers"`` (norm of each layer, alone and folded),
            ``"variances"`` (before each normalizer, against one), or ``"all"`` (the three, one above the other).
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
    names = [name for name in VIEWS if kind in (name, "all") and _has(result, name)]
    if not names and kind == "all":
        raise InputError("Nothing to draw: the result has no layers, normalizers or depth curve.")
    if not names:
        raise InputError(f"Nothing to draw for {kind!r} ({_NEEDS[kind]}).")
    if ax is None:
        height = 2.8 * len(names) if kind == "all" else 3.2
        figure: Figure = figure_class()(figsize=(7.0, height), layout="constrained")
        for i, name in enumerate(names):
            VIEWS[name](result, figure.add_subplot(len(names), 1, i + 1))
        return figure
    VIEWS[kind](result, ax)
    found = ax.get_figure(root=True)
    if found is None:
        raise InputError("Expected axes that belong to a figure.")
    return found


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


def depth_view(result: Result, ax: Axes) -> None:
    """Draw the bounds along depth; infinite ones are not drawn."""
    curves = {name: curve for name, curve in result.depth.curves.items() if name in COLOURS}
    places = range(len(result.depth.names))
    for name, curve in curves.items():
        heights = [math.nan if x is None or math.isinf(x) else x for x in curve.log10]
        marked = sum(not math.isnan(h) for h in heights) < len(heights)
        style = {"marker": "o", "markersize": 2.5} if marked else {}
        ax.plot(places, heights, color=COLOURS[name], label=DEPTH[name], linewidth=1.3, **style)  # type: ignore[arg-type]
    _finish(ax, result.depth.names, "log10 Lipschitz constant")


def layers_view(result: Result, ax: Axes) -> None:
    """Draw the norm of each layer, alone and folded with the normalization after it."""
    names = [layer.name for layer in result.layers]
    upper = [_log10(layer.upper) for layer in result.layers]
    folded = [_log10(layer.folded) for layer in result.layers]
    ax.plot(range(len(names)), upper, "o", color=COLOURS["global"], markersize=3.5, label="||W||")
    if any(not math.isnan(x) for x in folded):
        ax.plot(range(len(names)), folded, "s", color=COLOURS["variance_floor"], markersize=3.5, label="folded")
    _finish(ax, names, "log10 norm of the layer")


def variances_view(result: Result, ax: Axes) -> None:
    """Draw the variance before each normalizer: least, mean and most over channels, and the line at one."""
    seen = [n for n in result.normalizers if "seen_variance_mean" in n.details]
    for i, n in enumerate(seen):
        low, mean, high = (n.details[f"seen_variance_{key}"] or 0.0 for key in ("min", "mean", "max"))
        bottom = low if low > 0 else mean * 1e-3 or 1e-12
        ax.plot([i, i], [bottom, max(high, bottom)], color=COLOURS["global"], linewidth=1.2)
        ax.plot([i], [mean or bottom], "o", color=COLOURS["global"], markersize=3.5)
    ax.axhline(1.0, color=COLOURS["without_normalizers"], linewidth=0.8, linestyle="--", zorder=0)
    ax.set_yscale("log")
    ax.set_ylabel("variance before it")
    _places(ax, [n.name for n in seen])


def _finish(ax: Axes, names: Sequence[str], label: str) -> None:
    """Draw a line at one, tick labels, the axis label and the legend."""
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.set_ylabel(label)
    _places(ax, names)
    ax.legend(frameon=False, fontsize="small")


def _places(ax: Axes, names: Sequence[str]) -> None:
    """Label the ticks of the x-axis, evenly thinned if there are many."""
    step = max(1, -(-len(names) // _NAMES))
    ax.set_xticks(range(0, len(names), step), names[::step], rotation=90, fontsize="x-small")
    ax.set_xlabel("from the input to the output")
    open_frame(ax)


def _log10(value: Value | None) -> float:
    """Return the decimal logarithm of a value, NaN where it cannot be drawn."""
    return math.nan if value is None or math.isinf(value.log) else value.log10


def _has(result: Result, kind: str) -> bool:
    variances = any("seen_variance_mean" in n.details for n in result.normalizers)
    return bool({"depth": result.depth.curves, "layers": result.layers, "variances": variances}[kind])


VIEWS: dict[str, Callable[[Result, Any], None]] = {
    "depth": depth_view,
    "layers": layers_view,
    "variances": variances_view,
}
_NEEDS = {
    "depth": "it was written by a version without curves along the depth",
    "layers": "the network has no linear layer",
    "variances": "no normalizer saw data",
}
