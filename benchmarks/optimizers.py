"""Optimizers on spheres beside their twins: time of a step, and the loss after a fixed number of steps on digits.

    python benchmarks/optimizers.py [--steps 300] [--seeds 3]

Times are CPU times of whole training steps (forward, backward, update) and of the update alone, as ratios in one run.
"""

from __future__ import annotations

import argparse
import copy
import json
import time

import torch
from torch import nn

import normscope
from normscope.geometry.optim import spheres_of
from normscope.zoo.catalogue import build, example_input


def seconds(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, repeats: int) -> tuple[float, float]:
    """Return the CPU time of a training step and of the update in it."""
    y = torch.zeros(len(x), dtype=torch.int64)
    whole = update = 0.0
    for i in range(repeats + 2):
        start = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        middle = time.process_time()
        optimizer.step()
        end = time.process_time()
        if i >= 2:
            whole, update = whole + end - start, update + end - middle
    return whole / repeats, update / repeats


def times(repeats: int) -> dict[str, dict[str, float]]:
    """Return the ratios of times on a ResNet-20 with a batch of 32."""
    base, x = build("resnet20"), example_input("resnet20", 32)
    spheres = spheres_of(normscope.symmetry(base, x[:4], batch=4))
    found = {}
    for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {})):
        one, two = copy.deepcopy(base).train(), copy.deepcopy(base).train()
        plain = seconds(one, kind(one.parameters(), lr=1e-3, **options), x, repeats)
        ours = normscope.optim.riemannian(two, kind, spheres=spheres, lr=1e-3, **options)
        whole, update = seconds(two, ours, x, repeats)
        found[kind.__name__] = {"training step": whole / plain[0], "update": update / plain[1]}
    return found


def losses(steps: int, seeds: int) -> dict[str, list[float]]:
    """Return the training loss on digits after a number of steps, by optimizer and seed."""
    batch = next(iter(normscope.load_data("digits", split="train", limit=1024)))
    inputs, labels = batch[0].flatten(1), batch[1]
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for kind, rate, options in ((torch.optim.SGD, 0.1, {"momentum": 0.9}), (torch.optim.AdamW, 3e-3, {})):
            for sphere in (False, True):
                torch.manual_seed(seed)
                width = inputs.shape[1]
                model = nn.Sequential(
                    nn.Linear(width, 64), nn.BatchNorm1d(64), nn.ReLU(),
                    nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
                )  # fmt: skip
                optimizer = (
                    normscope.optim.riemannian(model, kind, inputs[:8], lr=rate, **options)
                    if sphere
                    else kind(model.parameters(), lr=rate, **options)
                )
                for _ in range(steps):
                    chosen = torch.randint(len(inputs), (64,))
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
                    optimizer.step()
                with torch.no_grad():
                    loss = float(nn.functional.cross_entropy(model(inputs), labels))
                found.setdefault(("spheres, " if sphere else "") + kind.__name__, []).append(loss)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps({"ratio of times": times(given.repeats), "loss": losses(given.steps, given.seeds)}, indent=1))
