"""``normscope symmetry``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_json_and_text(run: Run) -> None:
    shown = run("symmetry", "zoo:relu10[norm=bn,width=4,in_features=9]", "--json")
    assert shown.exit_code == 0, shown.stderr
    body = json.loads(shown.stdout)
    assert (body["kind"], body["mode"]) == ("symmetry", "batch")
    assert {g["kind"] for g in body["groups"]} >= {"scale", "rescaling", "shift", "permutation"}


def test_the_result_is_kept(run: Run, tmp_path: Path) -> None:
    """In the folder that was named, without a word if none is wanted."""
    shown = run("symmetry", "zoo:relu10[norm=bn,width=4,in_features=9]", "--out", tmp_path, "--quiet")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "")
    assert json.loads((tmp_path / "symmetry.json").read_text())["kind"] == "symmetry"


def test_wrong_mode(run: Run) -> None:
    shown = run("symmetry", "zoo:relu10[width=4,in_features=9]", "--mode", "train")
    assert shown.exit_code == 2
    assert "Expected mode 'batch' or 'running', got 'train'." in shown.stderr
