"""``normscope compare``: models, checkpoints and stored results in any mixture that makes sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from normscope.cli.main import app
from normscope.report.embed import read_back
from normscope.zoo.catalogue import build

Run = Callable[..., Any]
RUNNER = CliRunner()
MODULO = "zoo:relu10[norm=bn,width=4,in_features=9]"
SMALL = "zoo:relu10[norm={},width=8,depth=3,in_features=64]"


def _compare(tmp_path: Path, *arguments: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, ["compare", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == code, result.output
    return result.output


def test_two_normalizers_side_by_side_with_their_findings(tmp_path: Path) -> None:
    """Text, JSON and a page that holds both results."""
    bn, ln = SMALL.format("bn"), SMALL.format("ln")
    text = _compare(tmp_path, bn, ln, "--data", "digits", "--limit", "64")
    assert "batch_norm / layer_norm" in text
    assert f"A = {bn}" in text
    assert "findings" in text
    body = json.loads((tmp_path / "comparison.json").read_text())
    assert body["models"] == [bn, ln]
    assert body["checked"] == [True, True]
    page = (tmp_path / "report.html").read_text()
    assert list(read_back(page)) == [bn, ln]
    assert "batch_norm / layer_norm" in page


def test_checkpoints_of_one_model(tmp_path: Path) -> None:
    """With the model their end-to-end constants, without it their weights alone."""
    for name, factor in (("a.pt", 1.0), ("b.pt", 10.0)):
        model = build("relu10", seed=0, norm="none", width=8, depth=3, in_features=64)
        with torch.no_grad():
            model.head.weight.mul_(factor)
        torch.save(model.state_dict(), tmp_path / name)
    a, b = str(tmp_path / "a.pt"), str(tmp_path / "b.pt")
    text = _compare(tmp_path, a, b, "--model", SMALL.format("none"), "--no-check", "--json")
    body = json.loads(text[text.index("{") :])
    whole = next(q for q in body["end_to_end"] if q["name"] == "global")
    assert whole["changes_log10"][1] == pytest.approx(1.0, abs=1e-6)
    text = _compare(tmp_path, a, b, "--no-check")
    assert "head.weight" in text
    assert "x 10" in text


def test_models_that_do_not_run_are_told_before_any_is_analyzed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name of the one that does not: the first may take hours."""
    monkeypatch.setattr("normscope.cli.compare.analyzed", None)
    text = _compare(tmp_path, SMALL.format("bn"), "zoo:resnet18", "--input", "1,8,8", code=2)
    assert "normscope: zoo:resnet18: The model does not run on an input of shape (2, 1, 8, 8)" in text


def test_an_earlier_result_beside_a_model(tmp_path: Path) -> None:
    """The doctor saw only the model, and it is said."""
    spec = SMALL.format("bn")
    done = RUNNER.invoke(app, ["analyze", spec, "--out", str(tmp_path / "old"), "--no-report", "-q"])
    assert done.exit_code == 0, done.output
    text = _compare(tmp_path, str(tmp_path / "old" / "result.json"), spec)
    assert "none of 3 changed" in text
    assert "not checked: A" in text


def test_a_folder_that_analyze_wrote_is_its_result(tmp_path: Path) -> None:
    """Just as the result.json in it."""
    folders = [str(tmp_path / norm) for norm in ("bn", "ln")]
    for norm, folder in zip(("bn", "ln"), folders, strict=True):
        done = RUNNER.invoke(app, ["analyze", SMALL.format(norm), "--out", folder, "--no-report", "-q"])
        assert done.exit_code == 0, done.output
    shown = json.loads(_compare(tmp_path, *folders, "--json"))
    files = json.loads(_compare(tmp_path / "files", *(f"{folder}/result.json" for folder in folders), "--json"))
    assert shown["models"] == folders
    assert {**shown, "models": files["models"]} == files


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ((SMALL.format("bn"),), "at least two"),
        ((SMALL.format("bn"), "nowhere.json"), "File not found: nowhere.json"),
        ((SMALL.format("bn"), "zoo:nothing"), "No network 'nothing'"),
        ((SMALL.format("bn"), "nowhere.pt"), "File not found: nowhere.pt"),
    ],
)
def test_wrong_use_is_told_with_exit_code_2(tmp_path: Path, items: tuple[str, ...], said: str) -> None:
    """And nothing is written."""
    assert said in _compare(tmp_path, *items, "--no-check", code=2)
    assert list(tmp_path.iterdir()) == []


def test_places_are_checked_before_the_work(tmp_path: Path) -> None:
    """A folder in the place of a file, and one file for two results."""
    (tmp_path / "comparison.json").mkdir()
    assert "is a folder" in _compare(tmp_path, "zoo:nothing", "zoo:nothing", code=2)
    (tmp_path / "comparison.json").rmdir()
    same = str(tmp_path / "comparison.json")
    assert "Two results would be written to the same file" in _compare(
        tmp_path, "zoo:nothing", "zoo:nothing", "--report", same, code=2
    )


@pytest.mark.turns(3)
def test_a_permuted_and_scaled_copy_is_the_same_network(run: Run, tmp_path: Path) -> None:
    state = build("relu10", norm="bn", width=4, in_features=9).state_dict()
    names = [name for name, value in state.items() if value.ndim == 2]
    save_file(state, tmp_path / "one.safetensors")
    order = torch.tensor([2, 0, 3, 1])
    state = {name: value.clone() for name, value in state.items()}
    first = names[0].removesuffix(".weight")
    norm = next(name for name in state if name.endswith("running_mean")).removesuffix(".running_mean")
    state[names[0]] = 3.0 * state[names[0]][order]
    if f"{first}.bias" in state:
        state[f"{first}.bias"] = 3.0 * state[f"{first}.bias"][order]
    for part in ("weight", "bias", "running_mean", "running_var"):
        state[f"{norm}.{part}"] = state[f"{norm}.{part}"][order]
    state[names[1]] = state[names[1]][:, order].contiguous()
    save_file(state, tmp_path / "two.safetensors")
    files = [str(tmp_path / "one.safetensors"), str(tmp_path / "two.safetensors")]
    shown = run("compare", *files, "--model", MODULO, "--modulo", "symmetries", "--json")
    assert shown.exit_code == 0, shown.stderr
    body = json.loads(shown.stdout)
    assert body["before"] > 0.1
    assert body["same"]
    quiet = run(
        "compare", *files, "--model", MODULO, "--modulo", "symmetries", "--mode", "batch", "-q", "--out", tmp_path
    )
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert json.loads((tmp_path / "alignment.json").read_text())["same"]


def test_modulo_anything_else_is_wrong_use(run: Run) -> None:
    shown = run("compare", MODULO, MODULO, "--modulo", "nothing")
    assert shown.exit_code == 2
    assert "Expected symmetries, got nothing." in shown.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--mode", "running"], "expected batch, got running"),
        (["--mode", "frozen-batch"], "expected batch, got frozen-batch"),
        (["--device", "cpu"], "nothing is analyzed"),
        (["--no-check"], "nothing is analyzed"),
        (["--printed"], "nothing is analyzed"),
        (["--all"], "nothing is analyzed"),
        (["--report", "page.html"], "nothing is analyzed"),
    ],
)
def test_no_option_is_ignored_modulo_symmetries(run: Run, option: list[str], said: str) -> None:
    """What has no meaning here is refused before anything is loaded, also if it is the default."""
    shown = run("compare", MODULO, MODULO, "--modulo", "symmetries", *option)
    assert shown.exit_code == 2
    assert said in " ".join(shown.stderr.split())
    assert option[0] in shown.stderr
