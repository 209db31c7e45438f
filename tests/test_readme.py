"""The README: every command and snippet works as written, and its excerpt shows rows that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from normscope.cli.main import app
from normscope.report.text import EFFECTS, END_TO_END

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in _blocks("sh") for line in block.splitlines() if line.strip()]
FILES = {block.splitlines()[0].removeprefix("# "): block for block in _blocks("python") if block.startswith("# ")}
SNIPPETS = [block for block in _blocks("python") if not block.startswith("# ")]


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("normscope ")])
def test_commands_work(command: str) -> None:
    """Each command line of the README ends well and, if it analyzes, writes its result."""
    words = shlex.split(command, comments=True)[1:]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout
    assert Path("result.json").exists() == (words[0] == "analyze")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_python_works(snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each Python snippet runs; the one that analyzes prints its constants and saves the result."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(snippet, "README.md", "exec"), {"__name__": "snippet"})
    assert "on all inputs (certified)" in capsys.readouterr().out
    assert Path("result.json").exists()


def test_make_targets_exist() -> None:
    """The README opens with make demo and make test, and the Makefile has them; demo runs the demo."""
    targets = [shlex.split(c, comments=True)[1] for c in COMMANDS if c.startswith("make ")]
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert re.search(r"^\t\S*normscope demo --out ", makefile, re.MULTILINE)


def test_every_block_is_looked_at() -> None:
    """There are files, snippets and commands, and no command of another kind than those tested."""
    assert FILES.keys() == {"net.py"}
    assert len(SNIPPETS) == 1
    assert {c.split()[0] for c in COMMANDS} == {"make", "normscope"}


def test_the_excerpt_has_rows_that_are_printed() -> None:
    """Row names of the excerpt are those of the demo's table."""
    (excerpt,) = _blocks("text")
    known = {words for _, words, _ in END_TO_END} | set(EFFECTS.values())
    rows = [re.split(r"\s{2,}", line.strip())[0] for line in excerpt.splitlines()]
    assert rows[:2] == ["constant", "accuracy on held-out digits"]
    assert set(rows[2:]) <= known
    assert len(rows) > 6
