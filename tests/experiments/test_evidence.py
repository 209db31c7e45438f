"""Evidence: what a run shows decides, on runs whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from normscope import analyze
from normscope.experiments.evidence import (
    Evidence,
    certified_evidence,
    product_of_variances,
    variance_evidence,
    variances,
    weight_norm_evidence,
)
from normscope.experiments.reproduction import evidence_of, facts
from normscope.experiments.setting import settings_of
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder


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
    assert _agreed(weight_norm_evidence(grown, "relu10")) == [True, True, True, True]
    shrunk = _run(tmp_path / "b", _norms(2.0, 3.0, 0.1), _norms(0.5, 0.5, 0.1))
    assert _agreed(weight_norm_evidence(shrunk, "relu10")) == [False, False, False, False]


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


def test_large_variances_reduce_the_printed_product(tmp_path: Path) -> None:
    """1e-25 needs variances whose product is 1e50."""

    def point(variance: float, proved: float) -> dict[str, float]:
        return {
            "variance/a": variance,
            "variance/b": variance,
            "product/inverse_sigma_printed_log10": 1.0,
            "product/inverse_sigma_proved_log10": proved,
            "product/folded_log10": 3.0,
        }

    run = _run(tmp_path, point(0.5, 0.1), point(1e25, -2.0))
    found = {e.claim[:30]: e.agrees for e in variance_evidence(run, "resnet18")}
    assert list(found.values()) == [True, True, True, True, False, True, None]
    small = _run(tmp_path / "small", point(2.0, 0.1), point(2.0, 0.1))
    assert _agreed(variance_evidence(small, "resnet18")) == [False, False, False, False, False, False, None]


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


def test_the_facts_are_enough_to_repeat_it(tmp_path: Path) -> None:
    """Command, settings, versions and every claim, as strict JSON."""
    run = _run(tmp_path / "relu10", _norms(0.5, 0.5, 0.1), _norms(2.0, 3.0, 0.9))
    evidence = evidence_of("fig1", {"relu10": run}, tmp_path)
    body = facts("fig1", "smoke", settings_of("fig1", "smoke", seed=4), evidence)
    text = json.loads(json.dumps(body, allow_nan=False))
    assert text["command"] == "normscope reproduce fig1 --scale smoke --seed 4"
    assert text["versions"]["torch"] == torch.__version__
    assert len(text["evidence"]) == len(evidence) == 4
    assert text["settings"][0]["network"] == "relu10"
