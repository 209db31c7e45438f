"""``normscope audit``: tables, details, files and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def test_a_paper_as_a_table(run: Run) -> None:
    result = run("audit", "000")
    assert result.exit_code == 0
    assert "000-sup" in result.stdout
    assert "10 claims checked" in result.stdout
    assert "measured" not in result.stdout


@pytest.mark.parametrize(
    "options", [["001", "--only", "001-L1"], ["than2025", "--only", " 001-L1 ,"], ["--only", "001-L1"]]
)
def test_one_claim_in_detail(run: Run, options: list[str]) -> None:
    result = run("audit", *options)
    assert result.exit_code == 0
    assert "measured  true: 0.3333" in result.stdout
    assert "instead   ||BN||_Lip = max_k" in result.stdout


def test_everything_in_detail(run: Run) -> None:
    result = run("audit", "000", "--verbose")
    assert result.stdout.count("\n  says ") == 10


def test_json_alone(run: Run) -> None:
    result = run("audit", "--only", "001-L1,002-BN", "--json")
    data = json.loads(result.stdout)
    assert [claim["id"] for claim in data["claims"]] == ["001-L1", "002-BN"]
    assert data["totals"]["false"] == 2


def test_files_are_written(run: Run) -> None:
    result = run("audit", "--only", "001-L1", "--out", "new/a.json", "--markdown", "a.md")
    assert result.exit_code == 0
    assert "written: a.md" in result.stdout
    assert json.loads(Path("new/a.json").read_text())["claims"][0]["verdict"] == "false"
    assert "| 001-L1 | Lemma 1 |" in Path("a.md").read_text()


def test_quiet_says_nothing(run: Run) -> None:
    result = run("audit", "--only", "001-L1", "--quiet", "--out", "a.json")
    assert result.stdout == ""
    assert Path("a.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["009"], "Known papers: 000 (than2025summary), 001"),
        (["nope"], "extensions (normscope)"),
        (["000", "--bound", "list"], "With --bound, no claims are checked"),
        (["than2026"], "than2025"),
        (["001", "--only", "001-l1"], "Did you mean 001-L1"),
        (["002", "--only", "001-L1"], "of the paper 002"),
        (["--only", ","], "empty list"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(run: Run, arguments: list[str], said: str) -> None:
    result = run("audit", *arguments, "--out", "a.json")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not Path("a.json").exists()


@pytest.mark.parametrize("option", ["--out", "--markdown"])
def test_a_folder_is_no_file(run: Run, option: str) -> None:
    Path("folder").mkdir()
    Path("file").write_text("mine")
    for target in ("folder", "file/below.json"):
        result = run("audit", "--only", "001-L1", option, target)
        assert result.exit_code == 2
        assert option in result.stderr
    assert Path("file").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normscope.cli.output_files.write_text", full)
    result = run("audit", "--only", "001-L1", "--markdown", "a.md")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr


def test_two_results_need_two_files(run: Run) -> None:
    result = run("audit", "--only", "001-L1", "--out", "a.md", "--markdown", "./a.md")
    assert result.exit_code == 2
    assert "Two results would be written to the same file" in result.stderr
    assert not Path("a.md").exists()


def test_bounds_on_the_bench(run: Run, tmp_path: Path) -> None:
    """A sound one gives exit code 0, a false one 1, a user's file is tried, a wrong name is refused."""
    good = run("audit", "--bound", "held-out", "--draws", 15)
    assert good.exit_code == 0, good.stderr
    assert "not broken" in good.stdout
    bad = run("audit", "--bound", "than-phan", "--draws", 15, "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["broken"] is True
    (tmp_path / "mine.py").write_text("def bound(draw, delta):\n    return draw.train_error + 0.001\n")
    assert run("audit", "--bound", f"{tmp_path / 'mine.py'}:bound", "--draws", 15).exit_code == 1
    assert "theorem-20" in run("audit", "--bound", "list").stdout
    wrong = run("audit", "--bound", "nothing")
    assert wrong.exit_code == 2
    assert "Known bounds" in wrong.stderr
