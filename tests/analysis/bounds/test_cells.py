"""Cells: counts and distances against a loop, constants on cells against Jacobians and differences of the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from normscope.analysis.bounds.cells import CENTRES, bounded_losses, cell_statistics, default_partition, local_constants
from normscope.analysis.bounds.measured_network import MeasuredNetwork
from normscope.analysis.bounds.result import RefusedError
from normscope.analysis.bounds.scores import scored
from normscope.core.errors import InputError
from normscope.generalization import Partition, grid

from .conftest import captured_of


def _quiet(text: str) -> None:
    pass


def test_cells(trained: Any) -> None:
    """Counts for each label apart; the mean distance by a loop; refused without a partition."""
    model, (x, y), (u, v) = trained
    captured, parts = captured_of(model, 4, 2), grid([0, 0], [1, 1], [3, 3])
    train, test = (scored(captured, d, w, parts, 0, _quiet) for d, w in (((x, y), "train"), ((u, v), "test")))
    found = cell_statistics(parts, train, test)
    place = parts.assign(x) * 2 + y
    assert (found.cells, found.occupied) == (18, len(place.unique()))
    assert found.diameter == pytest.approx(math.sqrt(2) / 3)
    there = parts.assign(u) * 2 + v
    means = [
        float((u[there == c] - s).double().norm(dim=1).mean())
        for s, c in zip(x, place, strict=True)
        if (there == c).any()
    ]
    assert found.mean_distance == pytest.approx(sum(means) / len(means), rel=1e-5)
    with pytest.raises(RefusedError, match="box"):
        cell_statistics(None, train, test)


def _unit_box(axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(axes, dtype=torch.float64), torch.ones(axes, dtype=torch.float64)


def test_cells_of_a_box() -> None:
    """A grid where there are few axes and many samples, random centres elsewhere; nothing without a box."""
    assert default_partition(None, 1000, 2, 0) is None
    fine, one, many, unknown = (
        default_partition(_unit_box(axes), samples, 2, 0)
        for axes, samples in ((2, 6400), (1, 640), (64, 6400), (2, None))
    )
    assert fine is not None
    assert one is not None
    assert many is not None
    assert unknown is not None
    assert (fine.cells, one.cells, many.cells, unknown.cells) == (100, 10, CENTRES, CENTRES)
    assert float(fine.diameters) == pytest.approx(math.sqrt(2) / 10)
    assert float(many.diameters) == pytest.approx(8.0)


def test_constants_on_cells(trained: Any) -> None:
    """No Jacobian in a cell exceeds its constant, the loss varies by no more, and most are below the one for all."""
    model, (x, y), _ = trained
    captured, parts = captured_of(model, 4, 2), grid([0, 0], [1, 1], [4, 4])
    network = MeasuredNetwork(captured, _quiet)
    counts = parts.counts(x, y, 2)
    found = local_constants(network, parts, counts, 2)
    assert found.balls == 16
    assert float(found.scores.median()) < 0.8 * network.constant.value
    double = nn.Sequential(*model).double()
    points = torch.rand(400, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    place = parts.assign(points)
    norms = torch.stack([torch.autograd.functional.jacobian(lambda z: double(z[None])[0], p) for p in points[:60]])
    assert bool((torch.linalg.matrix_norm(norms, 2) <= found.scores[place[:60]] * (1 + 1e-9)).all())
    with torch.no_grad():
        scores = double(points)
    flat = 0
    for loss in bounded_losses("ramp", [0.5, 3.0], None):
        constants = found.of_loss(loss).reshape(16, 2)
        for label in (0, 1):
            values = loss.values(scores, torch.full((400,), label))
            for cell in place.unique().tolist():
                z, f, steep = points[place == cell], values[place == cell], float(constants[cell, label])
                assert bool(((f[:, None] - f[None, :]).abs() <= steep * torch.cdist(z, z) * (1 + 1e-9) + 1e-12).all())
                flat += steep == 0
    assert flat > 0
    model.float()


def test_what_is_not_affordable_or_finite(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time every cell has the constant on all inputs; without balls too; without any it is refused."""
    model, (x, y), _ = trained
    network, parts = MeasuredNetwork(captured_of(model, 4, 2), _quiet), grid([0, 0], [1, 1], [2, 2])
    counts = parts.counts(x, y, 2)
    monkeypatch.setattr("normscope.analysis.bounds.cells.SECONDS", 0.0)
    found = local_constants(network, parts, counts, 2)
    assert found.balls == 0
    assert "skipped" in found.note
    assert found.scores.tolist() == pytest.approx([network.constant.value] * 4)
    bare = Partition(parts.name, parts.cells, parts.diameters, parts.assign)
    assert "which balls" in local_constants(network, bare, counts, 2).note
    monkeypatch.setattr("normscope.analysis.bounds.cells.SECONDS", 0.0)
    endless = MeasuredNetwork(captured_of(nn.Sequential(nn.Linear(2, 4), _Square(), nn.Linear(4, 2)), 4, 2), _quiet)
    with pytest.raises(RefusedError, match="no finite Lipschitz constant"):
        local_constants(endless, parts, counts, 2)


class _Square(nn.Module):
    """No constant on all inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return squares."""
        return x * x


def test_no_constant_everywhere_but_on_cells() -> None:
    """Squares have no constant on all inputs, and one on every cell."""
    parts = grid([0, 0], [1, 1], [2, 2])
    net = nn.Sequential(nn.Linear(2, 4), _Square(), nn.Linear(4, 2))
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    found = local_constants(
        MeasuredNetwork(captured_of(net, 4, 2), _quiet), parts, parts.counts(x, (x[:, 0] > 0.5).long(), 2), 2
    )
    assert bool(found.scores.isfinite().all())
    for point, constant in zip(parts.middles.float(), found.scores, strict=True):  # type: ignore[union-attr]
        jacobian = torch.autograd.functional.jacobian(lambda z: net(z[None])[0], point)
        assert float(torch.linalg.matrix_norm(jacobian, 2)) <= float(constant) * (1 + 1e-6)


@pytest.mark.parametrize(("name", "clip"), [("ramp", None), ("probability", None), ("cross-entropy", 0.01)])
def test_losses_have_their_range_and_slope(name: str, clip: float | None) -> None:
    """At random scores of all sizes, and attained to 90 % somewhere."""
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(20_000, 2, generator=source, dtype=torch.float64)
    scores = (scores * torch.logspace(-1, 1, 20_000, dtype=torch.float64)[:, None]).requires_grad_(True)
    labels = torch.randint(2, (20_000,), generator=source)
    (loss,) = bounded_losses(name, [0.7], clip)
    values = loss.values(scores, labels)
    assert 0 <= float(values.detach().min()) <= float(values.detach().max()) <= 1
    (slopes,) = torch.autograd.grad(values.sum(), scores)
    largest = float(slopes.norm(dim=1).max())
    assert 0.9 * loss.constant <= largest <= loss.constant * (1 + 1e-9)


def test_unbounded_and_unknown_losses_are_refused() -> None:
    """Cross-entropy without a clip has no largest value; other names are unknown."""
    with pytest.raises(RefusedError, match="unbounded"):
        bounded_losses("cross-entropy", [], None)
    with pytest.raises(InputError, match="ramp, probability"):
        bounded_losses("hinge", [], None)
