"""The page for the first five minutes, walked as a reader does: its file, its commands in order, its answer."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normscope.cli.main import app

PAGE = (Path(__file__).parents[1] / "docs" / "getting_started.md").read_text()
(FILE,) = re.findall(r"^```python\n(# net\.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    (normscope .+)$", PAGE, re.MULTILINE)
ANSWER = " ".join(line[2:] for line in PAGE.splitlines() if line.startswith("> "))


def _masked(text: str) -> str:
    """Return a text without its numbers and line breaks."""
    return re.sub(r"\d[\d.]*", "#", " ".join(text.split()))


def _in_a_process(words: list[str]) -> tuple[int, str]:
    """Run a command in a process of its own: searches in this one are short."""
    done = subprocess.run([sys.executable, "-m", "normscope", *words], capture_output=True, text=True)
    return done.returncode, done.stdout or done.stderr


def _here(words: list[str]) -> tuple[int, str]:
    """Run a command in this process."""
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stdout or done.stderr


@pytest.mark.turns(12)
def test_the_commands_of_the_page_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends well, the check with its finding; analyze opens with the sentences that the page shows."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE)
    said = {}
    (told,) = re.findall(r"Run: `(normscope .+)`", ANSWER)
    for command in [told, *COMMANDS]:  # the reader may do at once what the answer tells them to do
        words = shlex.split(command)[1:]
        code, said[words[0]] = (_in_a_process if words[0] == "analyze" else _here)(words)
        assert code == (1 if words[0] == "check" else 0), said
    assert sorted(said) == ["analyze", "check", "explain", "fix"]
    assert _masked(said["analyze"]).startswith(f"net.py:build {_masked(ANSWER)} model")
    assert said["check"].startswith("NS101 ")
    assert said["explain"].startswith("NS101 ")
    assert Path("mended.safetensors").is_file()
    assert Path("normscope-runs/build-1/report.html").is_file()
