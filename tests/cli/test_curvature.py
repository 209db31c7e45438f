"""``normscope curvature``: what it prints and writes, and one clear line for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from normscope.curvature.products import Products

Run = Callable[..., Any]
SMALL = "zoo:relu10[width=6,depth=2,in_features=64,norm=bn]"


def test_text_and_json(run: Run) -> None:
    done = run("curvature", SMALL, "--data", "digits", "--limit", 32, "--top", 2, "--probes", 2, "--out", "there")
    assert done.exit_code == 0, done.output
    assert "eigenvalues of the Hessian, batch mode" in done.stdout
    data = json.loads(Path("there/curvature.json").read_text())
    assert data["mode"] == "batch"
    assert len(data["largest"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((SMALL,), "labelled data"),
        ((SMALL, "--data", "digits", "--mode", "train"), "Unknown mode 'train'"),
        ((SMALL, "--data", "digits", "--matrix", "kfac"), "Unknown matrix"),
        ((SMALL, "--data", "digits", "--parameters", "conv*"), "No parameter matches"),
    ],
)
def test_mistakes_end_with_code_2(arguments: tuple[str, ...], words: str, run: Run) -> None:
    done = run("curvature", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not Path("curvature.json").exists()


def test_a_stopped_measurement_is_written_and_ends_with_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, product = [], Products.__call__

    def stopping(self: Products, vector: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 9:
            raise KeyboardInterrupt
        return product(self, vector)

    monkeypatch.setattr(Products, "__call__", stopping)
    done = run("curvature", SMALL, "--data", "digits", "--limit", 32, "--top", 2, "--no-report", "--out", "there")
    assert done.exit_code == 130
    assert json.loads(Path("there/curvature.json").read_text())["stopped"]
