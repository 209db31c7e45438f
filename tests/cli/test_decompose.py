"""``normscope decompose``: the split on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def test_json_adds_up(run: Run) -> None:
    """Parts, sums and the bound."""
    result = run("decompose", "--features", 4, "--samples", 25, "--steps", 20, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["adds_up"] is True
    assert abs(found["estimation"] + found["approximation"] - found["total"]) < 1e-12
    assert found["estimation"] <= found["bound"]


def test_text(run: Run) -> None:
    """Every part by name, and whether they add up."""
    shown = run("decompose")
    assert shown.exit_code == 0
    for word in ("total", "approximation", "estimation", "optimization", "generalization", "selection"):
        assert word in shown.stdout
    assert "the parts add up: yes" in shown.stdout


def test_wrong_use(run: Run) -> None:
    """A radius that is none, a seed that no generator takes."""
    result = run("decompose", "--radius", -1)
    assert result.exit_code == 2
    assert "positive radius" in result.stderr
    result = run("decompose", "--seed", 2**64)
    assert result.exit_code == 2
    assert "--seed" in result.stderr
