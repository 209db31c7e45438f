"""What a configuration says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import normscope
from monitor.moments import batch, small
from normscope.monitor.facts import commit, run_facts
from normscope.monitor.probing import view_of


def test_facts_are_plain_data() -> None:
    model = small()
    facts = run_facts(model, view_of(model, batch(), None, "batch"), "")
    assert json.loads(json.dumps(facts)) == facts
    assert facts["model"] == "Small"
    assert facts["probe"] == [[12, 2, 6, 6]]
    assert facts["normalizers"] == [{"name": "bn1", "kind": "batch_norm"}, {"name": "ln", "kind": "layer_norm"}]
    assert facts["layers"] == ["conv1", "conv2", "head"]
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["versions"]["normscope"] == normscope.__version__
    assert facts["versions"]["torch"] == torch.__version__


def test_the_commit_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*run, "init", "-q"], check=True)
    subprocess.run([*run, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commit() == head
