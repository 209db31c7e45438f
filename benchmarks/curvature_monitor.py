"""The monitor's largest eigenvalue beside training: what a reading costs, and how near it comes along real runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.graph.guard import same_bits
from normscope.linalg.thick_restart import Eigenpairs, eigenpairs
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import curvature
from normscope.zoo import catalogue as zoo
from normscope.zoo.data.load import load_data
from normscope.zoo.randomness import seeded

Say = Callable[[str], None]


def overhead(steps: int, batch: int, say: Say) -> dict[str, Any]:
    """Compare a reading of the largest eigenvalue with a training step, and trainings with and without it."""
    say("monitor")
    losses, states, spent, readings = [], [], [], []
    for watched in (False, True):
        with seeded(3):
            model = zoo.build("resnet20").train()
            x, y = torch.randn(4, batch, 3, 32, 32), torch.randint(0, 10, (4, batch))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        monitor = None
        if watched:
            probe = x[0, :32], y[0, :32]
            every = max(1, steps // 3)
            with mock.patch.object(curvature, "GIVEN", 0):  # as later in a run: four products on average
                monitor = Monitor(
                    model, probe, optimizer=optimizer, quantities=("curvature",), every=every, budget=math.inf
                ).begin()
        seen = []
        for step in range(steps):
            begin = time.process_time()
            loss = nn.functional.cross_entropy(model(x[step % 4]), y[step % 4])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            spent.append(time.process_time() - begin)
            seen.append(float(loss.detach()))
            if monitor is not None:
                begin, before = time.process_time(), monitor.probes
                monitor.step(loss=loss)
                readings += [time.process_time() - begin] if monitor.probes > before else []
        losses.append(seen)
        states.append(model.state_dict())
    same = losses[0] == losses[1] and all(same_bits(a, b) for a, b in zip(*map(dict.values, states), strict=True))
    return {
        "batch": batch, "probe": 32, "step": float(np.median(spent)), "reading": float(np.median(readings)),
        "overhead": float(np.median(readings)) / (100 * float(np.median(spent))), "identical": same,
    }  # fmt: skip


def followed(cifar: Path | None, readings: int, say: Say) -> Iterator[dict[str, Any]]:
    """Follow the largest eigenvalue along real runs, with a reading every so many updates."""
    digits = load_data("digits", None, "train", 1400).tensors()
    assert digits.labels is not None
    for every in (1, 10, 100):
        with seeded(0):
            model = nn.Sequential(
                nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
            )  # fmt: skip
        data = digits.inputs.flatten(1), digits.labels
        yield _followed("digits, MLP with BatchNorm", model, data, 64, every, readings, say)
    if cifar is None:
        return
    network: nn.Module
    images = load_data("cifar10", cifar, "train", 3200, normalize="imagenet").tensors()
    assert images.labels is not None
    for every in (1, 10):
        with seeded(0):
            network = zoo.build("resnet20")
        yield _followed("CIFAR-10, ResNet-20", network, (images.inputs, images.labels), 32, every, readings, say)


def _followed(
    name: str, model: nn.Module, data: tuple[Tensor, Tensor], probe: int, every: int, readings: int, say: Say
) -> dict[str, Any]:
    """Train, and compare each reading after the first with the eigenvalue that a long search finds."""
    say(f"{name}: a reading every {every} updates")
    x, y = data
    optimizer = torch.optim.SGD(model.train().parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    products: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Eigenpairs:
        found = eigenpairs(*args, **kwargs)
        products.append(found.products)
        return found

    rows = []
    with mock.patch.object(curvature, "eigenpairs", counted):
        monitor = Monitor(
            model, (x[:probe], y[:probe]), optimizer=optimizer, quantities=("curvature",), every=10**6,
            budget=math.inf, mode="batch",
        ).begin()  # fmt: skip
        for _ in range(readings):
            for _ in range(every):
                batch = torch.randint(0, len(x), (64,), generator=generator)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            monitor.probe()
            found = dict(monitor.latest)
            with Problem(model, (x[:probe], y[:probe]), batch=probe) as problem:
                start = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(1))
                truth = eigenpairs(Products(problem), start, largest=1, tolerance=1e-3)
            rows.append((1 - found["curvature/largest"] / truth.values[0], found["curvature/converged"], products[-1]))
    errors, sure, spent = (np.array(column) for column in zip(*rows, strict=True))
    return {
        "case": name, "every": every, "readings": readings, "median": float(np.median(errors)),
        "worst": float(errors.max()), "worst_converged": float(errors[sure > 0].max(initial=0.0)),
        "above": int((errors > 0.01).sum()), "above_converged": int(((errors > 0.01) & (sure > 0)).sum()),
        "unconverged": int((sure == 0).sum()), "products": float(spent.mean()), "most": int(spent.max()),
    }  # fmt: skip
