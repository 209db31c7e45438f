"""Memory is estimated before it is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curved import classifier, labelled
from normscope.core import memory
from normscope.core.errors import NotEnoughMemoryError
from normscope.curvature.cost import graph_bytes, plan
from normscope.curvature.problem import Problem


def test_the_estimate_from_four_samples_is_that_of_the_whole_batch() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(64, dtype=torch.long)
    with Problem(model, (x, y)) as problem:
        estimate = graph_bytes(problem, problem.terms[0])
        seen: dict[int, int] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        leaves = problem.leaves()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = problem.loss_of(problem.outputs(leaves, problem.terms[0]), problem.terms[0])
            slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        assert len(slopes) == len(leaves)
    assert estimate == pytest.approx(sum(seen.values()), rel=0.1)


def test_the_way_follows_cost_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with Problem(classifier(), labelled(), batch=10) as problem:
        monkeypatch.setattr(memory, "available", lambda: 1e9)
        assert plan(problem, 20, (4, 10)).way == "retained"
        assert plan(problem, 200, (4, 10)).way == "linearize"
        assert plan(problem, 200, (4, 10), "recompute").way == "recompute"
        assert plan(problem, 20, (4, 10)).vectors == 10
        needed = {way: plan(problem, 20, (4, 10), way).bytes for way in ("retained", "recompute")}
        assert needed["recompute"] < needed["retained"]
        monkeypatch.setattr(memory, "available", lambda: (needed["recompute"] + needed["retained"]) / 2 / 0.8)
        assert plan(problem, 20, (4, 10)).way == "recompute"
        monkeypatch.setattr(memory, "available", lambda: 1000.0)
        with pytest.raises(NotEnoughMemoryError, match="smaller batches"):
            plan(problem, 20, (4, 10))


def test_a_smaller_basis_comes_before_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with Problem(classifier(), labelled(), batch=10) as problem:
        vector = 4 * problem.dimension
        monkeypatch.setattr(memory, "available", lambda: 1e9)
        full = plan(problem, 20, (4, 100), "recompute")
        monkeypatch.setattr(memory, "available", lambda: (full.bytes - 90 * vector) / 0.8 + 1)
        assert plan(problem, 20, (4, 100), "recompute").vectors == 10
        with pytest.raises(NotEnoughMemoryError):
            plan(problem, 20, (11, 100), "recompute")
