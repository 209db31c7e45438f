"""The largest eigenvalue along a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from curved import classifier, labelled, plain_hessian
from fingerprints import fingerprint
from normscope.linalg.recycled import Followed
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import curvature
from normscope.monitor.quantities.curvature import MOST, TOLERANCE, largest_curvature


def _spectrum(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(plain_hessian(model, x, y, train=True))


@pytest.mark.turns(2)
def test_it_follows_the_largest_eigenvalue_of_a_run_with_four_products_per_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent: list[int] = []
    errors: list[float] = []

    def counted(*args: Any, **kwargs: Any) -> Followed | None:
        found = largest_curvature(*args, **kwargs)
        assert found is not None
        spent.append(found.products)
        return found

    monkeypatch.setattr(curvature, "largest_curvature", counted)
    model, (x, y) = classifier().train(), labelled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Monitor(model, (x, y), quantities=("curvature",), optimizer=optimizer, every=1000, mode="batch") as monitor:
        for _ in range(30):
            before = fingerprint(model)
            monitor.probe()
            assert fingerprint(model) == before
            found, spectrum = dict(monitor.latest), _spectrum(model, x, y)
            value, residual, truth = found["curvature/largest"], found["curvature/residual"], float(spectrum[-1])
            assert value <= truth * (1 + 1e-4)
            assert float((spectrum - value).abs().min()) <= residual + 1e-4 * truth
            assert residual <= TOLERANCE * value or not found["curvature/converged"]
            assert found["curvature/estimate"] >= value * (1 - 1e-6)
            errors.append(1 - value / truth)
            assert found["curvature/over_threshold"] == pytest.approx(0.05 * found["curvature/largest"])
            for _ in range(5):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                monitor.step()
    assert sorted(errors)[15] < 0.01
    assert max(errors[-10:]) < 0.01  # at the start of training other directions overtake
    warm = spent[-29:]
    assert len(spent) >= 30
    assert max(warm) <= MOST == 4


def test_a_reading_that_had_too_few_products_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = classifier().train(), labelled()
    monkeypatch.setattr(curvature, "MOST", 1)
    with Monitor(model, (x, y), quantities=("curvature",), every=1000, mode="batch") as monitor:
        monitor.probe()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.flip(0))
        monitor.probe()
        found = dict(monitor.latest)
    assert found["curvature/converged"] == 0.0
    assert found["curvature/residual"] > TOLERANCE * found["curvature/largest"]


def test_products_are_counted() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    slope = torch.autograd.grad((w**4).sum(), w, create_graph=True)[0]
    cold = largest_curvature({"w": slope}, {"w": w})
    assert cold is not None
    assert cold.value == pytest.approx(48.0)
    warm = largest_curvature({"w": slope}, {"w": w}, cold)
    assert warm is not None
    assert warm.value == pytest.approx(48.0)
    assert warm.products <= MOST
    flat = torch.autograd.grad((3 * w).sum(), w, create_graph=True)[0]
    assert largest_curvature({"w": flat}, {"w": w}) is None
