"""The monitor's largest eigenvalue beside training: what a reading costs, and how near it comes along real runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.graph.guard import same_bits
from normscope.linalg.thick_restart import eigenpairs
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import curvature
from normscope.zoo import catalogue as zoo
from normscope.zoo.data.load import load_data
from normscope.zoo.load import load_model
from normscope.zoo.randomness import seeded

Say = Callable[[str], None]


#: Updates between two readings where their cost is measured.
EVERY = 100


@dataclass(frozen=True)
class Training:
    """A training beside which readings are made.

    Attributes:
        name: of the network and its weights.
        build: returns the network.
        data: inputs and labels.
        batch: samples of a batch.
        probe: samples of the probe.
        optimizer: of parameters.
    """

    name: str
    build: Callable[[], nn.Module]
    data: tuple[Tensor, Tensor]
    batch: int
    probe: int
    optimizer: Callable[..., torch.optim.Optimizer]


def overheads(steps: int, weights: Path | None, cifar: Path | None, say: Say) -> Iterator[dict[str, Any]]:
    """Yield what one reading in a hundred updates costs, with no limit of the monitor's time."""
    for training in _trainings(weights, cifar):
        yield _overhead(training, steps, say)


def _trainings(weights: Path | None, cifar: Path | None) -> Iterator[Training]:
    """Yield the trainings."""
    fast, slow = (partial(torch.optim.SGD, momentum=0.9, lr=rate) for rate in (0.05, 0.01))
    if cifar is not None:
        images = load_data("cifar10", cifar, "train", 12800, normalize="imagenet").tensors()
        assert images.labels is not None
        data = images.inputs, images.labels
        for size in (128, 64):
            yield Training("ResNet-20, random weights", partial(zoo.build, "resnet20", seed=3), data, size, 32, fast)
        if weights is not None:
            trained = partial(load_model, "zoo:resnet20", weights=weights)
            yield Training("ResNet-20, trained weights", trained, data, 128, 32, slow)
    gpt = partial(zoo.build, "gpt", vocabulary=128, context=64, width=384, layers=6, heads=6)
    adam = partial(torch.optim.AdamW, lr=1e-3)
    yield Training("GPT, 6 layers of 384, context 64", gpt, _letters(64), 12, 3, adam)


def _overhead(training: Training, steps: int, say: Say) -> dict[str, Any]:
    """Compare the CPU time of readings with that of the training around them, and readings with the eigenvalues.

    A twin without a monitor is trained in turns until some updates after the first reading, and compared bit for bit.
    """
    say(f"monitor, {training.name}, batches of {training.batch}")
    (x, y), generator = training.data, torch.Generator().manual_seed(0)
    models = [_initial(training) for _ in range(2)]
    optimizers = [training.optimizer(model.parameters()) for model in models]
    probe, spent, losses = (x[: training.probe], y[: training.probe]), 0.0, ([], [])
    monitor = Monitor(
        models[0], probe, optimizer=optimizers[0], quantities=("curvature",), every=EVERY, budget=math.inf, loss=_loss
    ).begin()
    parts, products, truths, values = [], [], [], []
    identical, compared = False, min(EVERY + 6, steps)
    for step in range(1, steps + 1):
        batch = torch.randint(0, len(x), (training.batch,), generator=generator)
        for model, optimizer, seen in zip(models, optimizers, losses, strict=False):
            begin = time.process_time()
            loss = _loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            spent += time.process_time() - begin if model is models[0] else 0.0
            seen.append(float(loss.detach()))
        probes = monitor.probes
        _told(monitor, parts, products, values)
        if monitor.probes > probes:
            truths.append(_truth(models[0], probe))
        if step == compared:
            pairs = zip(*(model.state_dict().values() for model in models), strict=True)
            identical = losses[0] == losses[1] and all(same_bits(a, b) for a, b in pairs)
            models, optimizers = models[:1], optimizers[:1]
    while _quantity(monitor).unfinished:  # the last one needs no further training
        _told(monitor, parts, products, values)
    errors = [1 - value / truth for value, truth in zip(values, truths, strict=True)]
    return {
        "case": training.name, "batch": training.batch, "probe": training.probe, "steps": steps, "step": spent / steps,
        "readings": len(products), "reading": sum(parts) / len(products), "products": float(np.mean(products)),
        "most": max(products), "updates": len(parts) / len(products), "overhead": sum(parts) / spent,
        "median": float(np.median(errors)), "worst": max(map(abs, errors)), "compared": compared,
        "identical": identical,
    }  # fmt: skip


def _initial(training: Training) -> nn.Module:
    """Return the network as training begins."""
    with seeded(3):
        return training.build().train()


def _told(monitor: Monitor, parts: list[float], products: list[int], values: list[float]) -> None:
    """Tell a monitor of an update; keep the CPU seconds of it, and products and value of a finished reading."""
    begin, probes, unfinished = time.process_time(), monitor.probes, _quantity(monitor).unfinished
    monitor.step()
    spent = time.process_time() - begin
    if unfinished or monitor.probes > probes:
        parts.append(spent)
        if not _quantity(monitor).unfinished:
            products.append(_quantity(monitor).products)
            values.append(monitor.latest["curvature/largest"])


