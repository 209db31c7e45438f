"""``normscope reproduce``: a figure, its files, and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normscope.cli.main import app
from normscope.monitor.run import Run

RUNNER = CliRunner()


def _stopped_by_ctrl_c(arguments: list[str], metrics: Path) -> subprocess.CompletedProcess[str]:
    """Run a command and interrupt it as soon as it trains."""
    program = [sys.executable, "-m", "normscope", *arguments]
    process = subprocess.Popen(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background hands an ignored interrupt down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and b"train/loss" in metrics.read_bytes()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(program, process.returncode, out, err)


@pytest.mark.turns(3)
def test_smoke_figures_go_on_when_stopped_and_share_their_runs(tmp_path: Path) -> None:
    """Ctrl-C, the same command again, then figures 1 and 2 from one training; pictures, numbers, and a table."""
    arguments = ["reproduce", "fig1", "--scale", "smoke", "--no-certify", "--out", str(tmp_path)]
    stopped = _stopped_by_ctrl_c(arguments, tmp_path / "smoke-0" / "relu10" / "metrics.jsonl")
    assert stopped.returncode == 130
    assert "the same command resumes" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert not (tmp_path / "smoke-0" / "fig1.json").exists()
    first = RUNNER.invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "the product of norms reaches 1e50" in first.output
    steps = Run.open(tmp_path / "smoke-0" / "relu10").series("train/loss").steps
    assert list(steps) == list(range(1, 6 * 11 + 1))  # epochs of whole batches
    metrics = tmp_path / "smoke-0" / "resnet18" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    arguments = ["reproduce", "fig2", "--scale", "smoke", "--no-certify", "--json", "--out", str(tmp_path)]
    second = RUNNER.invoke(app, arguments)
    assert second.exit_code == 0, second.output
    assert metrics.stat().st_mtime_ns == before
    body = json.loads(second.stdout)
    assert body["figure"] == "fig2"
    assert body["command"] == "normscope reproduce fig2 --scale smoke --seed 0 --no-certify"
    said = [e["agrees"] for e in body["evidence"] if e["network"] == "resnet18" and "1e-25" in e["claim"]]
    assert len(said) == 6
    assert None not in said
    assert {e["network"] for e in body["evidence"]} == {"relu10", "resnet18"}
    for name in ("fig1.png", "fig1.svg", "fig1.json", "fig2.png"):
        assert (tmp_path / "smoke-0" / name).stat().st_size > 500, name


@pytest.mark.slow
def test_smoke_figure_3(tmp_path: Path) -> None:
    """A network of which the paper gives no number: its products are measured without a verdict."""
    result = RUNNER.invoke(app, ["reproduce", "fig3", "--scale", "smoke", "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    evidence = json.loads(result.stdout)["evidence"]
    assert len([e for e in evidence if "1e-25" in e["claim"]]) == 6
    assert all(e["agrees"] is None for e in evidence if "1e-25" in e["claim"] or "1e50" in e["claim"])
    assert list(Run.open(tmp_path / "smoke-0" / "efficientnet_b3").series("train/loss").steps) == [1, 2, 3, 4]
    for name in ("fig3.png", "fig3.svg", "fig3.json"):
        assert (tmp_path / "smoke-0" / name).stat().st_size > 500, name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fig9"], "fig1, fig2, fig3"),
        (["fig1", "--scale", "huge"], "smoke, laptop, long, paper"),
        (["fig1", "--scale", "laptop", "--data-root", "nowhere"], "cifar10 not found"),
        (["fig1", "--scale", "laptop", "--data-root", "nowhere"], "pass its folder (--data-root"),
    ],
)
def test_wrong_use_is_told_with_exit_code_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    """And nothing is written."""
    result = RUNNER.invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
