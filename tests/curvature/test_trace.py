"""Trace and Frobenius norm against the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from curved import classifier, labelled
from normscope.curvature.outputs import exact_trace
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.trace import Estimate, KnownPart, moments
from normscope.linalg.thick_restart import eigenpairs


def test_intervals_cover_the_truth_and_layers_add_up() -> None:
    with Problem(classifier(), labelled(), dtype=torch.float64) as problem:
        dense = Products(problem, "ggn").dense()
    blocks = {block.name: block.place for block in problem.blocks}
    trace, square = float(dense.trace()), float(dense.square().sum())
    start, covered, layered, errors = dense[0], [], [], []
    for seed in range(60):
        random = torch.randn(len(dense), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        pairs = eigenpairs(lambda v: dense @ v, random, largest=5, tolerance=0.0, max_products=15, keep_basis=True)
        found = moments(lambda v: dense @ v, start, products=15, deflate=pairs, blocks=blocks, seed=seed)
        covered += [found.trace.low <= trace <= found.trace.high, found.square.low <= square <= found.square.high]
        layered += [
            found.layers[name].low <= float(dense.diagonal()[place].sum()) <= found.layers[name].high
            for name, place in blocks.items()
        ]
        errors.append(abs(found.trace.value - trace))
        assert sum(e.value for e in found.layers.values()) == pytest.approx(found.trace.value)
    assert np.mean(covered) >= 0.88  # 95 % expected; 120 draws
    assert np.mean(layered) >= 0.90
    plain = [abs(moments(lambda v: dense @ v, start, products=30, seed=s).trace.value - trace) for s in range(60)]
    assert np.median(errors) < 0.7 * np.median(plain)


def test_exact_parts_and_single_probes() -> None:
    assert Estimate.of(2.0, np.zeros(0)) == Estimate(2.0, 2.0, 2.0, 0)
    assert Estimate.of(2.0, np.ones(1)).high == float("inf")
    d = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = moments(lambda v: d * v, d, products=3)
    assert found.frobenius == pytest.approx(5.0)
    assert found.stable_rank(4.0) == pytest.approx(25 / 16)
    assert found.trace.value == pytest.approx(7.0)


@pytest.mark.turns(2)
@pytest.mark.parametrize("trained", [True, False])
def test_a_part_whose_trace_is_known_helps_where_the_rest_is_small(trained: bool) -> None:
    model, (x, y) = classifier(norm=False), labelled()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(300 if trained else 0):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with Problem(model, (x, y), dtype=torch.float64) as problem:
        full, gauss = Products(problem).dense(), Products(problem, "ggn").dense()
        exact = exact_trace(Products(problem, "ggn"), 3)
    assert exact is not None
    blocks = {block.name: block.place for block in problem.blocks}
    trace, covered, errors, plain = float(full.trace()), [], [], []
    for seed in range(60):
        random = torch.randn(len(full), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        pairs = eigenpairs(lambda v: full @ v, random, largest=2, tolerance=0.0, max_products=8, keep_basis=True)
        part = KnownPart(lambda v: gauss @ v, exact)
        found = moments(lambda v: full @ v, full[0], products=20, deflate=pairs, blocks=blocks, part=part, seed=seed)
        only = moments(lambda v: full @ v, full[0], products=20, deflate=pairs, seed=seed)
        covered.append(found.trace.low <= trace <= found.trace.high)
        errors.append(abs(found.trace.value - trace))
        plain.append(abs(only.trace.value - trace))
        assert sum(e.value for e in found.layers.values()) == pytest.approx(found.trace.value)
        assert found.products <= 20
    assert np.mean(covered) >= 0.88
    assert np.median(errors) < (0.9 if trained else 1.4) * np.median(plain)
