"""The experiment runs, is the same for a seed, and judges each claim by what it measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from normscope.papers.akbar2025.experiments import experiment_3_margins as experiment
from normscope.papers.study import run_study


def test_ten_seeds_give_a_verdict_for_each_claim() -> None:
    study = run_study("geometry3", "smoke")
    assert study.name == "geometry3"
    assert study.settings["seeds"] >= 10
    assert {found.agrees for found in study.evidence} >= {True, None}
    json.dumps(study.to_dict(), allow_nan=False)
    numbers = [x for panel in study.charts for line in panel.lines for x in line.y]
    assert all(math.isfinite(x) for x in numbers)
    ten = next(found for found in study.evidence if "10 W" in found.claim)
    assert ten.measured["with 10 W"] > ten.measured["mean accuracy"]  # the same function, another flatness


def test_training_does_not_see_the_test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other samples behind those for training end in the same weights."""
    few, ends = replace(experiment.SETTINGS["smoke"], seeds=1, steps=3, train=10, test=5), []
    drawn, measured = experiment.seeded_normal, experiment._measured

    def other_test_samples(*sizes: int) -> torch.Tensor:
        x = drawn(*sizes)
        if sizes[2:] == (15, 50):
            x[:, 10:] *= -2.0
        return x

    def kept(end: Any, *rest: Any) -> Any:
        ends.append(end)
        return measured(end, *rest)

    monkeypatch.setattr(experiment, "_measured", kept)
    experiment.run(few, 0, None, print)
    monkeypatch.setattr(experiment, "seeded_normal", other_test_samples)
    experiment.run(few, 0, None, print)
    for one, other in zip(ends[:2], ends[2:], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
