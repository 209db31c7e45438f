"""The largest eigenvalue along a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curved import classifier, labelled, plain_hessian
from fingerprints import fingerprint
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities.curvature import WARM, largest_curvature


def _truth(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float(torch.linalg.eigvalsh(plain_hessian(model, x, y, train=True))[-1])


def test_it_follows_the_largest_eigenvalue_with_four_products_per_reading() -> None:
    model, (x, y) = classifier().train(), labelled()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):  # at the start of training the largest eigenvalues lie close together
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with Monitor(model, (x, y), quantities=("curvature",), optimizer=optimizer, every=1000, mode="batch") as monitor:
        for step in range(4):
            before = fingerprint(model)
            monitor.probe()
            assert fingerprint(model) == before
            found = dict(monitor.latest)
            assert found["curvature/largest"] == pytest.approx(_truth(model, x, y), rel=0.02), step
            assert found["curvature/over_threshold"] == pytest.approx(0.01 * found["curvature/largest"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            monitor.step()


def test_products_are_counted() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    slope = torch.autograd.grad((w**4).sum(), w, create_graph=True)[0]
    cold = largest_curvature({"w": slope}, {"w": w})
    assert cold is not None
    assert cold.values[0] == pytest.approx(48.0)
    warm = largest_curvature({"w": slope}, {"w": w}, cold.vectors[0])
    assert warm is not None
    assert warm.products <= WARM
    flat = torch.autograd.grad((3 * w).sum(), w, create_graph=True)[0]
    assert largest_curvature({"w": flat}, {"w": w}) is None
