"""The standard streams: stdout holds the result alone, and nothing that is printed gets lost or crashes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.cli.streams import aside, delivered, visible

COMMAND = [sys.executable, "-m", "normscope"]
#: Streams hold text back, as they do unless told otherwise.
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
LOUD = """
import atexit, os, subprocess, sys
from torch import nn

class Loud(nn.Linear):
    def forward(self, x):
        os.write(1, b"number one\\n")
        return super().forward(x)

def build():
    os.system("echo a shell")
    subprocess.run(["echo", "a child"])
    print("the first stdout", file=sys.__stdout__)
    print("a plain print")
    atexit.register(print, "at the exit")
    return Loud(4, 2)
"""


def _output(code: str, **settings: object) -> subprocess.CompletedProcess[bytes]:
    """Run a program with the package."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, **{"env": BUFFERED, **settings}
    )  # type: ignore[call-overload]


def test_json_is_alone_on_stdout_whatever_the_users_code_does(tmp_path: Path) -> None:
    """It prints by descriptor, by children, to the first stdout and at the exit: all of that is on stderr."""
    (tmp_path / "loud.py").write_text(LOUD)
    arguments = ["analyze", "loud.py:build", "--input", "4", "--no-report", "--json"]
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path, env=BUFFERED, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == json.loads((tmp_path / "result.json").read_text())
    for said in ("number one", "a shell", "a child", "the first stdout", "a plain print", "at the exit"):
        assert said in done.stderr


def test_what_is_printed_aside_is_on_stderr_in_its_order() -> None:
    """Before and after the block stdout is itself again, also where the block fails."""
    done = _output(
        "import os, sys\n"
        "from normscope.cli.streams import aside\n"
        "print('before')\n"
        "try:\n"
        "    with aside():\n"
        "        print('inside'); os.write(1, b'below\\n'); sys.__stdout__.write('held back\\n'); raise KeyError\n"
        "except KeyError:\n"
        "    print('after'); sys.stdout.flush(); os.write(1, b'at last\\n')\n"
    )
    assert done.stdout == b"before\nafter\nat last\n"
    assert set(done.stderr.split(b"\n")) == {b"inside", b"below", b"held back", b""}


def test_there_need_be_no_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """Captured or closed, the block runs, and leaves as many open files as there were."""
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with aside():
        os.write(1, b"captured")
    assert capfd.readouterr() == ("", "captured")
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    done = _output(
        "import os, sys\nfrom normscope.cli.streams import aside\nos.close(1)\nwith aside():\n    print('inside')\n"
    )
    assert done.stderr == b"inside\n"


_PROGRAM = """
import os, sys
from normscope.cli.console import guarded
from normscope.cli.streams import aside, open_streams
from normscope.core.errors import InputError

@guarded
def verb():
    open_streams()
    with open("result.txt", "w") as file, aside():
        os.write(1, b"from the side\\n")
        os.write(2, b"from the back\\n")
        print("printed")
        file.write("the file")
    print("the result")
    sys.stdout.flush()
    raise InputError("wrong use")

verb()
"""


@pytest.mark.parametrize("closed", [(), (2,), (1,), (0, 1, 2), (1, 2)])
def test_closed_streams_lead_nowhere(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """Errors do not land on stdout, and nothing printed lands in a file that took the place of a stream."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    close = f"import os\nfor number in {closed!r}: os.close(number)\n"
    start = f"os.execv({sys.executable!r}, [{sys.executable!r}, 'program.py'])"
    done = subprocess.run([sys.executable, "-c", close + start], cwd=tmp_path, env=BUFFERED, capture_output=True)
    assert done.returncode == 2
    assert done.stdout == (b"" if 1 in closed else b"the result\n")
    said = b"from the side\nfrom the back\nprinted\nnormscope: wrong use\n"
    assert sorted(done.stderr.splitlines()) == ([] if 2 in closed else sorted(said.splitlines()))
    assert (tmp_path / "result.txt").read_text() == "the file"


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "utf-8:strict", "latin-1"])
def test_any_text_can_be_printed(encoding: str) -> None:
    """Letters that the terminal lacks and bytes that are no text are spelled out."""
    environment = {**BUFFERED, "PYTHONIOENCODING": encoding}
    code = "from normscope.cli.streams import open_streams\nopen_streams()\nprint('\\u03c3 \\udcff')"
    shown = "\u03c3".encode() if encoding.startswith("utf") else b"\\u03c3"
    assert _output(code, env=environment).stdout == shown + b" \\udcff\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["version"], ["--help"]])
def test_a_reader_who_went_away_is_no_error(arguments: list[str], unbuffered: str) -> None:
    """However small the output is, and whenever it is written."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    try:
        done = subprocess.run([*COMMAND, *arguments], env=environment, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


class _Failing(io.StringIO):
    """A stream that cannot be written to."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        raise self.error


def test_a_full_device_behind_stdout_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails for a file has a name and is told elsewhere; a closed pipe is not told at all."""
    named = OSError(28, "No space left on device", "result.json")
    with pytest.raises(OSError, match=r"result\.json"), delivered():
        raise named
    monkeypatch.setattr(sys, "stdout", None)
    with delivered():
        pass
    for error, code, said in (
        (OSError(28, "No space left on device"), 2, "could not be written: No space left"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
    ):
        monkeypatch.setattr(sys, "stdout", _Failing(error))
        with pytest.raises(SystemExit) as exit, delivered():
            print("a result")
        assert exit.value.code == code
        assert said in capsys.readouterr().err


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
