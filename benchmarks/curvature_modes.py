"""The Hessians of one BatchNorm network with the statistics of the batch and with running statistics: the gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.graph.guard import same_bits
from normscope.linalg.thick_restart import eigenpairs
from normscope.zoo import catalogue as zoo
from normscope.zoo.data.load import load_data
from normscope.zoo.load import load_model
from normscope.zoo.randomness import seeded

Say = Callable[[str], None]
Batch = tuple[Tensor, Tensor]
#: Loss at which a training ends.
ENOUGH = 0.0034


def gaps(weights: Path | None, cifar: Path | None, say: Say) -> Iterator[dict[str, Any]]:
    """Yield the largest five eigenvalues in two modes: of a trained network, and of one trained on the batch alone."""
    if weights is not None and cifar is not None:
        for images in (16, 64):
            model = load_model("zoo:resnet20", weights=weights)
            yield _gap("trained (checkpoint), its own statistics", model, _images(cifar, images), say)
    with seeded(1):
        noise = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    for name, batch in {"CIFAR-10": None if cifar is None else _images(cifar, 64), "Gaussian noise": noise}.items():
        if batch is not None:
            say(f"training ResNet-20 on 64 images, {name}")
            yield _gap(f"trained on these images, {name}; statistics of the batch", _fitted(batch), batch, say)


def _images(root: Path, count: int) -> Batch:
    """Return the first training images of CIFAR-10."""
    batch = load_data("cifar10", root, "train", count, normalize="imagenet").tensors()
    assert batch.labels is not None
    return batch.inputs, batch.labels


def _fitted(batch: Batch) -> nn.Module:
    """Return a ResNet-20 trained on one batch to a small loss, with the running statistics set to that batch's."""
    model = zoo.build("resnet20", seed=1).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(500):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        if float(loss.detach()) < ENOUGH:
            break
        loss.backward()
        optimizer.step()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches, here one
    with torch.no_grad():
        model(batch[0])
    return model


def _gap(name: str, model: nn.Module, batch: Batch, say: Say) -> dict[str, Any]:
    """Return the largest five eigenvalues and the loss in batch and running mode; nothing of the model may change."""
    row: dict[str, Any] = {"case": name, "images": len(batch[0])}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for mode in ("batch", "running"):
        say(f"ResNet-20, {name}, {len(batch[0])} images: {mode} mode")
        with Problem(model, batch, mode=mode, batch=len(batch[0])) as problem:
            start = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0))
            found = eigenpairs(Products(problem), start, largest=5, tolerance=1e-3)
            row[mode] = {
                "loss": problem.value(), "values": found.values.tolist(), "products": found.products,
                "residual": float((found.residuals / np.abs(found.values)).max()),
            }  # fmt: skip
    row["untouched"] = all(same_bits(v, before[key]) for key, v in model.state_dict().items())
    return row
