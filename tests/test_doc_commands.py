"""Every command line in the documents is one that works: the quick ones run daily, the others in ``make test-all``."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

import normscope
from normscope.cli.main import app
from normscope.zoo import build

ROOT = Path(__file__).parents[1]
PAGES = [p for p in sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]) if "_build" not in p.parts]
PAGES.append(ROOT / "benchmarks" / "RESULTS.md")  # docs/benchmarks.md includes it
#: A block, fenced or indented; a command in it; and one in a sentence.
BLOCK = re.compile(r"^```(?:sh|text)\n(.*?)^```|^    (\w[^\n]*)$", re.MULTILINE | re.DOTALL)
LINE = re.compile(
    r"^(?:\$ )?((?:normscope (?=[a-z-])|make |pip install |(?:NORMSCOPE_\w+=\S+ )?python -m benchmarks\b).*)$",
    re.MULTILINE,
)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(normscope [a-z-][^`]*)`(?!`)")
#: Verbs whose commands are run daily; of all others (servers, training, searches) the arguments are parsed.
RUN = ("analyze", "check", "compare", "explain", "fix", "report", "symmetry")
#: Commands of those verbs that are only parsed daily, and why.
TOO_LONG = {
    "zoo:resnet18": "a network of 11 million parameters",
    "3,224,224": "its network is not the one here",
    "--time 60": "searches for a minute",
    "--data digits": "certifies balls around hundreds of digits",
    "--radius": "certifies balls around data",
    "bounds.json": "its results come of verbs that take long",
    "--orbits": "its arrow into a file is the shell's",
    "result.json symmetry.json": "its result is what that arrow leaves",
}
#: Lines of shell that no test here runs, and why.
NEVER = {
    "make demo": "sets up an environment from the internet; its command, normscope demo, is run in tests/cli",
    "make test": "runs this test",
    "pip install normscope": "downloads; make release installs the wheel into a fresh environment",
    "pip install -c constraints.txt -r benchmarks/requirements.txt": "downloads the peers that are measured",
    "python -m benchmarks": "measures for hours, and writes into the repository what it measures",
    "NORMSCOPE_DATA=data python -m benchmarks normalization": "writes into the repository what it measures",
}
#: Data that a command reads from NORMSCOPE_DATA; without it the command is skipped.
DATA = {
    "cifar10": "cifar-10-batches-bin",
    "reproduce fig": "cifar-10-batches-bin",
    "--data-root DATA": "mnist",
}
#: What a command needs beyond the files of the fixture: a command that goes before it.
BEFORE = {
    "result.json symmetry.json": "normscope symmetry net.py:build --input 64 --orbits --json > symmetry.json",
    "bounds.json": "normscope curvature net.py:build --data digits --limit 64 --out . && "
    "normscope bounds net.py:build --train digits --test digits --out . && "
    "normscope analyze wn.py:build --data digits --limit 20 --out .",
    "3,224,224": "mv images.py net.py",
    "in_features=64]' --weights": "mv relu10.pt w.pt",
    "runs/bn": "cp -r runs/mine runs/bn && cp -r runs/mine runs/ln",
    "--data-root DIR": 'ln -s "$NORMSCOPE_DATA" DIR',
    "--data-root DATA": 'ln -s "$NORMSCOPE_DATA/mnist" DATA',
}
#: Seconds after which a command that is still running has failed.
PATIENCE = 7200
NETWORK = """from torch import nn, optim


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def make_optimizer(model):
    return optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
"""
IMAGES = """from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(24200, 10))
"""
WEIGHT_NORMALIZED = """from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def build():
    return nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(64, 16)), nn.Tanh(), nn.Linear(16, 10, bias=False))
"""
BOUND = """def bound(draw, delta):
    return 1.0
"""


def _in_blocks(text: str) -> list[str]:
    blocks = "\n".join(fenced or indented for fenced, indented in BLOCK.findall(text))
    return LINE.findall(blocks)


def _commands(find: Callable[[str], list[str]]) -> list[str]:
    return sorted({" ".join(line.split()) for page in PAGES for line in find(page.read_text())})


def _words(command: str) -> list[str]:
    return shlex.split(command, comments=True)[1:]


def _short(command: str) -> str:
    return command.partition("#")[0].strip()


def _is_run(command: str) -> bool:
    quick = _words(command)[0] in RUN or "--export" in command
    return quick and not any(part in command for part in TOO_LONG)


def _is_served(command: str) -> bool:
    return _words(command)[0] == "watch" and "--export" not in command


#: The verbs as they are on the command line, made once.
VERBS = functools.cache(functools.partial(get_command, app))
LINES = [c for c in _commands(_in_blocks) if c.startswith("normscope ")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every file that the commands name."""
    here = tmp_path_factory.mktemp("world")
    (here / "net.py").write_text(NETWORK)
    space: dict[str, object] = {}
    exec(NETWORK, space)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = space["build"]().eval()  # type: ignore[operator]
        other = space["build"]().eval()  # type: ignore[operator]
    for name in ("w.pt", "before.pt"):
        torch.save(model.state_dict(), here / name)
    torch.save(other.state_dict(), here / "after.pt")
    for name in ("model", "old", "one"):
        save_file(model.state_dict(), here / f"{name}.safetensors")
    save_file(other.state_dict(), here / "two.safetensors")
    for name in ("images.npy", "test.npy"):
        np.save(here / name, torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).numpy())
    result = normscope.analyze(model, fast=True)
    for folder in (here, here / "a", here / "b"):
        folder.mkdir(exist_ok=True)
        result.save(folder / "result.json")
    normscope.save_html(result, here / "report.html")
    with normscope.Monitor(model, probe=torch.randn(4, 64), run=here / "runs" / "mine") as monitor:
        for step in range(2):
            monitor.step(loss=1.0 / (1 + step))
    return here


