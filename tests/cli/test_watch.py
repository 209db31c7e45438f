"""``normscope watch``: a real process that serves and ends, an exported page, and one clear line for every mistake."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.live.runs import begin, written
from normscope.cli import watch as module

Run = Callable[..., Any]


def _start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "normscope", "watch", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell inherits an ignored SIGINT; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_it_serves_until_it_is_stopped_and_frees_its_port(tmp_path: Path) -> None:
    """The address is the first line; Ctrl-C is the way to end it, so the exit code is 0; torch is never loaded."""
    written(tmp_path / "run", {s: {"norm/a": 1.0} for s in range(3)})
    process = _start(tmp_path / "run", tmp_path / "later", "--wait")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=20) as answer:
            page = answer.read().decode()
        assert "Spectral norm of each layer" in page
        assert "waiting" in page
        loaded = Path(f"/proc/{process.pid}/maps")
        assert not loaded.exists() or "libtorch" not in loaded.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopped" in errors
    assert "Traceback" not in errors
    port = int(url.split(":")[2].split("/")[0])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_an_exported_page(run: Run, tmp_path: Path) -> None:
    """Several runs in one file, named by their folders."""
    for name in ("first", "second"):
        written(tmp_path / "runs" / name, {s: {"norm/a": s + 0.5} for s in range(4)})
    result = run("watch", tmp_path / "runs", "--export", "out/still.html", "--title", "a < b")
    assert (result.exit_code, result.stdout) == (0, "written: out/still.html\n")
    page = Path("out/still.html").read_text()
    assert "<h1>a &lt; b</h1>" in page
    assert page.count("3.5</td>") == 2
    assert run("watch", tmp_path / "runs" / "first", "--export", "quiet.html", "-q").stdout == ""


def test_other_machines_only_when_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a warning; the browser is opened only when asked."""
    written(tmp_path / "run", {1: {"norm/a": 1.0}})
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def stop() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "until_stopped", stop)
    monkeypatch.setattr("normscope.monitor.live.server.WatchServer.start", lambda server: None)
    result = run("watch", tmp_path / "run", "--host", "0.0.0.0")
    assert "can be reached from other machines" in result.stderr
    assert opened == []
    result = run("watch", tmp_path / "run", "--open")
    assert result.exit_code == 0
    assert "other machines" not in result.stderr
    assert opened == [result.stdout.strip()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "not found"),
        (["."], "no config.json in it"),
        (["bad"], "is not JSON"),
        (["other"], "does not describe a run"),
        (["good", "nothing"], "--wait"),
        (["good", "--host", "203.0.113.7"], "Choose another --port or --host"),
        (["good", "--export", "good"], "is a folder"),
        (["good", "--export", "good/config.json/x.html"], "is a file"),
        (["good", "--port", "70000"], "65535"),
        (["nothing", "--wait", "--export", "x.html"], "Leave out --wait or --export"),
    ],
)
def test_mistakes(run: Run, arguments: list[str], said: str) -> None:
    """Exit code 2, what is wrong on stderr, and nothing written."""
    written(Path("good"), {1: {"norm/a": 1.0}})
    if arguments != ["."]:
        for name, text in (("bad", "{"), ("other", "{}")):
            Path(name).mkdir()
            (Path(name) / "config.json").write_text(text)
    else:
        Path("good").rename("../good")
    before = sorted(Path().rglob("*"))
    result = run("watch", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert sorted(Path().rglob("*")) == before


def test_a_port_in_use(run: Run, tmp_path: Path) -> None:
    """It says so."""
    begin(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("watch", tmp_path, "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "already in use" in result.stderr


def test_a_broken_run_among_several_is_named_and_left_out(run: Run, tmp_path: Path) -> None:
    """The others are shown; where it was asked for itself, or is the only one, it is a mistake."""
    written(tmp_path / "runs" / "good", {1: {"norm/a": 1.0}})
    bad = tmp_path / "runs" / "bad"
    bad.mkdir()
    (bad / "config.json").write_text("{")
    result = run("watch", tmp_path / "runs", "--export", "page.html")
    assert (result.exit_code, result.stdout) == (0, "written: page.html\n")
    assert result.stderr.startswith("normscope: skipped: ")
    assert "bad" in result.stderr
    assert "good" in Path("page.html").read_text()
    for places in ([bad], [tmp_path / "runs", bad]):
        result = run("watch", *places, "--export", "none.html")
        assert (result.exit_code, Path("none.html").exists()) == (2, False)
        assert "is not JSON" in result.stderr
    (tmp_path / "runs" / "good" / "config.json").write_text("[]")
    assert run("watch", tmp_path / "runs", "--export", "none.html").exit_code == 2
