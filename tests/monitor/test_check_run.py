"""The doctor on runs: in the log and the notes while they go on, and from their folders afterwards."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import normscope
from normscope.cli.main import app
from normscope.core.errors import InputError
from normscope.monitor.check_run import check_run


def _trained(folder: Path, *, forgets: bool) -> Path:
    """Train for twelve steps, with a validation in the middle after which train mode may be forgotten."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 6), torch.randint(0, 2, (64,))
    with normscope.Monitor(
        model, (x, y), optimizer=optimizer, run=folder, quantities=["health"], every=1, budget=math.inf
    ) as mon:  # fmt: skip
        for step in range(12):
            if step == 6:
                model.eval()
            if step == 7 and not forgets:
                model.train()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mon.step(loss=loss)
    return folder


def test_a_forgotten_train_mode_is_told_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log and in the notes that the live page shows, by the function, and on the command line."""
    with caplog.at_level(logging.WARNING, logger="normscope.doctor"):
        run = _trained(tmp_path / "run", forgets=True)
    told = [r.message for r in caplog.records if r.message.startswith("NS217")]
    assert len(told) == 1
    assert [n for n in normscope.Run.open(run).notes if n.startswith("NS217 1:")] == told
    (one,) = normscope.check_run(run).findings
    assert (one.code, one.place, one.evidence["since"]) == ("NS217", "1", 7)
    result = CliRunner().invoke(app, ["check", str(run), "--isolated", "--format", "json", "--quiet"])
    assert result.exit_code == 1
    assert result.output == ""  # quiet
    for format in ("text", "json", "sarif", "github", "html"):
        shown = CliRunner().invoke(app, ["check", str(run), "--isolated", "--format", format])
        assert shown.exit_code == 1
        assert "NS217" in shown.output
        if format == "json":
            assert json.loads(shown.stdout)["findings"][0]["place"] == "1"


def test_nan_is_dated_by_the_probes_and_the_logged_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A probe sees NaN only after it has spread: the message says when the last clean probe and the first NaN were."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    probe = (torch.randn(8, 3), torch.tensor([0, 1] * 4))
    with normscope.Monitor(model, probe, run=tmp_path, quantities=["health"], every=10, budget=math.inf) as mon:
        for step in range(1, 31):
            if step == 23:
                nn.init.constant_(model[0].weight, math.nan)
            mon.step(loss=math.nan if step >= 21 else 1.0)
    (one,) = check_run(tmp_path).findings
    assert (one.code, one.place, one.evidence["step"]) == ("NS002", "0", 30)
    assert one.message == (
        "by step 30 (the last probe without any was at step 20) it is the first layer in the network with NaN or "
        "infinite values; train/loss was first nan at step 21"
    )
    assert one.message in caplog.text  # during the run, too
    caplog.clear()


def test_a_run_in_order_has_no_findings(tmp_path: Path) -> None:
    """With train mode called again."""
    result = check_run(_trained(tmp_path / "run", forgets=False))
    assert result.findings == ()
    assert not result.failed
    assert {"NS002", "NS203", "NS217", "NS507"} <= set(result.ran)


def test_a_run_without_points_cannot_be_checked(tmp_path: Path) -> None:
    """No findings would look like a healthy run: a cut or missing file is an error that names it, exit code 2."""
    run = _trained(tmp_path / "run", forgets=True)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:20])
    for said in ("has no complete point", "it has no metrics.jsonl"):
        with pytest.raises(InputError, match=f"Nothing to check in the run .*: .*{said}"):
            check_run(run)
        result = CliRunner().invoke(app, ["check", str(run)])
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
        metrics.unlink(missing_ok=True)


def test_options_of_a_model_are_refused_for_a_run(tmp_path: Path) -> None:
    """They would be ignored."""
    run = _trained(tmp_path / "run", forgets=False)
    for option in (["--data", "digits"], ["--purpose", "train"]):
        result = CliRunner().invoke(app, ["check", str(run), *option])
        assert result.exit_code == 2
        assert f"{option[0]} cannot be used with the folder of a run" in " ".join(result.stderr.split())


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    """One line, exit code 2."""
    with pytest.raises(InputError, match="Not a run folder"):
        check_run(tmp_path)
