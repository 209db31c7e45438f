"""Blocks of the documents that are neither Python nor commands: settings, workflows, JSON, calls of other libraries."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.main import get_command

import normscope
from normscope.cli.main import app
from normscope.core.json_form import from_plain
from normscope.core.value import Kind, Value
from normscope.doctor.settings import read_settings

ROOT = Path(__file__).parents[1]
PAGES = [p for p in sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]) if "_build" not in p.parts]
#: Blocks with four spaces before every line, after an empty line.
INDENTED = re.compile(r"(?<=\n\n)((?:(?:    [^\n]*)?\n)*    [^\n]+\n)(?=\n|\Z)")
TEXT = "\n".join(page.read_text() for page in PAGES)
#: Outside of Python, whose lines are indented too.
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)


def _indented(first: str) -> list[str]:
    """Return the indented blocks whose beginning matches."""
    blocks = [textwrap.dedent(block) for block in INDENTED.findall(PROSE)]
    return [block for block in blocks if re.match(first, block)]


def _fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def _parses(verb: str, words: list[str]) -> bool:
    """Read the arguments of a verb with the true parser; it raises where they are wrong."""
    group = get_command(app)
    with group.make_context("normscope", [verb, *words]) as context:
        command = group.get_command(context, verb)  # type: ignore[attr-defined]
        command.make_context(verb, words, parent=context)
    return True


def test_settings_are_read(tmp_path: Path) -> None:
    """Every TOML block is a table of ours, and the reader of settings takes each value from it."""
    blocks = _indented(r"\[")
    assert blocks
    assert not _fenced("toml")
    for block in blocks:
        table = tomllib.loads(block)["tool"]["normscope"]
        (tmp_path / "pyproject.toml").write_text(block)
        found = read_settings(tmp_path)
        assert found.ignore == tuple(table["ignore"])
        assert found.fail_on == table["fail-on"]
        assert found.baseline == tmp_path / table["baseline"]
        assert found.per_place == {place: tuple(codes) for place, codes in table["per-place-ignores"].items()}


def test_workflows_name_what_is_there() -> None:
    """Every YAML block: of a hook its id and arguments, of an action its inputs; both of the version that this is."""
    yaml = pytest.importorskip("yaml")
    hooks = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (first,), (second,) = (yaml.safe_load(block) for block in _indented(r"- \w+:"))
    assert not _fenced("ya?ml")
    assert first["rev"] == f"v{normscope.__version__}"
    assert second["uses"].endswith(f"@v{normscope.__version__}")
    for hook in first["hooks"]:
        assert hook["id"] in hooks
        assert _parses("check", hook["args"])
    assert set(second["with"]) <= set(inputs)
    assert _parses("check", [second["with"]["model"], *second["with"]["arguments"].split()])


def test_json_is_a_value() -> None:
    """The number that is shown is one that the reader of results takes, and its two logarithms are one number."""
    (block,) = _fenced("json")
    value = from_plain(json.loads(block))
    assert isinstance(value, Value)
    assert value.kind is Kind.CERTIFIED
    assert round(value.log10, 3) == json.loads(block)["log10"]


@pytest.mark.parametrize("block", [b for b in _fenced("text") if b.startswith("import ")], ids=lambda b: b.split()[1])
def test_trackers_are_sinks_as_written(block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a stand-in for each library that has the functions its own documentation names."""
    logged: list[tuple[dict[str, float], int]] = []

    def log(values: dict[str, float], step: int) -> None:
        logged.append((values, step))

    for name in ("wandb", "trackio", "mlflow"):
        stand_in = SimpleNamespace(init=lambda project: None, log=log, log_metrics=log)
        monkeypatch.setitem(sys.modules, name, stand_in)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    space: dict[str, Any] = {"normscope": normscope, "model": model, "batch": torch.randn(8, 4)}
    exec(compile(block, "docs", "exec"), space)
    with space["monitor"] as monitor:
        monitor.step(loss=0.5)
    assert any("train/loss" in values for values, _ in logged)


def test_callbacks_are_made_as_written() -> None:
    """The calls of trainers: the callbacks are ours, built with what the page gives them."""
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    trainer = SimpleNamespace(Trainer=lambda *arguments, callbacks: callbacks)
    space = {
        "lightning": trainer,
        "transformers": trainer,
        "LightningDoctor": normscope.monitor.LightningDoctor,
        "HuggingFaceDoctor": normscope.monitor.HuggingFaceDoctor,
        "x": torch.randn(64, 3),
        "tokens": torch.zeros(8, 4, dtype=torch.long),
    }
    (block,) = _indented(r"lightning\.")
    made = [eval(line, space)[0] for line in block.splitlines()]
    assert [type(callback).__name__ for callback in made] == ["LightningDoctor", "HuggingFaceDoctor"]
