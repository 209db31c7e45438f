"""``normscope complexity``: counts from a model, and from a result written before."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.zoo.catalogue import build

Run = Callable[..., Any]
MODEL = "zoo:relu10[norm=bn,width=6,in_features=64]"


def test_model_and_result_agree(run: Run) -> None:
    """The counts of a model are those of its result."""
    direct = run("complexity", MODEL, "--json")
    assert direct.exit_code == 0, direct.stderr
    assert run("analyze", MODEL, "--quiet", "--ascent", 0).exit_code == 0
    read = run("complexity", "result.json", "--json")
    assert read.exit_code == 0, read.stderr
    first, second = json.loads(direct.stdout), json.loads(read.stdout)
    assert first["kind"] == "complexity"
    for a, b in zip(first["layers"], second["layers"], strict=True):
        for part in ("without_normalizers", "with_normalizers"):
            if a[part] is not None:
                assert a[part]["lipschitz"]["log10"] == pytest.approx(b[part]["lipschitz"]["log10"], abs=1e-6)
    assert len(first["layers"]) == 10
    assert first["layers"][-1]["with_normalizers"] is None


def test_weights_are_those_of_a_file(run: Run) -> None:
    """Doubled weights have other counts; a result that is stored has its own."""
    model = build("relu10", norm="bn", width=6, in_features=64)
    with torch.no_grad():
        model.head.weight.mul_(2)
    torch.save(model.state_dict(), "w.pt")
    plain, loaded = (run("complexity", MODEL, "--json", *more).stdout for more in ((), ("--weights", "w.pt")))
    first, other = (json.loads(text)["layers"][0]["without_normalizers"]["lipschitz"] for text in (plain, loaded))
    assert other["log10"] == pytest.approx(first["log10"] + math.log10(2), abs=1e-3)
    assert run("complexity", "result.json", "--weights", "w.pt").exit_code == 2


@pytest.mark.turns(2)
def test_any_model_has_counts_on_its_real_graph(run: Run) -> None:
    """A network with skips is no chain, and its weights still have certified constants."""
    shown = run("complexity", "zoo:preact_resnet18[width=4]", "--json", "--input", "3,8,8")
    assert shown.exit_code == 0, shown.stderr
    body = json.loads(shown.stdout)
    assert not body["plain_chain"]
    assert len(body["weights"]) > 20
    assert {w["lipschitz"]["kind"] for w in body["weights"]} == {"certified"}
    assert all(isinstance(w["goldstein"]["log10"], float) for w in body["weights"])


def test_text(run: Run) -> None:
    """Printed and true side by side, and what is assumed."""
    shown = run("complexity", MODEL, "--loss", "l1", "--alpha", 0.01)
    assert shown.exit_code == 0
    for words in (
        "without normalizers",
        "with normalizers",
        "printed 18",
        "Goldstein",
        "a plain chain of layers",
        "on the real graph",
    ):
        assert words in shown.stdout
    assert "loss l1" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere.json",), "File not found: nowhere.json"),
        (("wrong.json",), "wrong.json is not a result of `normscope analyze`"),
        ((MODEL, "--alpha", "0"), "Expected alpha to be positive"),
        ((MODEL, "--loss", "none"), "No rule for a loss named 'none'"),
        (("zoo:nothing",), "nothing"),
        (("weights.pt",), "Expected a model, got a checkpoint"),
    ],
)
def test_wrong_use(run: Run, arguments: tuple[str, ...], text: str) -> None:
    """Exit code 2 and one clear line."""
    Path("wrong.json").write_text('{"schema_version": 1}')
    result = run("complexity", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