def _quantity(monitor: Monitor) -> curvature.LargestCurvature:
    """Return the one quantity of a monitor."""
    (quantity,) = monitor.quantities
    assert isinstance(quantity, curvature.LargestCurvature)
    return quantity


@dataclass(frozen=True)
class Run:
    """A training along which the largest eigenvalue is read.

    Attributes:
        name: of the data and the network.
        model: the network.
        data: inputs and labels.
        probe: samples of the probe.
        every: updates between two readings.
        readings: how many.
        after: updates before the first.
        rate: the learning rate; of SGD with momentum, or of Adam.
        adam: whether it is Adam.
    """

    name: str
    model: nn.Module
    data: tuple[Tensor, Tensor]
    probe: int
    every: int
    readings: int
    after: int = 0
    rate: float = 0.05
    adam: bool = False


def followed(cifar: Path | None, readings: int, say: Say) -> Iterator[dict[str, Any]]:
    """Follow the largest eigenvalue along real runs, with a reading every so many updates, or as often as it can."""
    for run in _runs(cifar, readings):
        yield _followed(run, say)


def _runs(cifar: Path | None, readings: int) -> Iterator[Run]:
    """Yield the trainings."""
    digits = load_data("digits", None, "train", 1400).tensors()
    assert digits.labels is not None
    for every in (1, 10, 100):
        with seeded(0):
            model = nn.Sequential(
                nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
            )  # fmt: skip
        yield Run("digits, MLP with BatchNorm", model, (digits.inputs.flatten(1), digits.labels), 64, every, readings)
    if cifar is None:
        return
    for every in (1, 10):
        gpt = zoo.build("gpt", vocabulary=128, width=64, layers=2, heads=4)
        yield Run("letters, GPT of 2 layers", gpt, _letters(), 32, every, readings, 100, 1e-3, adam=True)
    images = load_data("cifar10", cifar, "train", 3200, normalize="imagenet").tensors()
    assert images.labels is not None
    few = min(readings, 20)
    for every, after in ((1, 0), (1, 150), (10, 0)):
        network = zoo.build("resnet20")
        yield Run(
            "CIFAR-10, ResNet-20", network, (images.inputs, images.labels), 32, every,
            few if every == 1 else few // 2, after,
        )  # fmt: skip


def _letters(length: int = 32) -> tuple[Tensor, Tensor]:
    """Return the letters of the documents of this project in pieces, and the letter that follows each."""
    files = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    codes = torch.tensor([min(ord(letter), 127) for letter in text])
    pieces = codes[: len(codes) // (length + 1) * (length + 1)].view(-1, length + 1)
    pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of classes or of tokens."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def _followed(run: Run, say: Say) -> dict[str, Any]:
    """Train, and compare each reading after the first with the eigenvalue that a long search finds at its weights."""
    say(f"{run.name}: a reading every {run.every} updates after {run.after}")
    model, (x, y) = run.model.train(), run.data
    if run.adam:
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), run.rate)
    else:
        optimizer = torch.optim.SGD(model.parameters(), run.rate, momentum=0.9)
    generator = torch.Generator().manual_seed(0)

    def train() -> None:
        batch = torch.randint(0, len(x), (64,), generator=generator)
        optimizer.zero_grad()
        _loss(model(x[batch]), y[batch]).backward()
        optimizer.step()

    for _ in range(run.after):
        train()
    probe, rows = (x[: run.probe], y[: run.probe]), []
    monitor = Monitor(
        model, probe, optimizer=optimizer, quantities=("curvature",), every=run.every, budget=math.inf, mode="batch",
        loss=_loss,
    ).begin()  # fmt: skip
    quantity, truth, updates = _quantity(monitor), math.nan, 0
    while len(rows) < run.readings:
        train()
        if not quantity.unfinished:
            updates, truth = 0, math.nan
        probes = monitor.probes
        monitor.step()
        updates += 1
        if monitor.probes > probes:
            truth = _truth(model, probe)
        if not quantity.unfinished and not math.isnan(truth):
            found = monitor.latest
            errors = (1 - found["curvature/largest"] / truth, abs(1 - found["curvature/estimate"] / truth))
            rows.append((*errors, found["curvature/converged"], quantity.products, updates))
    return _summary(run, rows)


def _truth(model: nn.Module, probe: tuple[Tensor, Tensor]) -> float:
    """Return the largest eigenvalue by a long search that knows nothing of the monitor."""
    with Problem(model, probe, _loss, batch=len(probe[0])) as problem:
        start = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(1))
        return float(eigenpairs(Products(problem), start, largest=1, tolerance=1e-3).values[0])


def _summary(run: Run, rows: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    """Return errors in short."""
    errors, estimates, sure, spent, updates = (np.array(column) for column in zip(*rows, strict=True))
    return {
        "case": run.name, "every": run.every, "after": run.after, "readings": run.readings,
        "median": float(np.median(errors)), "worst": float(errors.max()),
        "estimate": float(np.median(estimates)), "worst_estimate": float(estimates.max()),
        "above": int((errors > 0.01).sum()), "above_converged": int(((errors > 0.01) & (sure > 0)).sum()),
        "unconverged": int((sure == 0).sum()), "products": float(spent.mean()), "most": int(spent.max()),
        "updates": float(updates.mean()), "most_updates": int(updates.max()),
    }  # fmt: skip
