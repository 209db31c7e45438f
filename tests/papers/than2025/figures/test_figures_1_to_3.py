"""Evidence: what a run shows decides, on runs whose numbers are known."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.main import get_command

import normscope
from normscope import analyze
from normscope.cli.main import app
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.papers.study import Evidence
from normscope.papers.than2025.figures.figures_1_to_3 import (
    certified_evidence,
    command_of,
    evidence_of,
    facts,
    product_of_variances,
    reduction_evidence,
    variance_evidence,
    variances,
    weight_norm_evidence,
)
from normscope.papers.than2025.figures.training_setting import FIGURES, settings_of


def _run(folder: Path, *points: dict[str, float]) -> Run:
    """Write points as a monitor would, and read them."""
    sink = RunFolder(folder)
    sink.begin({"model": "net"}, None)
    for step, point in enumerate(points):
        sink.log(point, step=step)
    sink.close()
    return Run.open(folder)


def _norms(a: float, b: float, accuracy: float) -> dict[str, float]:
    product = float(np.log10(a * b))
    return {"norm/a": a, "norm/b": b, "product/norms_log10": product, "probe/accuracy": accuracy}


def _agreed(evidence: list[Evidence]) -> list[bool | None]:
    return [e.agrees for e in evidence]


def test_growing_norms_agree_and_shrinking_ones_do_not(tmp_path: Path) -> None:
    """Every claim turns with the numbers."""
    grown = _run(tmp_path / "a", _norms(0.5, 0.5, 0.1), _norms(2.0, 3.0, 0.9))
    assert _agreed(weight_norm_evidence(grown, "relu10")) == [True, True, None, True, True]
    shrunk = _run(tmp_path / "b", _norms(2.0, 3.0, 0.1), _norms(0.5, 0.5, 0.1))
    assert _agreed(weight_norm_evidence(shrunk, "relu10")) == [False, False, None, False, False]


@pytest.mark.parametrize(("size", "agrees"), [(1e26, True), (1e24, False)])
def test_the_product_of_a_resnet_must_reach_what_the_paper_says(tmp_path: Path, size: float, agrees: bool) -> None:
    """1e50, not just some growth."""
    run = _run(tmp_path, _norms(1.0, 1.0, 0.1), _norms(size, size, 0.9))
    claim = next(e for e in weight_norm_evidence(run, "resnet18") if "1e50" in e.claim)
    assert claim.agrees is agrees
    assert claim.measured["log10"] == pytest.approx(2 * np.log10(size))


def test_variances_before_normalizers_where_there_are_some(tmp_path: Path) -> None:
    """Before activations otherwise; the product is of the mean variances."""
    point = {"variance/bn": 100.0, "variance_min/bn": 1.0, "variance/relu": 7.0}
    run = _run(tmp_path / "bn", point, point)
    assert list(variances(run)) == ["bn"]
    assert product_of_variances(run).values == pytest.approx([2.0, 2.0])
    plain = _run(tmp_path / "plain", {"variance/relu": 10.0, "variance/last": 1000.0})
    assert list(variances(plain)) == ["relu", "last"]
    assert product_of_variances(plain).values == pytest.approx([4.0])


def _reduced(variance: float, **logs: float) -> dict[str, float]:
    """Return a point of two equal variances and some products."""
    found = {"variance/a": variance, "variance/b": variance}
    return found | {f"product/{name}_log10": log for name, log in logs.items()}


def test_each_sense_of_the_reduction_is_held_against_the_number_of_the_paper(tmp_path: Path) -> None:
    """1e-25 of the mean variance needs variances whose product is 1e50; a reduction to 1e-24 is not enough."""
    logs = {
        "inverse_sigma_printed": -25.0,
        "inverse_sigma_slides": -24.0,
        "inverse_sigma_unscaled": -26.0,
        "inverse_sigma_proved": 1.0,
        "folded": -30.0,
    }
    points = [_reduced(0.5, **dict.fromkeys(logs, 0.0)), _reduced(1e12, **logs), _reduced(1e25, **logs)]
    run = _run(tmp_path, *points)
    found = reduction_evidence(run, "resnet18")
    assert [e.agrees for e in found] == [True, True, False, True, False, True]
    assert [e.measured["log10"] for e in found] == pytest.approx([-25.0, *logs.values()])
    assert all("1e-25" in e.claim for e in found)
    assert len({e.claim for e in found}) == 6


def test_the_number_is_claimed_of_one_network_alone(tmp_path: Path) -> None:
    """Elsewhere the same products are measurements; without normalizers there is but the mean variance."""
    run = _run(tmp_path / "b3", _reduced(2.0, inverse_sigma_proved=1.0), _reduced(3.0, inverse_sigma_proved=1.0))
    assert [e.agrees for e in reduction_evidence(run, "efficientnet_b3")] == [None, None]
    plain = _run(tmp_path / "plain", _reduced(2.0), _reduced(3.0))
    (only,) = reduction_evidence(plain, "relu10")
    assert only.agrees is None
    assert "1e-25" not in only.claim


@pytest.mark.parametrize(
    ("logs", "agrees"),
    [
        ([0.0, 1.0, 2.1, 2.9, 4.0], True),
        ([0.0, 4.0, 7.0, 5.0, 3.5], False),  # rises, then falls
        ([0.0, 9.0, 9.0, 9.1, 9.0], False),  # jumps, then stays
        ([4.0, 3.0, 2.0, 1.0, 0.0], False),  # falls
        ([1.0, 1.0, 1.0, 1.0, 1.0], False),
        ([0.0, 9.0], None),  # two points are always on a line
    ],
)
def test_exponential_growth_is_a_line_of_logarithms(tmp_path: Path, logs: list[float], agrees: bool | None) -> None:
    """Slope and R^2 are those of numpy's fit."""
    run = _run(tmp_path, *(_reduced(10 ** (x / 2)) for x in logs))
    (claim,) = [e for e in variance_evidence(run, "resnet18") if "exponentially" in e.claim]
    assert claim.agrees is agrees
    if agrees is not None:
        slope, constant = np.polyfit(range(len(logs)), logs, 1)
        assert claim.measured["log10 per 1000 updates"] == pytest.approx(1000 * slope, abs=1e-9)
        left = np.array(logs) - (slope * np.arange(len(logs)) + constant)
        if np.var(logs) > 0:
            assert claim.measured["R^2"] == pytest.approx(1 - np.var(left) / np.var(logs))


