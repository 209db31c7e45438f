"""The README: every command and snippet works as written, and its excerpt is what is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from normscope.cli.main import app
from normscope.core.words import KINDS

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
    """Each command line of the README ends well, a check with its findings; analyze prints what the README shows."""
    words = shlex.split(command, comments=True)[1:]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == (1 if words[0] == "check" else 0), result.output
    assert result.stdout
    if words[0] == "analyze":
        (shown,) = _blocks("text")
        assert _masked(result.stdout).startswith(_masked(shown))
        assert len(list(Path("normscope-runs").glob("build-1/*"))) == 2
    if words[0] == "fix":
        assert Path("mended.safetensors").is_file()


def _masked(text: str) -> str:
    """Return a text without its numbers and line breaks."""
    return re.sub(r"\d[\d.]*", "#", " ".join(text.split()))


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_python_works(snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python snippet runs: it prints the verdict and a finding, and saves result and report."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(snippet, "README.md", "exec"), {"__name__": "snippet"})
    said = capsys.readouterr().out
    assert "(certified)" in said
    assert "NS101 0 build the layer with bias=False" in said
    assert Path("result.json").exists()
    assert Path("report.html").exists()


def test_make_targets_exist() -> None:
    """The README opens with make demo and make test, and the Makefile has them; demo runs the demo."""
    assert [c.split()[:2] for c in COMMANDS[:2]] == [["make", "demo"], ["make", "test"]]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in ("demo", "test"))
    assert re.search(r"^\t\S*normscope demo --out ", makefile, re.MULTILINE)


def test_every_block_is_looked_at() -> None:
    """There are files, snippets and commands, and no command of another kind than those tested."""
    assert FILES.keys() == {"net.py"}
    assert len(SNIPPETS) == 1
    assert {c.split()[0] for c in COMMANDS} == {"make", "normscope", "pip"}


def test_the_table_of_kinds_is_that_of_the_reports() -> None:
    """Every kind, in the words of the glossary."""
    for word in ("certified", "attained"):
        assert f"| `{word}` | {KINDS[word]} |" in TEXT
    assert all(f"`{word}`" in TEXT for word in KINDS if word != "measured")
