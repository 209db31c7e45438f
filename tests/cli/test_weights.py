"""``normscope weights``: what it prints and writes, and one clear line for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normscope.lipschitz.weights.result import WeightResult

Run = Callable[..., Any]
SMALL = "zoo:relu10[width=6,depth=3,in_features=64,norm=ln]"


def test_weights_of_a_model_on_data(run: Run) -> None:
    """A table on stdout, the same numbers in weights.json."""
    done = run("weights", SMALL, "--data", "digits", "--limit", 3, "--out", "there")
    assert done.exit_code == 0, done.output
    assert "head.weight" in done.stdout
    data = json.loads(Path("there/weights.json").read_text())
    assert data["kind"] == "weight-lipschitz"
    assert WeightResult.from_dict(data).samples["data"] == 3
    assert data["model"]["origin"]["kind"] == "zoo"


def test_json_alone_and_quiet(run: Run) -> None:
    """``--json`` prints nothing but JSON, ``--quiet`` nothing at all."""
    done = run("weights", SMALL, "--json")
    assert json.loads(done.stdout)["samples"] == {"data": 0, "jacobians": 0}
    assert run("weights", SMALL, "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("zoo:nothing",), "No network"),
        ((SMALL, "--mode", "other"), "one of 'running', 'batch', 'frozen-batch', got 'other'"),
        ((SMALL, "--tolerance", "2"), "between 0 and 1"),
        ((SMALL, "--data", "missing.npy"), "missing.npy"),
        ((SMALL, "--input", "x,y"), "positive integers"),
        ((SMALL, "--out", "taken"), "weights.json is a folder"),
    ],
)
def test_mistakes_end_with_code_2(arguments: tuple[str, ...], words: str, run: Run) -> None:
    """Wrong use: exit code 2, one clear line, nothing written."""
    Path("taken/weights.json").mkdir(parents=True)
    done = run("weights", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert not Path("weights.json").exists()
