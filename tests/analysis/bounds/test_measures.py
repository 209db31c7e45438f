"""Measures: some by hand, none moved by a rescaling before BatchNorm, those that do not apply left out."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope
from normscope.analysis.bounds import measures as module
from normscope.analysis.bounds.measures import EARLY, LATE, MORE_STEPS, STEPS, log_gradient_noise, measures, steps_to
from normscope.analysis.bounds.result import RefusedError
from normscope.analysis.bounds.scores import scored
from normscope.core.errors import InputError

from .conftest import captured_of


def test_by_hand() -> None:
    """A network without biases: products of its matrices' norms and its path norm."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    x = torch.randn(100, 3)
    y = net(x).argmax(1)
    found = measures(net, (x, y))
    a, b = (p.detach().double() for p in net.parameters())
    spectral = math.log(float(torch.linalg.matrix_norm(a, 2) * torch.linalg.matrix_norm(b, 2)))
    assert found["log product of spectral norms"] == pytest.approx(spectral, abs=1e-6)
    assert found["log product of Frobenius norms"] == pytest.approx(math.log(float(a.norm() * b.norm())), abs=1e-6)
    # d (prod ||W_i||^2)^(1/d): what the sum of the squares is after balancing the two layers
    assert found["log sum of spectral norms"] == pytest.approx(math.log(2) + spectral, abs=1e-6)
    frobenius = math.log(float(a.norm() * b.norm()))
    assert found["log sum of Frobenius norms"] == pytest.approx(math.log(2) + frobenius, abs=1e-6)
    assert found["log path norm"] == pytest.approx(math.log(float((b.abs() @ a.abs()).sum())), abs=1e-6)
    assert found["parameters"] == 20
    scores = net(x).detach()
    margin = float(torch.quantile((scores[:, 0] - scores[:, 1]).abs().double(), 0.1))
    assert found["log inverse squared margin"] == pytest.approx(-2 * math.log(margin), abs=1e-4)
    assert found["log path norm over margin"] == pytest.approx(found["log path norm"] - math.log(margin), abs=1e-4)


def test_rescaling_before_batch_norm_changes_nothing(trained: Any) -> None:
    """The same function with other numbers."""
    model, train, _ = trained
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight *= 32
        twin[0].bias *= 32
        twin[1].running_mean *= 32
        twin[1].running_var.copy_((twin[1].running_var + twin[1].eps) * 1024 - twin[1].eps)
    first, second = measures(model, train), measures(twin, train)
    assert list(first) == list(second)
    assert len(first) > 20
    for name, value in first.items():
        assert second[name] == pytest.approx(value, rel=0.01, abs=0.02), name
    assert not torch.equal(model[0].weight, twin[0].weight)


def test_what_does_not_apply_is_left_out(trained: Any) -> None:
    """A tanh network has no chain of ReLU layers, but weights, margins and flatness."""
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    found = measures(net, trained[1])
    assert "log path norm" not in found
    assert "log product of spectral norms" not in found
    assert {"parameters", "log flatness (1/sigma^2)", "log flatness, relative (1/sigma^2)"} <= set(found)
    assert "tanh" in found.refused["norms of layers"]
    assert "tanh" in found.refused["path norm"]
    for name, argument in (
        (STEPS, "history="),
        (MORE_STEPS, "history="),
        (EARLY, "early="),
        ("from the start", "start="),
    ):
        assert argument in found.refused[name]


def test_path_of_training(trained: Any) -> None:
    """Steps from a record, gradient noise of the model after the first pass and at the end."""
    model, train, _ = trained
    early = copy.deepcopy(model)
    with torch.no_grad():
        early[5].weight *= 0.2
    record = ([1, 2, 3, 4], [1.0, 0.09, 0.05, 0.01])
    found = measures(model, train, early=early, history=record)
    assert (found[STEPS], found[MORE_STEPS]) == (2.0, 2.0)
    assert found[EARLY] != found[LATE]
    never = measures(model, train, history=(record[0][:3], record[1][:3]))
    assert "never at most 0.01" in never.refused[MORE_STEPS]
    assert never[STEPS] == 2.0


def test_distances_and_priors_by_hand() -> None:
    """How far the weights went, the entropy of what is said, and the formulas of the priors."""
    torch.manual_seed(1)
    start = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    net = copy.deepcopy(start)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.3 * torch.randn(p.shape)
    x = torch.randn(100, 3)
    y = net(x).argmax(1)
    found = measures(net, (x, y), start=start)
    moved = [(a - b).detach().double() for a, b in zip(net.parameters(), start.parameters(), strict=True)]
    total = sum(float(d.square().sum()) for d in moved)
    spectral = sum(float(torch.linalg.matrix_norm(d, 2)) ** 2 for d in moved)
    assert found["log squared distance from the start"] == pytest.approx(math.log(total), abs=1e-5)
    assert found["log sum of squared spectral distances"] == pytest.approx(math.log(spectral), abs=1e-5)
    sigma = math.exp(-found["log flatness (1/sigma^2)"] / 2)
    prior = total / (4 * sigma**2) + math.log(100 / sigma) + 10
    assert found["log PAC-Bayes from the start"] == pytest.approx(math.log(prior), abs=1e-5)
    probable = net(x).detach().double().softmax(1)
    assert found["cross-entropy"] == pytest.approx(float(-probable.gather(1, y[:, None]).log().mean()), abs=1e-5)
    entropy = float((probable * probable.log()).sum(1).mean())
    assert found["negative entropy of outputs"] == pytest.approx(entropy, abs=1e-5)
    assert "log squared distance from the start" not in measures(net, (x, y))


def test_the_worst_change_is_worse_than_noise() -> None:
    """No more of it is tolerated than of random noise of the same size, and it is found by search."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(200, 3)
    found = measures(net, (x, net(x).argmax(1)))
    for kind in ("", ", relative"):
        assert found[f"log sharpness{kind} (1/alpha^2)"] > found[f"log flatness{kind} (1/sigma^2)"]


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