@pytest.mark.turns(3)
@pytest.mark.parametrize("command", [c for c in LINES if _is_run(c)], ids=_short)
def test_quick_commands_run(command: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end well, a check perhaps with findings, and say something."""
    here = tmp_path / "here"
    shutil.copytree(world, here)
    monkeypatch.chdir(here)
    words = _words(command)
    result = CliRunner().invoke(app, words)
    assert result.exit_code in ((0, 1) if words[0] == "check" else (0,)), result.output
    assert result.stdout


@pytest.fixture
def place(world: Path, tmp_path: Path) -> Path:
    """Return a folder with those files and what long commands need; beside it, ``bin`` holds the command itself."""
    here = tmp_path / "here"
    shutil.copytree(world, here)
    for name, text in (("images.py", IMAGES), ("wn.py", WEIGHT_NORMALIZED), ("my_bound.py", BOUND)):
        (here / name).write_text(text)
    torch.save(build("relu10", norm="bn", width=128, in_features=64).state_dict(), here / "relu10.pt")
    torch.save(build("resnet20").state_dict(), here / "resnet20.pt")
    command = tmp_path / "bin" / "normscope"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m normscope "$@"\n')
    command.chmod(0o755)
    return here


def _shell(line: str, place: Path) -> subprocess.Popen[str]:
    path = f"{place.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", line],
        cwd=place,
        env={**os.environ, "PATH": path, "BROWSER": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finished(line: str, place: Path) -> tuple[int, str, str]:
    """Run a line; return its exit code and what it says on both streams."""
    with _shell(line, place) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    return process.returncode, out, err


def _prepare(command: str, place: Path) -> None:
    data = Path(os.environ.get("NORMSCOPE_DATA", "data"))
    for part, folder in DATA.items():
        if part in command and not (data / folder).is_dir():
            pytest.skip(f"needs {folder} in NORMSCOPE_DATA")
    for part, line in BEFORE.items():
        if part in command:
            code, _, err = _finished(line, place)
            assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in LINES if not _is_run(c) and not _is_served(c)], ids=_short)
def test_long_commands_run(command: str, place: Path) -> None:
    """In a shell, as they stand: they end well, a check perhaps with findings, and say something."""
    _prepare(command, place)
    code, out, err = _finished(command, place)
    assert code in ((0, 1) if _words(command)[0] == "check" else (0,)), err
    file = re.search(r"(?:> |--out )(\S+\.\w+)", command)
    assert (place / file[1]).read_text() if file else out


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in LINES if _is_served(c)], ids=_short)
def test_pages_are_served_until_ctrl_c(command: str, place: Path) -> None:
    """The address that is printed leads to the page; Ctrl-C ends it well."""
    _prepare(command, place)
    with _shell(f"exec {command}", place) as server:
        try:
            assert server.stdout is not None
            with urllib.request.urlopen(server.stdout.readline().strip(), timeout=60) as page:
                assert b"<html" in page.read()
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_no_line_of_shell_is_forgotten() -> None:
    """Every line of shell is one that the tests above run, or is listed with the reason why not."""
    commands = _commands(_in_blocks)
    fenced = [line for page in PAGES for block in SHELL.findall(page.read_text()) for line in block.splitlines()]
    assert {" ".join(line.split()) for line in fenced if line.strip()} <= set(commands)
    assert {_short(c) for c in commands if c not in LINES} == set(NEVER)


@pytest.mark.parametrize("command", [c for c in LINES if not _is_run(c)], ids=_short)
def test_arguments_of_the_others_are_read(command: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verb, arguments and options are those of the command line, and every value is one that it takes."""
    monkeypatch.chdir(world)
    words = _words(command.partition(" > ")[0])
    group = VERBS()
    with group.make_context("normscope", words) as context:
        verb = group.get_command(context, words[0])  # type: ignore[attr-defined]
        assert verb is not None
        verb.make_context(words[0], words[1:], parent=context)


@pytest.mark.parametrize("command", _commands(SPAN.findall), ids=_short)
def test_commands_in_sentences_name_verbs_and_options(command: str) -> None:
    """What stands in a sentence may leave out arguments, but invents neither a verb nor an option."""
    group = VERBS()
    first, *rest = _words(command)
    if first.startswith("--"):
        assert first in {"--help", *(name for p in group.params for name in p.opts)}
        return
    verb = group.commands[first]  # type: ignore[attr-defined]
    known = {name for p in verb.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert {word for word in rest if word.startswith("--")} <= known


def test_make_targets_and_benchmarks_exist() -> None:
    """Of each ``make`` the target, of each ``python -m benchmarks`` the section."""
    from benchmarks.__main__ import CHOICES

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in _commands(_in_blocks):
        words = _words(command)
        if command.startswith("make "):
            assert words[0] in targets, command
        elif "python -m benchmarks" in command:
            assert set(words[words.index("benchmarks") + 1 :]) <= set(CHOICES), command
