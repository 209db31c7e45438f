"""A reproduced figure: which claims its runs are held against, and whether it can be repeated from its facts."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.main import get_command

import normscope
from normscope.cli.main import app
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.papers.than2025.figures.reproduction import command_of, evidence_of, facts
from normscope.papers.than2025.figures.setting import FIGURES, settings_of


def _run(folder: Path) -> Run:
    """Write a run of two layers whose norms grow and whose variances do too, and read it."""
    sink = RunFolder(folder)
    sink.begin({"model": "net"}, None)
    for step, size in enumerate((0.5, 2.0)):
        point = {"norm/a": size, "norm/b": size, "product/norms_log10": 2 * size, "probe/accuracy": 0.1 + 0.4 * step}
        reduced = ("inverse_sigma_printed", "inverse_sigma_slides", "inverse_sigma_unscaled", "inverse_sigma_proved")
        point |= {f"product/{name}_log10": -size for name in (*reduced, "folded")}
        point |= {"variance/a": size, "variance/b": size, "variance_min/a": size, "variance_min/b": size}
        sink.log(point, step=step)
    sink.close()
    return Run.open(folder)


def test_each_figure_is_held_against_its_own_claims(tmp_path: Path) -> None:
    """Figure 1 speaks of norms, Figure 2 of variances, Figure 3 of both; every network has its own evidence."""
    run = _run(tmp_path / "run")
    claims = {
        figure: [e.claim for e in evidence_of(figure, {"relu10": run}, tmp_path)] for figure in ("fig1", "fig2", "fig3")
    }
    assert any("norms" in claim for claim in claims["fig1"])
    assert not any("variance" in claim for claim in claims["fig1"])
    assert any("variance" in claim for claim in claims["fig2"])
    assert claims["fig3"] == claims["fig1"] + claims["fig2"]
    two = evidence_of("fig1", {"relu10": run, "resnet18": run}, tmp_path)
    assert [e.network for e in two] == ["relu10"] * len(claims["fig1"]) + ["resnet18"] * len(claims["fig1"])


def test_certified_constants_come_from_the_folder_of_their_network(tmp_path: Path) -> None:
    """They follow the claims about that run, and no other network's folder is read."""
    run = _run(tmp_path / "relu10")
    without = evidence_of("fig1", {"relu10": run, "resnet18": run}, tmp_path)
    for name in ("start", "end"):
        normscope.analyze(nn.Linear(3, 3, bias=False), torch.ones(2, 3)).save(tmp_path / "relu10" / f"{name}.json")
    found = evidence_of("fig1", {"relu10": run, "resnet18": run}, tmp_path)
    added = [e for e in found if e.claim not in {x.claim for x in without}]
    assert added
    assert {e.network for e in added} == {"relu10"}


def test_the_facts_are_enough_to_repeat_it(tmp_path: Path) -> None:
    """Command, settings, versions and every claim, as strict JSON."""
    evidence = evidence_of("fig1", {"relu10": _run(tmp_path / "relu10")}, tmp_path)
    body = facts("fig1", "smoke", settings_of("fig1", "smoke", seed=4), evidence)
    text = json.loads(json.dumps(body, allow_nan=False))
    assert text["command"] == "normscope reproduce fig1 --scale smoke --seed 4"
    assert (text["kind"], text["figure"], text["scale"]) == ("reproduction", "fig1", "smoke")
    assert text["versions"]["torch"] == torch.__version__
    assert text["versions"]["normscope"] == normscope.__version__
    assert text["versions"]["python"] == platform.python_version()
    assert text["threads"] == torch.get_num_threads()
    assert len(text["evidence"]) == len(evidence) == 5
    assert [s["name"] for s in text["settings"]] == list(FIGURES["fig1"])
    assert {s["seed"] for s in text["settings"]} == {4}
    fewer = facts("fig1", "laptop", settings_of("fig1", "laptop"), evidence, certify=False, located=True)
    assert fewer["command"] == "normscope reproduce fig1 --scale laptop --seed 0 --no-certify --data-root DIR"


@pytest.mark.parametrize("certify", [True, False])
@pytest.mark.parametrize("located", [True, False])
def test_the_command_is_one_the_command_line_takes(certify: bool, located: bool) -> None:
    """Every option of it exists."""
    words = shlex.split(command_of("fig2", "paper", 7, certify=certify, located=located))
    assert words[:2] == ["normscope", "reproduce"]
    command = get_command(app).commands["reproduce"]  # type: ignore[attr-defined]
    context = command.make_context("reproduce", words[2:])
    assert (context.params["figure"], context.params["scale"], context.params["seed"]) == ("fig2", "paper", 7)
    assert context.params["no_certify"] is not certify
    assert (context.params["data_root"] is not None) is located
