"""``normscope check`` on the command line: formats, exit codes, settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normscope.report.embed import read_back

NET = """
import torch
from torch import nn


def build():
    print("building")
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def good():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)


def nothing(model):
    return None
"""
Run = Callable[..., Any]
SHAPE = ("--input", "3,6,6")


@pytest.fixture
def net(run: Run) -> Run:
    """Return the command line in a folder with a model file."""
    Path("net.py").write_text(NET)
    return run


def test_exit_codes(net: Run) -> None:
    """0 without findings, 1 with, 2 for wrong use; --fail-on moves the line."""
    assert net("check", "net.py:good", *SHAPE).exit_code == 0
    assert net("check", "net.py:build", *SHAPE).exit_code == 1
    assert net("check", "net.py:build", *SHAPE, "--fail-on", "error").exit_code == 0
    assert net("check", "net.py:build", *SHAPE, "--fail-on", "never").exit_code == 0
    for wrong in (("--fail-on", "x"), ("--format", "x"), ("--select", "NS9"), ("--dtype", "int8"), ("--device", "x")):
        done = net("check", "net.py:build", *SHAPE, *wrong)
        assert done.exit_code == 2, wrong
        assert done.stdout == ""
    assert net("check", "net.py:none", *SHAPE).exit_code == 2


def test_formats(net: Run) -> None:
    """Text, JSON, SARIF with the factory's line, annotations, HTML; what the user's code prints is not among them."""
    text = net("check", "net.py:build", *SHAPE).stdout
    assert text.startswith("NS101 warning (proved) 0: 0.bias has no effect")
    assert "building" not in text
    assert json.loads(net("check", "net.py:build", *SHAPE, "--format", "json").stdout)["counts"]["warning"] == 1
    log = json.loads(net("check", "net.py:build", *SHAPE, "--format", "sarif").stdout)
    location = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert (location["artifactLocation"]["uri"], location["region"]["startLine"]) == ("net.py", 6)
    assert net("check", "net.py:build", *SHAPE, "--format", "github").stdout.startswith("::warning file=net.py,line=6")
    page = net("check", "net.py:build", *SHAPE, "--format", "html").stdout
    assert page.lower().startswith("<!doctype html>")
    assert list(read_back(page)) == ["net.py:build"]  # the analysis
    assert "0.bias has no effect" in page
    bare = net("check", "net.py:build", "--input", "7", "--format", "html").stdout
    assert "NS001" in bare  # no graph, no analysis: the findings alone


def test_a_report_is_written_to_a_file(net: Run) -> None:
    """Stdout only says where; with --quiet, nothing. A folder is no file."""
    done = net("check", "net.py:build", *SHAPE, "--format", "json", "--out", "found/a.json")
    assert (done.exit_code, done.stdout) == (1, "written: found/a.json\n")
    quiet = net("check", "net.py:build", *SHAPE, "--format", "json", "--out", "found/b.json", "--quiet")
    assert (quiet.exit_code, quiet.stdout) == (1, "")
    assert Path("found/b.json").read_text() == Path("found/a.json").read_text()
    assert json.loads(Path("found/a.json").read_text())["kind"] == "findings"
    assert net("check", "net.py:build", *SHAPE, "--out", "found").exit_code == 2


@pytest.mark.parametrize("option", ["--out", "--write-baseline"])
def test_places_are_checked_before_the_model_is_built(net: Run, option: str) -> None:
    """A folder is no file to write."""
    Path("folder").mkdir()
    done = net("check", "nothing.py:build", option, "folder")
    assert done.exit_code == 2
    assert option in done.stderr
    assert "is a folder" in done.stderr


def test_selection_on_the_command_line_and_in_the_project(net: Run) -> None:
    """Both are read; --isolated reads only the first."""

    def codes(*arguments: str) -> set[str]:
        out = net("check", "net.py:build", *SHAPE, "--format", "json", *arguments).stdout
        return {f["code"] for f in json.loads(out)["findings"]}

    assert "NS101" in codes("--select", "NS1,NS2")
    assert "NS101" not in codes("--ignore", "NS101")
    Path("pyproject.toml").write_text('[tool.normscope]\nignore = ["NS101"]\n')
    assert "NS101" not in codes()
    assert "NS101" in codes("--isolated")
    Path("pyproject.toml").write_text("[tool.normscope]\nunknown = 1\n")
    assert net("check", "net.py:build", *SHAPE).exit_code == 2


def test_a_baseline(net: Run) -> None:
    """Written once, then nothing is told again."""
    written = net("check", "net.py:build", *SHAPE, "--write-baseline", "known.json")
    assert written.exit_code == 0
    count = re.search(r"written: known.json \((\d+) finding", written.stdout)
    assert count is not None
    done = net("check", "net.py:build", *SHAPE, "--baseline", "known.json")
    assert done.exit_code == 0
    assert f" {count[1]} hidden by settings or baseline" in done.stdout
    assert net("check", "net.py:build", *SHAPE, "--baseline", "missing.json").exit_code == 2


def test_an_optimizer_is_built_by_the_users_function(net: Run) -> None:
    """What decays is told; a function that returns none is refused."""
    done = net("check", "net.py:build", *SHAPE, "--select", "NS4", "--optimizer", "net.py:optimizer")
    assert "weight decay 0.1 acts on" in done.stdout
    for wrong in ("net.py:nothing", "net.py:absent", "none.py:optimizer", "zoo:relu10"):
        assert net("check", "net.py:build", *SHAPE, "--optimizer", wrong).exit_code == 2, wrong
    done = net("check", "net.py:build", *SHAPE, "--optimizer", "net.py:good")
    assert "normscope: net.py:good must accept one argument, the model.\n" in done.stderr


def test_data_and_batch_size(run: Run) -> None:
    """A zoo network on the embedded digits."""
    done = run("check", "zoo:mlp[norm=bn,in_features=64,hidden=(8,)]", "--data", "digits", "--limit", "64",
               "--batch-size", "4", "--format", "json")  # fmt: skip
    report = json.loads(done.stdout)
    assert {"NS101", "NS201"} <= {f["code"] for f in report["findings"]}
    assert done.exit_code == 1


def test_a_rule_is_explained(run: Run) -> None:
    """By code and by name."""
    for name in ("NS101", "cancelled-bias"):
        assert "bias cancelled by a normalizer" in run("explain", name).stdout
