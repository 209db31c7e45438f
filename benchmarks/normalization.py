"""The same network with BatchNorm, LayerNorm, GroupNorm and none at equal accuracy on CIFAR-10: constants that hold.

Each is trained until it reaches the same accuracy on test images, then looked at: the bound on all inputs, certified
constants on balls around held-out images, and the distance within which decisions are proved to stay the same.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import Clock, environment
from normscope import analyze
from normscope.zoo import build
from normscope.zoo.data.load import load_data
from normscope.zoo.train import he_normal_, train

Say = Callable[[str], None]
NORMS = {"none": "none", "bn": "BatchNorm", "ln": "LayerNorm", "gn": "GroupNorm"}


@dataclass(frozen=True)
class Settings:
    """What is trained and measured.

    Attributes:
        data: ``cifar10``, or ``digits`` for a quick look.
        images: of the training set, and of the test set for the accuracy.
        width: of the hidden layers.
        depth: linear layers.
        accuracy: at which training ends.
        epochs: at most.
        points: held-out images around which balls are looked at.
        radii: of the balls.
        seeds: of weights and order.
    """

    data: str = "cifar10"
    images: tuple[int, int] = (10_000, 1_000)
    width: int = 32
    depth: int = 3
    accuracy: float = 0.37
    epochs: int = 20
    points: int = 90
    radii: tuple[float, ...] = (0.03, 0.1)
    seeds: tuple[int, ...] = (0,)


QUICK = Settings("digits", (300, 100), 8, 3, 0.2, 1, 2, (0.01,))


def _loaded(settings: Settings, split: str, count: int) -> tuple[Tensor, Tensor]:
    root = None if settings.data == "digits" else Path(os.environ.get("NORMSCOPE_DATA", "data"))
    batch = load_data(settings.data, root=root, split=split, limit=count).tensors()
    if batch.labels is None:
        raise RuntimeError("Expected labels.")
    return batch.inputs, batch.labels


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean())


def trained(norm: str, settings: Settings, seed: int) -> tuple[nn.Module, float, int]:
    """Return a network of the accuracy asked for, that accuracy, and the epochs it took."""
    images, labels = _loaded(settings, "train", settings.images[0])
    test = _loaded(settings, "test", settings.images[1])
    model = build(
        "relu10", seed=seed, norm=norm, width=settings.width, depth=settings.depth, in_features=images[0].numel()
    )
    he_normal_(model, torch.Generator().manual_seed(seed))
    reached = 0.0
    for epoch in range(settings.epochs):
        train(model, images, labels, epochs=1, seed=1000 * seed + epoch)
        reached = _accuracy(model.eval(), *test)
        if reached >= settings.accuracy:
            return model, reached, epoch + 1
    return model.eval(), reached, settings.epochs


def measure(norm: str, settings: Settings, seed: int) -> dict[str, Any]:
    """Return what one network shows."""
    start = Clock.now()
    model, reached, epochs = trained(norm, settings, seed)
    images, _ = _loaded(settings, "test", settings.images[1])
    held_out = images[-settings.points :]
    result = analyze(model, held_out, radius=settings.radii, seed=seed, without_normalizers=False)
    constants = result.end_to_end
    rows = [
        {
            "radius": n.radius,
            "median": n.median,
            "bound": None if n.bound is None else math.exp(min(n.bound.log, 700.0)),
            "unbounded": n.unbounded,
            "decided": result.around.decided(n.radius) if n.radius else None,
        }
        for n in result.around.neighbourhoods
    ]
    return {
        "name": NORMS[norm],
        "seed": seed,
        "accuracy": reached,
        "epochs": epochs,
        "log10_global": constants["global"].log10,
        "log10_floor": constants["variance_floor"].log10,
        "attained": math.exp(constants["lower_everywhere"].log),
        "balls": rows,
        "certified_radius": statistics.median(result.around.radii) if result.around.radii else 0.0,
        "cpu": start.since().cpu,
    }


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure every normalizer and seed; yield after each."""
    rows = []
    for seed in settings.seeds:
        for norm in NORMS:
            rows.append(measure(norm, settings, seed))
            row = rows[-1]
            near = ", ".join(f"{b['median']:.3g} within {b['radius']:g}" for b in row["balls"])
            say(f"{row['name']}: accuracy {row['accuracy']:.3f}, {near}, {row['cpu']:.1f} CPU s")
            facts = {"data": settings.data, "width": settings.width, "depth": settings.depth, "points": settings.points}
            yield {"environment": environment(), "settings": facts, "rows": rows}


def figure(section: dict[str, Any], path: Path) -> Path:
    """Draw the medians against the radius, one line per normalizer.

    Args:
        section: what :func:`run` found.
        path: of the picture.
    """
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(6, 3.5), layout="constrained")
    axes = drawing.subplots()
    several = len({row["seed"] for row in section["rows"]}) > 1
    for row in section["rows"]:
        known = [(b["radius"], b["median"]) for b in row["balls"] if math.isfinite(b["median"])]
        label = f"{row['name']}, seed {row['seed']}" if several else row["name"]
        axes.plot([r for r, _ in known], [m for _, m in known], "o-", label=label)
    axes.set_xlabel("radius around held-out images")
    axes.set_ylabel("certified constant, median")
    axes.set_ylim(bottom=0)
    drawing.legend(loc="outside right center")
    drawing.savefig(path, dpi=120)
    return path
