"""``normscope bounds``: the table on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normscope.analysis.bounds import run as bounds_run
from normscope.core.errors import InputError

Run = Callable[..., Any]
MODEL = "zoo:relu10[norm=bn,width=16,in_features=64]"
DATA = ("--train", "digits", "--test", "digits", "--limit", 60)


def test_table_and_files(run: Run) -> None:
    """Text, a page and JSON that hold the same rows; the second run reads what was kept."""
    result = run("bounds", MODEL, *DATA, "--out", "here", "--only", "held-out;Bartlett et al.")
    assert result.exit_code == 0, result.stderr
    assert "held-out" in result.stdout
    assert "open: " in result.stdout
    found = json.loads(Path("here/bounds.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["held-out", "Bartlett et al."]
    assert "Bartlett" in Path("here/bounds.html").read_text()
    again = run("bounds", MODEL, *DATA, "--out", "here", "--only", "held-out;Bartlett et al.", "--json")
    assert json.loads(again.stdout) == found


def test_wrong_use(run: Run) -> None:
    """One line and exit code 2."""
    for more, words in (
        (("--mode", "batch"), "not supported"),
        (("--box", "1"), "--box LOW,HIGH"),
        (("--delta", "2"), "delta"),
        (("--posterior", "-1"), "posterior"),
        (("--only", "nothing"), "Unknown bound"),
    ):
        result = run("bounds", MODEL, *DATA, *more)
        assert result.exit_code == 2, more
        assert words in result.stderr


def test_declared_tuning(run: Run) -> None:
    """The held-out row is refused."""
    result = run("bounds", MODEL, *DATA, "--tuned-on-test", "--only", "held-out", "--json")
    assert json.loads(result.stdout)["rows"][0]["status"] == "refused"


def test_both_data_sets_are_read_alike(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each its own split, with the same scaling and as many samples."""
    given: dict[str, Any] = {}

    def computed(model: object, **options: Any) -> None:
        given.update(options)
        raise InputError("seen")

    monkeypatch.setattr(bounds_run, "bounds", computed)
    assert run("bounds", MODEL, *DATA, "--normalize", "raw").exit_code == 2
    train, test = given["train"], given["test"]
    assert train.normalization.name == "raw"
    assert test.normalization == train.normalization
    assert len(train) == len(test) == 60
    assert not train.tensors().inputs.equal(test.tensors().inputs)
