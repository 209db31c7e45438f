"""The page for the first five minutes, walked as a reader does: its file, its commands in order, its answer."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "getting_started.md").read_text()
(FILE,) = re.findall(r"^```python\n(# net\.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    (normscope .+)$", PAGE, re.MULTILINE)
ANSWER = " ".join(line[2:] for line in PAGE.splitlines() if line.startswith("> "))


def _masked(text: str) -> str:
    """Return a text without its numbers and line breaks."""
    return re.sub(r"\d[\d.]*", "#", " ".join(text.split()))


@pytest.mark.turns(3)
def test_the_commands_of_the_page_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends well, the check with its finding; analyze opens with the sentences that the page shows."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE)
    said = {}
    (told,) = re.findall(r"Run: `(normscope .+)`", ANSWER)
    for command in [told, *COMMANDS]:  # the reader may do at once what the answer tells them to do
        words = shlex.split(command)[1:]
        # A process of its own: searches in this one are short.
        done = subprocess.run([sys.executable, "-m", "normscope", *words], capture_output=True, text=True)
        assert done.returncode == (1 if words[0] == "check" else 0), done.stderr
        said[words[0]] = done.stdout
    assert sorted(said) == ["analyze", "check", "explain", "fix"]
    assert _masked(said["analyze"]).startswith(f"net.py:build {_masked(ANSWER)} model")
    assert said["check"].startswith("NS101 ")
    assert said["explain"].startswith("NS101 ")
    assert Path("mended.safetensors").is_file()
    assert Path("normscope-runs/build-1/report.html").is_file()
