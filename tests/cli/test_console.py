"""Progress and rendering: silent when quick, plain when piped, tables on a terminal."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from normscope.cli import console
from normscope.cli.console import Stages, guarded, is_terminal, show, visible
from normscope.core.errors import InputError
from normscope.report.table import Section, Table

MEMORY = "normscope: Out of memory: {}. Use a smaller --input, --limit or model.\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture(autouse=True)
def _no_colour_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two seconds short."""
    monkeypatch.setattr(console, "PATIENCE", 0.05)
    monkeypatch.setattr(console, "_TICK", 0.01)


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Work under two seconds leaves no line."""
    with Stages() as stages:
        stages("quick")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_slow_steps_get_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A long step is named once, its sub-steps are not; a quick one is not named."""
    with Stages() as stages:
        for i in range(20):
            stages(f"statistics: {i} samples")
            time.sleep(0.01)
        stages("quick")
    assert capsys.readouterr() == ("", "normscope: statistics ...\n")


@pytest.mark.usefixtures("impatient")
def test_very_slow_steps_say_how_far_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then, also where there is no terminal."""
    monkeypatch.setattr("normscope.cli.console.OFTEN", 0.05)
    written, deadline = "", time.monotonic() + 20
    with Stages() as stages:
        stages("statistics: 5 samples")
        while "5 samples" not in written and time.monotonic() < deadline:
            time.sleep(0.02)
            written += capsys.readouterr().err
    assert written.splitlines()[:2] == ["normscope: statistics ...", "normscope: statistics: 5 samples ..."]


@pytest.mark.usefixtures("impatient")
def test_notes_of_long_work_come_while_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each, in their order, control characters spelled out; none of quick work."""
    monkeypatch.setattr("normscope.cli.console.NOTED", 0.05)
    written, deadline = "", time.monotonic() + 20
    with Stages() as stages:
        for note, line in (("first\x1b", "first\\x1b\n"), ("second", "second\n")):
            stages.note(note)
            while line not in written and time.monotonic() < deadline:
                time.sleep(0.02)
                written += capsys.readouterr().err
    assert [line for line in written.splitlines() if not line.startswith("normscope:")] == ["first\\x1b", "second"]
    capsys.readouterr()
    with Stages() as stages:
        stages.note("quick")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("settings", [{"quiet": True}, {"lines": False}])
def test_no_lines_where_none_are_wanted(capsys: pytest.CaptureFixture[str], settings: dict[str, bool]) -> None:
    """Quiet, and JSON without a terminal, mean silence."""
    with Stages(**settings) as stages:
        stages("slow")
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_terminal_gets_a_spinner_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the current step is shown on stderr and taken away at the end."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Stages() as stages:
        for step in ("first", "second"):
            stages(step)
            deadline = time.monotonic() + 20
            while step not in stream.getvalue() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert step in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """NO_COLOR and a dumb terminal mean plain text."""
    assert is_terminal(Terminal())
    monkeypatch.setenv(name, value)
    assert not is_terminal(Terminal())


def test_sections_are_plain_when_piped_and_styled_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same cells either way; escape codes on a terminal alone; brackets are text, not markup."""
    sections = [Section("title", ("line [bold]",), Table(("name", "n"), (("a[0]", "1"),)), ("after",))]
    show(sections)
    plain = capsys.readouterr().out
    assert plain == "title\n  line [bold]\n  name  n\n  a[0]  1\n  after\n"
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    show(sections)
    assert "\x1b[" in stream.getvalue()
    assert all(cell in stream.getvalue() for cell in ("title", "line [bold]", "a[0]", "after"))


def test_a_narrow_terminal_wraps_words_and_keeps_names_and_numbers_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wider than the terminal; lines after the first are set in; names and numbers stay on their line."""
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    prose = "word " * 30
    row = ("layer4.0.downsample.0", "1.234e+56", prose.strip())
    label = f"says      {prose}"
    show([Section("t", (f"  fix: {prose}", label), Table(("name", "n", "why"), (row,), frozenset({"name", "why"})))])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum("layer4.0.downsample.0" in line and "1.234e+56" in line for line in lines) == 1
    fix = next(i for i, line in enumerate(lines) if "fix:" in line)
    assert lines[fix + 1].startswith("      word")
    says = next(i for i, line in enumerate(lines) if "says" in line)
    assert lines[says + 1].startswith("            word")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("what holds; what came"), 2, "normscope: what holds; what came\n"),
        (KeyboardInterrupt(), 130, "normscope: stopped\n"),
        (InputError("a\x1b[2J\nb"), 2, "normscope: a\\x1b[2J\nb\n"),
        (
            PermissionError(13, "Permission denied", "locked/a"),
            2,
            "normscope: Cannot access locked/a: Permission denied. Use another path, or check its permissions.\n",
        ),
        (MemoryError(), 2, MEMORY.format("no memory left")),
        (RuntimeError("can't allocate memory: 8 bytes\nat x.cpp"), 2, MEMORY.format("can't allocate memory: 8 bytes")),
    ],
)
def test_errors_become_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    """Errors a user can cause end in one line on stderr."""

    @guarded
    def verb() -> Any:
        raise error

    with pytest.raises(SystemExit) as stopped:
        verb()
    assert stopped.value.code == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("error", [RuntimeError("ours"), OSError(13, "ours"), FileNotFoundError(2, "ours", "a")])
