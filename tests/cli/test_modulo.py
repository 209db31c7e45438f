"""``normscope compare --modulo symmetries``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from normscope.zoo.catalogue import build

Run = Callable[..., Any]
MODEL = "zoo:relu10[norm=bn,width=4,in_features=9]"


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
    shown = run("compare", *files, "--model", MODEL, "--modulo", "symmetries", "--json")
    assert shown.exit_code == 0, shown.stderr
    body = json.loads(shown.stdout)
    assert body["before"] > 0.1
    assert body["same"]
    quiet = run(
        "compare", *files, "--model", MODEL, "--modulo", "symmetries", "--mode", "batch", "-q", "--out", tmp_path
    )
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert json.loads((tmp_path / "alignment.json").read_text())["same"]


def test_wrong_use(run: Run) -> None:
    shown = run("compare", MODEL, MODEL, "--modulo", "nothing")
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
def test_no_option_is_ignored(run: Run, option: list[str], said: str) -> None:
    """What has no meaning here is refused before anything is loaded, also if it is the default."""
    shown = run("compare", MODEL, MODEL, "--modulo", "symmetries", *option)
    assert shown.exit_code == 2
    assert said in " ".join(shown.stderr.split())
    assert option[0] in shown.stderr
