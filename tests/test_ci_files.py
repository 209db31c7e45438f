"""The pre-commit hook and the GitHub Action: what they run finds what is wrong, says where, and fails."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
NET = """from torch import nn


def bad():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def good():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
"""


def _read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with two networks, and the command on a path of its own."""
    (tmp_path / "net.py").write_text(NET)
    command = tmp_path / "bin" / "normscope"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m normscope "$@"\n')
    command.chmod(0o755)
    return tmp_path


def _run(script: str, place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", **more}
    return subprocess.run(["bash", "-c", script], cwd=place, env=env, capture_output=True, text=True, check=False)


@pytest.mark.turns(5)
def test_the_hook_fails_a_commit_with_a_finding(place: Path) -> None:
    """As pre-commit runs it: entry and arguments, no file names."""
    (hook,) = _read(".pre-commit-hooks.yaml")
    assert (hook["id"], hook["pass_filenames"], hook["language"]) == ("normscope-check", False, "python")
    for name, code in (("bad", 1), ("good", 0)):
        done = _run(shlex.join([*shlex.split(hook["entry"]), f"net.py:{name}", "--input", "3,8,8"]), place)
        assert done.returncode == code, done.stderr
        assert ("NS101 warning" in done.stdout) == (name == "bad")


@pytest.mark.turns(2)
def test_the_action_annotates_the_file_and_fails(place: Path) -> None:
    """The last step of the action, with its inputs as GitHub sets them."""
    action = _read("action.yml")
    step = action["runs"]["steps"][-1]
    assert {"model", "arguments", "version"} == set(action["inputs"])
    assert step["env"]["MODEL"] == "${{ inputs.model }}"
    done = _run(step["run"], place, MODEL="net.py:bad", ARGUMENTS="--input 3,8,8 --purpose train")
    assert done.returncode == 1
    assert done.stdout.startswith("::warning file=net.py,line=4")
    assert "NS101" in done.stdout
