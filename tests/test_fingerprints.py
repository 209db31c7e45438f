"""The fingerprint changes with everything it promises to see, and with nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fingerprints import fingerprint
from normscope.graph.guard import untouched

CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "one bit of a parameter": lambda m: m[0].weight.data[0, 0].mul_(1 + 2**-20),
    "sign of a zero": lambda m: m[0].bias.data.mul_(-1),
    "buffer": lambda m: m[1].num_batches_tracked.add_(1),
    "gradient": lambda m: m[0].weight.grad.add_(1),
    "requires_grad": lambda m: m[0].weight.requires_grad_(False),
    "training": lambda m: m[2].eval(),
    "hook": lambda m: m[0].register_forward_pre_hook(lambda *_: None),
    "tensor hook": lambda m: m[0].weight.register_hook(lambda g: g),
    "attribute": lambda m: setattr(m[2], "p", 0.1),
    "submodule": lambda m: m.append(nn.ReLU()),
    "object of a parameter": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())),
    "python's generator": lambda m: random.random(),
    "numpy's generator": lambda m: np.random.rand(),
    "torch's generator": lambda m: torch.rand(1),
    "a setting": lambda m: torch.backends.mha.set_fastpath_enabled(False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_shows(change: Callable[[nn.Sequential], object]) -> None:
    """Every change shows."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    nn.init.zeros_(model[0].bias)
    model[0].weight.grad = torch.zeros(3, 3)
    with untouched(nn.Identity()):  # keeps the process as it was
        before = fingerprint(model)
        assert fingerprint(model) == before
        change(model)
        assert fingerprint(model) != before


def test_further_tensors_count() -> None:
    """Further tensors count."""
    x = torch.zeros(3)
    before = fingerprint(nn.Identity(), x)
    x[1] = 1
    assert fingerprint(nn.Identity(), x) != before