def test_other_exceptions_pass(error: Exception) -> None:
    """A mistake of ours is not dressed up as the user's."""

    @guarded
    def verb() -> Any:
        raise error

    with pytest.raises(type(error), match="ours"):
        verb()


def test_names_cannot_give_orders_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Titles, lines, cells: what a file calls its tensors is spelled out, on one line."""
    name = "a\x1b]0;owned\x07\nb"
    sections = [Section(name, (name,), Table((name, "n"), ((name, "1"),)), (name,))]
    show(sections)
    plain = capsys.readouterr().out
    assert plain.splitlines().count(r"  a\x1b]0;owned\x07\nb") == 2
    assert len(plain.splitlines()) == 5
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "200")
    show(sections)
    assert "\x1b]0" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert stream.getvalue().count(r"a\x1b]0;owned\x07\nb") == 5


@pytest.mark.usefixtures("impatient")
def test_progress_gives_no_orders_either(capsys: pytest.CaptureFixture[str]) -> None:
    """A step may name a tensor."""
    with Stages() as stages:
        stages("tensor \x1b[2J")
        time.sleep(0.2)
    assert capsys.readouterr().err == "normscope: tensor \\x1b[2J ...\n"


COMMAND = [sys.executable, "-m", "normscope"]
#: Streams hold text back, as they do unless told otherwise.
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
LOUD = """
from torch import nn

class Loud(nn.Linear):
    def forward(self, x):
        print("a print in forward")
        return super().forward(x)

def build():
    print("a print in the factory")
    return Loud(4, 2)
"""


@pytest.mark.turns(5)
def test_json_is_alone_on_stdout_whatever_the_users_code_prints(tmp_path: Path) -> None:
    """That goes to stderr."""
    (tmp_path / "loud.py").write_text(LOUD)
    arguments = ["analyze", "loud.py:build", "--input", "4", "--no-report", "--json", "--out", "."]
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path, env=BUFFERED, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == json.loads((tmp_path / "result.json").read_text())
    for said in ("a print in forward", "a print in the factory"):
        assert said in done.stderr


def test_what_is_printed_during_the_work_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Before and after the block stdout is itself again, also where the block fails."""
    print("before")
    with contextlib.suppress(KeyError), Stages():
        print("inside")
        raise KeyError
    print("after")
    assert capsys.readouterr() == ("before\nafter\n", "inside\n")


@pytest.mark.parametrize("arguments", [["version"], ["--help"]])
def test_a_reader_who_went_away_is_no_error(arguments: list[str]) -> None:
    """However small the output is, and whenever it is written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*COMMAND, *arguments], env=BUFFERED, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [text] \u03c3", "plain [text] \u03c3"),
        ("a\x1b[2J\x1b]0;owned\x07", r"a\x1b[2J\x1b]0;owned\x07"),
        ("b\nfake  row\r\t", r"b\nfake  row\r\t"),
        ("\x9b31m \u202e \udcff", r"\x9b31m \u202e \udcff"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    """None reaches the terminal: neither C0, C1, changes of direction nor bytes that are no text."""
    assert visible(text) == shown
    assert visible(f"{text}\n", keep="\n").endswith("\n")


def test_the_collector_is_on_again_after_the_imports() -> None:
    """The command line turns it off until the first step that is not loading torch."""
    gc.disable()
    try:
        with Stages() as stages:
            stages("loading the model")
            assert gc.isenabled()
    finally:
        gc.enable()
