"""The path of training: steps by hand and from a monitored run, the noise of gradients against plain autograd."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope
from normscope.analysis.bounds import path_measures as module
from normscope.analysis.bounds.chain import RefusedError
from normscope.analysis.bounds.path_measures import log_gradient_noise, steps_to
from normscope.analysis.bounds.scores import scored
from normscope.core.errors import InputError

from .conftest import captured_of

RECORD = ([0, 5, 10, 15, 20], [2.0, 0.2, 0.1, 0.3, 0.009])


def test_steps() -> None:
    """The first time counts; what was not reached is refused, and what is no record."""
    assert steps_to(RECORD, 0.1) == 10
    assert steps_to(RECORD, 0.01, 0.1) == 10
    with pytest.raises(RefusedError, match="never"):
        steps_to(RECORD, 1e-3)
    for wrong in (3, ([1, 2], [1.0]), ([], []), ([2, 1], [1.0, 2.0]), ([1], [math.nan])):
        with pytest.raises(InputError, match="Expected"):
            steps_to(wrong, 0.1)


def test_series_of_a_run(tmp_path: Path) -> None:
    """What a monitor has written."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(32, 3), torch.randint(0, 2, (32,))
    with normscope.Monitor(model, probe=(x, y), optimizer=optimizer, run=tmp_path / "run", preset="economy") as mon:
        for k in range(6):
            mon.step(loss=1.0 / (k + 1))
    series = normscope.Run.open(tmp_path / "run").series("train/loss")
    reached = [int(s) for s, v in zip(series.steps, series.values, strict=True) if v <= 0.3]
    assert steps_to(series, 0.3) == reached[0] > 0


def test_noise_of_gradients(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a linear model, where the gradient of a batch is a formula; gentler batches, less noise."""
    _, (x, y), _ = trained
    net = nn.Linear(2, 2)
    captured = captured_of(net, 4, 2)
    train = scored(captured, (x, y), "train", None, 0, lambda text: None)
    found = log_gradient_noise(captured, train, 0)
    labels, source = train.labels[train.chosen], torch.Generator().manual_seed(0)
    rows = []
    for _ in range(module.GRADIENTS):
        i = torch.randint(len(train.some), (module.BATCH,), generator=source)
        z = train.some[i]
        off = (net(z).softmax(1) - F.one_hot(labels[i], 2)).detach().double() / module.BATCH
        rows.append(torch.cat([(off.T @ z.double()).flatten(), off.sum(0)]))
    assert found == pytest.approx(math.log(float(torch.stack(rows).var(0).sum())), rel=1e-4)
    monkeypatch.setattr(module, "BATCH", 512)
    assert log_gradient_noise(captured, train, 0) < found - 2
