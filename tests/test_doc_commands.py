"""Every command line in the documents is one that works: the quick ones run, the others are read by the true parser."""

from __future__ import annotations

import re
import shlex
import shutil
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

ROOT = Path(__file__).parents[1]
PAGES = [p for p in sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]) if "_build" not in p.parts]
#: A block, fenced or indented; a command in it; and one in a sentence.
BLOCK = re.compile(r"^```(?:sh|text)\n(.*?)^```|^    (\w[^\n]*)$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:\$ )?((?:normscope (?=[a-z-])|make |python -m benchmarks ).+)$", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`(normscope [a-z-][^`]*)`(?!`)")
#: Verbs whose commands are run; of all others (servers, training, hours of search) the arguments are parsed.
RUN = ("analyze", "check", "compare", "explain", "fix", "report", "symmetry")
#: Commands of those verbs that are parsed only, and why.
TOO_LONG = {
    "zoo:resnet18": "a network of 11 million parameters",
    "3,224,224": "its network is not the one here",
    "--time 60": "searches for a minute",
    "--data digits": "certifies balls around hundreds of digits",
    "--radius": "certifies balls around data",
    "bounds.json": "its results come of verbs that take long",
    "--orbits": "its arrow into a file is the shell's",
    "result.json symmetry.json": "its result is what that arrow leaves",
    "MODEL": "a place for the reader's own words",
}
NETWORK = """from torch import nn, optim


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def make_optimizer(model):
    return optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
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
    return _words(command)[0] in RUN and not any(part in command for part in TOO_LONG)


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


@pytest.mark.parametrize("command", [c for c in LINES if not _is_run(c)], ids=_short)
def test_arguments_of_the_others_are_read(command: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verb, arguments and options are those of the command line, and every value is one that it takes."""
    monkeypatch.chdir(world)
    words = _words(command.partition(" > ")[0])
    group = get_command(app)
    with group.make_context("normscope", words) as context:
        verb = group.get_command(context, words[0])  # type: ignore[attr-defined]
        assert verb is not None
        verb.make_context(words[0], words[1:], parent=context)


@pytest.mark.parametrize("command", _commands(SPAN.findall), ids=_short)
def test_commands_in_sentences_name_verbs_and_options(command: str) -> None:
    """What stands in a sentence may leave out arguments, but invents neither a verb nor an option."""
    group = get_command(app)
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
        elif command.startswith("python "):
            assert words[2] in CHOICES, command
