"""Running the command line inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope.cli.main import app

#: Verbs that write to a new folder unless told otherwise.
FOLDERS = ("analyze", "compare", "curvature", "weights")
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command line in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments: object) -> Any:
        words = [str(a) for a in arguments]
        if words[0] in FOLDERS and "--out" not in words:
            words += ["--out", "."]  # so that tests find what is written
        return CliRunner().invoke(app, words)

    return call
