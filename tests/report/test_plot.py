"""Plots: the heights drawn are the numbers of the result."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from networks import points
from normscope import Result, analyze
from normscope.core.errors import InputError, MissingDependencyError
from normscope.report.plot import plot


def _result(data: bool = True) -> Result:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)).eval()
    return analyze(model, points(8, 4).float() if data else None, input_shape=None if data else (4,))


def test_the_curves_along_the_depth_are_those_of_the_result() -> None:
    """Every finite point, none invented."""
    result = _result()
    lines = {line.get_label(): list(line.get_ydata()) for line in result.plot().axes[0].get_lines()}
    for name, words in (("global", "certified, all inputs"), ("lower", "attained")):
        expected = [math.nan if x is None else x for x in result.depth.curves[name].log10]
        assert lines[words] == pytest.approx(expected, nan_ok=True)


def test_a_notebook_shows_the_figure() -> None:
    """As a PNG, without pyplot."""
    assert _result().plot("layers")._repr_png_().startswith(b"\x89PNG")


def test_layers_and_variances() -> None:
    """As logarithms, the variances as they were seen."""
    result = _result()
    upper = result.plot("layers").axes[0].get_lines()[0].get_ydata()
    assert list(upper) == pytest.approx([layer.upper.log10 for layer in result.layers])
    lines = {line.get_label(): line.get_ydata() for line in result.plot("variances").axes[0].get_lines()}
    details = result.normalizers[0].details
    for words, key in (("largest", "max"), ("mean", "mean"), ("least", "min")):
        assert list(lines[f"{words} over channels"]) == pytest.approx([math.log10(details[f"seen_variance_{key}"])])


def test_all_views_or_one_into_given_axes(tmp_path: Path) -> None:
    """The figure can be written as a vector graphic."""
    result = _result()
    whole = plot(result, "all")
    assert len(whole.axes) == 3
    whole.savefig(tmp_path / "all.pdf")
    assert (tmp_path / "all.pdf").stat().st_size > 1000
    ax = Figure().add_subplot()
    assert plot(result, "layers", ax) is ax.figure
    assert len(plot(_result(data=False), "all").axes) == 2


def test_wrong_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown kind, nothing to draw, axes for several views, no matplotlib."""
    result = _result(data=False)
    with pytest.raises(InputError, match="depth, layers, variances or all"):
        result.plot("bars")
    with pytest.raises(InputError, match="no normalizer saw data or"):
        result.plot("variances")
    with pytest.raises(InputError, match="Leave ax out"):
        result.plot("all", Figure().add_subplot())
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"normscope\[plot\]"):
        result.plot()
