"""``normscope extremal``: constants, series and pictures on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

Run = Callable[..., Any]


def _json(run: Run, *arguments: object) -> dict[str, Any]:
    result = run("extremal", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_theorem_6_explodes_and_vanishes(run: Run) -> None:
    """Two constants, one the inverse of the other; the gradient passed back grows towards the first layer."""
    found = _json(run, "theorem-6", "--depth", 400, "--width", 3, "--scale", 8)
    values = found["values"]
    assert values["constant, a = 8"]["log10"] == pytest.approx(361.236, abs=1e-3)
    assert values["constant, a = 0.125"]["log10"] == pytest.approx(-361.236, abs=1e-3)
    attained = values["attained when run, a = 8"]
    assert attained["log10"] == pytest.approx(361.236, abs=1e-3)
    assert attained["kind"] == "lower"
    assert attained["log"] < values["constant, a = 8"]["log"]
    up, down = (found["series"][f"passed back, a = {a}"]["log10"] for a in ("8", "0.125"))
    assert up == sorted(up, reverse=True)
    assert down == sorted(down)
    assert len(up) == 400


def test_theorem_13_printed_and_true(run: Run) -> None:
    """The counter-example: five, where zero is printed."""
    found = _json(run, "theorem-13", "--width", "3,2,1", "--scale", 5, "--input", "0,0,1")
    assert found["values"]["constant in the weight"]["log10"] == pytest.approx(0.69897, abs=1e-5)
    assert found["values"]["printed, equation (8)"]["log10"] == "-inf"


def test_theorem_15_and_layernorm(run: Run) -> None:
    """Gradients by layer; constants by depth."""
    found = _json(run, "theorem-15", "--depth", 30, "--width", 4)
    grown = found["series"]["gradient, a = 2"]["log10"]
    assert grown[0] - grown[-1] == pytest.approx(29 * 0.30103, abs=0.5)
    assert len(grown) <= 24
    found = _json(run, "layernorm", "--depth", 4, "--width", 16)
    assert found["values"]["constant, at least"]["log10"] == pytest.approx(9.9019, abs=1e-4)
    assert found["series"]["without LayerNorm"]["log10"] == [0.0] * 4


def test_text_and_picture(run: Run) -> None:
    """The report names its numbers and statements; the chart is written where asked."""
    result = run("extremal", "theorem-6", "--plot", "there/chart.svg")
    assert result.exit_code == 0
    assert "than2025 Theorem 6" in result.stdout
    assert "log10" not in result.stdout  # the numbers are no logarithms
    assert result.stdout.splitlines()[-1] == "written: there/chart.svg"
    root = ElementTree.fromstring(Path("there/chart.svg").read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == 4  # two lines, each with its key


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("theorem-7",), "Expected one of theorem-6"),
        (("theorem-6", "--width", "a"), "positive integers"),
        (("theorem-6", "--scale", "0"), "Expected a scale"),
        (("theorem-6", "--width", "8,4", "--depth", "7"), "The widths 8,4 have depth 1 already"),
        (("theorem-6", "--plot", "x.png"), ".svg"),
        (("theorem-6", "--plot", "folder.svg"), "is a folder"),
        (("theorem-13", "--layer", "99"), "from 1 to 20"),
        (("theorem-15", "--layer", "99"), "from 1 to 20"),
        (("theorem-13", "--input", "1,x"), "numbers separated by commas"),
        (("theorem-13", "--input", "1"), "a real vector of 8 numbers"),
        (("layernorm", "--width", "3,4"), "the same width"),
        (("layernorm", "--eps", "0"), "eps > 0"),
    ],
)
def test_wrong_use(run: Run, arguments: tuple[str, ...], text: str) -> None:
    """Exit code 2, one clear line, nothing written."""
    Path("folder.svg").mkdir()
    result = run("extremal", *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())
    assert [path.name for path in Path().rglob("*")] == ["folder.svg"]
