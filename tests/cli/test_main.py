"""The command line as a whole: quick help without torch, versions, wrong use, Ctrl-C."""

from __future__ import annotations

import inspect
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope import Options
from normscope.cli.main import EVERYDAY, RESEARCH
from normscope.core.lazy import late
from normscope.curvature.run import Settings as CurvatureSettings

Run = Callable[..., Any]
COMMAND = [sys.executable, "-m", "normscope.cli.main"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["analyze", "--help"], ["demo", "--help"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    """Help and version answer without torch, numpy or rich's tables."""
    code = (
        "import sys\n"
        "from normscope.cli.main import main\n"
        f"sys.argv = ['normscope', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as e:\n    print('CODE', e.code)\n"
        "print('LOADED', [m for m in ('torch', 'numpy', 'scipy', 'transformers') if m in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "CODE 0" in out.stdout
    assert "LOADED []" in out.stdout


def test_help_is_quick() -> None:
    """The help takes less than half a second of processor time (the clock on the wall depends on other work)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(run: Run, arguments: list[str]) -> None:
    """Both forms print the version."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (0, f"normscope {normscope.__version__}\n")


def test_help_names_every_verb(run: Run) -> None:
    """The help lists the verbs."""
    text = run("--help").stdout
    assert all(verb in text for verb in ("analyze", "demo", "statements", "version"))


def test_every_verb_has_its_function_with_the_same_defaults() -> None:
    """At the top of the package; ``report`` is ``save_html`` there, and the tour is for the command line."""
    given_apart = {("analyze", "time"), ("curvature", "limit")}  # none is passed on; Python takes the data themselves
    settings = {"analyze": Options, "weights": Options, "curvature": CurvatureSettings}
    for verb in EVERYDAY | RESEARCH:
        if verb in ("report", "demo"):
            continue
        option = inspect.signature(late(f"normscope.cli.{verb}", verb)).parameters
        twin = dict(inspect.signature(getattr(normscope, verb)).parameters)
        if verb in settings:
            twin |= inspect.signature(settings[verb]).parameters
        for name in (option.keys() & twin.keys()) - {name for of, name in given_apart if of == verb}:
            here, there = option[name].default, twin[name].default
            assert here == there or str(here) == str(there) or not (here or there), (verb, name)


@pytest.mark.parametrize("arguments", [["nonsense"], ["analyze"], ["analyze", "zoo:cnn", "--nonsense"]])
def test_wrong_use_is_two(run: Run, arguments: list[str]) -> None:
    """Unknown verbs and options, and a missing model, are wrong use."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.turns(5)
def test_interrupt_is_130_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C during a slow factory ends with one plain line, exit code 130, and nothing written."""
    ready = tmp_path / "ready"
    (tmp_path / "slow.py").write_text(
        f"import pathlib, time\ndef build():\n    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*COMMAND, "analyze", "slow.py:build"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background job of a shell inherits an ignored SIGINT; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert stdout == ""
    assert stderr.splitlines()[-1] == "normscope: stopped"
    assert "Traceback" not in stderr
    assert not (tmp_path / "result.json").exists()


def test_unexpected_exceptions_show_themselves(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours is not dressed up as the user's mistake."""
    import normscope.analysis.context

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(normscope.analysis.context, "check_model", broken)
    result = run("analyze", "zoo:relu10[width=4,depth=2,in_features=4]")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)
    assert not Path("result.json").exists()


@pytest.mark.turns(6)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["statements"], ["version"]])
def test_a_full_disk_behind_stdout_is_one_line(arguments: list[str]) -> None:
    """Whether the text fits into the buffer or not."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "normscope.cli.main", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "normscope: The output could not be written: No space left on device.\n"
