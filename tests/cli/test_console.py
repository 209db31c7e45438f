"""Progress and rendering: silent when quick, plain when piped, tables on a terminal."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest

from normscope.cli import console
from normscope.cli.console import Stages, delivered, guarded, is_terminal, show
from normscope.core.errors import InputError
from normscope.report.table import Section, Table


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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("what holds; what came"), 2, "normscope: what holds; what came\n"),
        (KeyboardInterrupt(), 130, "normscope: stopped\n"),
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


class _Full(io.StringIO):
    """A stream on a full disk."""

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_only_a_full_device_behind_stdout_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file has a name, and a closed pipe is somebody else's business."""
    for error in (OSError(28, "No space left on device", "result.json"), BrokenPipeError(32, "Broken pipe")):
        with pytest.raises(OSError, match=str(error.strerror)), delivered():
            raise error
    monkeypatch.setattr(sys, "stdout", None)
    with delivered():
        pass
    monkeypatch.setattr(sys, "stdout", _Full())
    with pytest.raises(SystemExit) as exit, delivered():
        print("a result")
    assert exit.value.code == 2
    assert "could not be written: No space left" in capsys.readouterr().err
