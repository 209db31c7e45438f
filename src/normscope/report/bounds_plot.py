"""Bounds and margins as charts, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from normscope.analysis.bounds.result import BoundsResult
from normscope.report.plot import figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours by status (Okabe and Ito).
_COLOURS = {"certificate": "#0072B2", "estimate": "#E69F00", "scale only": "#CC79A7"}

#: Raw margins over one number for all samples: over its median each is the same line.
_MULTIPLES = ("certified distance", "over spectral complexity")
#: Layers whose margins are drawn.
_LAYERS = 4


def plot_bounds(result: BoundsResult) -> Figure:
    """Draw every bound beside the test error, and the quantiles of the margins, each over its median.

    Args:
        result: what ``bounds`` returned.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    drawn: Figure = figure_class()(figsize=(11.0, 5.0), layout="constrained")
    left, right = drawn.subplots(1, 2)
    _bounds(result, left)
    for name in _drawn(result):
        values = result.margins[name]
        right.plot([float(q) for q in values], [v / values["0.5"] for v in values.values()], marker="o", label=name)
    right.axhline(0.0, color="0.7", linewidth=0.8)
    right.set_xlabel("share of the training samples")
    right.set_ylabel("margin over its median")
    if right.lines:
        right.legend(frameon=False, fontsize="x-small", loc="lower right")
    for ax in (left, right):
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    return drawn


def _drawn(result: BoundsResult) -> list[str]:
    """Return the margins to draw: no multiples of others, and a few of many layers, the first and the last too."""
    known = [n for n, v in result.margins.items() if n not in _MULTIPLES and v.get("0.5", 0.0) > 0]
    layers = [n for n in known if n.startswith("distance in ")]
    few = {layers[round(i * (len(layers) - 1) / (_LAYERS - 1))] for i in range(_LAYERS)} if layers else set()
    return [n for n in known if n in few or n not in layers]


def _bounds(result: BoundsResult, ax: Any) -> None:
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
