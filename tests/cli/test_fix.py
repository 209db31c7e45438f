"""``normscope fix`` on the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Run = Callable[..., Any]
NET = """
from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
"""


@pytest.fixture
def net(run: Run) -> Run:
    """Return the command line in a folder with a model file."""
    Path("net.py").write_text(NET)
    return run


def test_a_dry_run_writes_nothing(net: Run) -> None:
    """And says what would be done."""
    done = net("fix", "net.py:build", "--input", "3,6,6", "--dry-run")
    assert done.exit_code == 0
    assert "0.bias set to zero; 1.running_mean absorbs it" in done.stdout
    assert sorted(p.name for p in Path().iterdir()) == ["net.py"]


def test_weights_are_written_and_read_back(net: Run) -> None:
    """The new weights fit the model, and there is nothing left to change."""
    for file in ("new.safetensors", "new.pt"):
        done = net("fix", "net.py:build", "--input", "3,6,6", "--write-to", file, "--only", "drop-bias", "--json")
        assert done.exit_code == 0
        assert [c["kind"] for c in json.loads(done.stdout)["changes"]] == ["drop-bias"]
        again = net("fix", "net.py:build", "--input", "3,6,6", "--weights", file, "--only", "drop-bias", "--dry-run")
        assert "nothing to change" in again.stdout
    state = load_file("new.safetensors")
    assert float(state["0.bias"].abs().max()) == 0.0
    assert set(torch.load("new.pt")) == set(state)


def test_without_a_file_nothing_is_written_and_that_is_said(net: Run) -> None:
    """The command that a verdict names is one that works."""
    before = set(Path().iterdir())
    done = net("fix", "net.py:build", "--input", "3,6,6")
    assert done.exit_code == 0
    last = done.stdout.splitlines()[-1]
    assert last == "Nothing was written. Use --write-to FILE.safetensors to write the new weights."
    assert "further training is unchanged: the bias had no gradient" in done.stdout
    assert set(Path().iterdir()) == before


def test_weights_written_without_a_change_are_called_unchanged(net: Run) -> None:
    """A rotation of a network without a residual stream leaves a copy: that is said where the file is named."""
    done = net("fix", "net.py:build", "--input", "3,6,6", "--rotate", "--write-to", "new.pt")
    assert done.stdout.splitlines()[-1] == "written: new.pt (the weights are unchanged)"


def test_wrong_use(net: Run) -> None:
    """Both of the two ways, a strange ending, a file that exists, an unknown fix."""
    Path("there.pt").write_text("mine")
    for wrong in (
        ("--dry-run", "--write-to", "a.pt"),
        ("--write-to", "a.bin"),
        ("--write-to", "there.pt"),
        ("--dry-run", "--only", "magic"),
    ):
        done = net("fix", "net.py:build", "--input", "3,6,6", *wrong)
        assert done.exit_code == 2, wrong
        assert "replacing" not in done.stderr
    assert Path("there.pt").read_text() == "mine"
    assert net("fix", "net.py:build", "--input", "3,6,6", "--write-to", "there.pt", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("pipe.pt", "a device, a pipe or a socket"),
        ("folder.pt", "is a folder"),
        ("file/new.pt", "is a file"),
    ],
)
def test_places_are_checked_before_the_model_is_built(net: Run, place: str, said: str) -> None:
    """Also with --force: what is no file is not overwritten."""
    os.mkfifo("pipe.pt")
    Path("folder.pt").mkdir()
    Path("file").touch()
    done = net("fix", "nothing.py:build", "--write-to", place, "--force")
    assert done.exit_code == 2
    assert "--write-to" in done.stderr
    assert said in " ".join(done.stderr.split())


def test_a_rotation_is_tried_only_where_it_is_asked_for(net: Run) -> None:
    """A network without a residual stream refuses it, and says so."""
    tried = []
    for more in ((), ("--rotate",)):
        found = json.loads(net("fix", "net.py:build", "--input", "3,6,6", "--json", *more).stdout)
        tried.append("rotate" in {each["kind"] for each in (*found["changes"], *found["refusals"])})
    assert tried == [False, True]
