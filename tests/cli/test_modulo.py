"""``normscope compare --modulo symmetries``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def test_wrong_use(run: Run) -> None:
    shown = run("compare", MODEL, MODEL, "--modulo", "nothing")
    assert shown.exit_code == 2
    assert "Expected symmetries, got nothing." in shown.stderr
