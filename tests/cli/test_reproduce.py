"""``normscope reproduce``: a figure, its files, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normscope.cli.main import app

RUNNER = CliRunner()


def test_smoke_figures_share_their_runs(tmp_path: Path) -> None:
    """Figures 1 and 2 from one training; pictures, numbers, and a table."""
    first = RUNNER.invoke(app, ["reproduce", "fig1", "--scale", "smoke", "--no-certify", "--out", str(tmp_path)])
    assert first.exit_code == 0, first.output
    assert "the product of norms reaches 1e50" in first.output
    metrics = tmp_path / "smoke-0" / "resnet18" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    arguments = ["reproduce", "fig2", "--scale", "smoke", "--no-certify", "--json", "--out", str(tmp_path)]
    second = RUNNER.invoke(app, arguments)
    assert second.exit_code == 0, second.output
    assert metrics.stat().st_mtime_ns == before
    body = json.loads(second.stdout)
    assert body["figure"] == "fig2"
    assert {e["network"] for e in body["evidence"]} == {"relu10", "resnet18"}
    for name in ("fig1.png", "fig1.svg", "fig1.json", "fig2.png"):
        assert (tmp_path / "smoke-0" / name).stat().st_size > 500, name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fig9"], "fig1, fig2, fig3"),
        (["fig1", "--scale", "huge"], "smoke, laptop, paper"),
        (["fig1", "--scale", "laptop", "--data-root", "nowhere"], "cifar10 must be on this machine"),
    ],
)
def test_wrong_use_is_told_with_exit_code_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    """And nothing is written."""
    result = RUNNER.invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