def test_variances_of_the_start_and_of_the_end(tmp_path: Path) -> None:
    """Small ones at the start and two beyond ten at the end agree; steady ones do not."""
    grown = _run(tmp_path / "grown", _reduced(0.5), _reduced(50.0))
    assert _agreed(variance_evidence(grown, "resnet18"))[:2] == [True, True]
    steady = _run(tmp_path / "steady", _reduced(2.0), _reduced(2.0))
    assert _agreed(variance_evidence(steady, "resnet18"))[:2] == [False, False]


def test_certified_constants_come_from_the_results_beside_the_run(tmp_path: Path) -> None:
    """Their logarithms, first and last; nothing where there are none."""
    assert certified_evidence(tmp_path, "net") == []
    x = torch.ones(2, 3)
    for name, factor in (("start", 1.0), ("end", 10.0)):
        model = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.eye(3) * factor)
        analyze(model, x).save(tmp_path / f"{name}.json")
    found = {e.claim: e.measured for e in certified_evidence(tmp_path, "net")}
    (floor,) = [m for claim, m in found.items() if "variance floor" in claim]
    assert floor["log10, first"] == pytest.approx(0.0, abs=1e-9)
    assert floor["log10"] == pytest.approx(1.0, abs=1e-9)


def _growing_run(folder: Path) -> Run:
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
    run = _growing_run(tmp_path / "run")
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
    run = _growing_run(tmp_path / "relu10")
    without = evidence_of("fig1", {"relu10": run, "resnet18": run}, tmp_path)
    for name in ("start", "end"):
        normscope.analyze(nn.Linear(3, 3, bias=False), torch.ones(2, 3)).save(tmp_path / "relu10" / f"{name}.json")
    found = evidence_of("fig1", {"relu10": run, "resnet18": run}, tmp_path)
    added = [e for e in found if e.claim not in {x.claim for x in without}]
    assert added
    assert {e.network for e in added} == {"relu10"}


def test_the_facts_are_enough_to_repeat_it(tmp_path: Path) -> None:
    """Command, settings, versions and every claim, as strict JSON."""
    evidence = evidence_of("fig1", {"relu10": _growing_run(tmp_path / "relu10")}, tmp_path)
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
