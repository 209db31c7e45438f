"""Generalization bounds: what the whole table costs, and what its certificates say beside the test error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.machine import Clock, environment
from normscope.analysis.bounds.result import BoundsResult
from normscope.analysis.bounds.run import bounds
from normscope.core.errors import NormscopeError
from normscope.zoo import build
from normscope.zoo.data.load import load_data
from normscope.zoo.state_dict import load_weights

Say = Callable[[str], None]
#: The folder with CIFAR-10, MNIST and ``checkpoints/resnet20_cifar10.pt``.
DATA = Path(os.environ.get("NORMSCOPE_DATA", "data"))
#: Rows of the table that are shown.
SHOWN = (
    "held-out",
    "Theorem 20, repaired",
    "Theorem 20, held-out distances",
    "PAC-Bayes, kl",
    "PAC-Bayes, trained, kl",
    "PAC-Bayes, trained, and disagreement",
    "compression and disagreement",
)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        names: the networks.
        samples: of the disc.
        steps: of training.
        only: names to measure; all without any.
        known: names that are not measured again.
    """

    names: tuple[str, ...] = ("disc", "mnist", "resnet20")
    samples: int = 60_000
    steps: int = 600
    only: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


QUICK = Settings(("disc",), samples=400, steps=20)


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int, batch: int, rate: float) -> nn.Module:
    """Train with Adam and cross-entropy, and return the network ready to be used."""
    optimizer, source = torch.optim.Adam(net.parameters(), rate), torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(x), (batch,), generator=source)
        optimizer.zero_grad()
        F.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return net.eval()


def disc(settings: Settings) -> tuple[str, Callable[[], BoundsResult]]:
    """An ordinary network with BatchNorm on two inputs."""
    torch.manual_seed(0)
    x = torch.rand(settings.samples + 3000, 2)
    y = ((x - 0.5).square().sum(1) > 0.1).long()
    layers = [nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)]
    net = trained(nn.Sequential(*layers), x[:-3000], y[:-3000], settings.steps, 512, 1e-2)
    pairs = {"train": (x[:-3000], y[:-3000]), "test": (x[-3000:], y[-3000:])}
    name = f"disc in a square, 2-16-16-2 with BatchNorm, {settings.samples} samples"
    return name, lambda: bounds(net, **pairs, box=(0.0, 1.0), posterior=20.0 if settings.steps > 100 else 0.0)


def mnist(settings: Settings) -> tuple[str, Callable[[], BoundsResult]]:
    """A network of one hidden layer with BatchNorm on MNIST."""
    torch.manual_seed(0)
    train, test = (load_data("mnist", DATA, split) for split in ("train", "test"))
    x, y = train.tensors()
    assert y is not None
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 10))
    net = trained(net, x, y, 2 * settings.steps, 128, 2e-3)
    return "MNIST, 784-200-10 with BatchNorm", lambda: bounds(net, train=train, test=test, posterior=60.0)


def resnet20(settings: Settings) -> tuple[str, Callable[[], BoundsResult]]:
    """A public checkpoint on all of CIFAR-10."""
    model = build("resnet20")
    load_weights(model, DATA / "checkpoints" / "resnet20_cifar10.pt")
    train, test = (load_data("cifar10:imagenet", DATA, split) for split in ("train", "test"))
    return "ResNet-20, CIFAR-10", lambda: bounds(model.eval(), train=train, test=test)


SUBJECTS = {"disc": disc, "mnist": mnist, "resnet20": resnet20}


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Make each table once; yield after each."""
    rows: list[dict[str, Any]] = []
    for key in settings.names:
        if settings.only and key not in settings.only:
            continue
        try:
            name, compute = SUBJECTS[key](settings)
        except (NormscopeError, OSError) as error:
            say(f"{key}: left out, {error}")
            continue
        if name in settings.known:
            continue
        start = Clock.now()
        found = compute()
        spent = start.since()
        said = {row.name: row.bound for row in found.rows}
        values = {n: None if said.get(n) is None else said[n].value for n in SHOWN}  # type: ignore[union-attr]
        rows.append({"name": name, "cpu": spent.cpu, "wall": spent.wall, "truth": dict(found.truth), "bounds": values})
        say(f"{name}: {spent.cpu:.1f} CPU s")
        yield {"environment": environment(), "rows": rows}
