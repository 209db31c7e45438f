"""The Gauss-Newton matrix from its factor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from curved import classifier, labelled
from normscope.curvature.outputs import exact_trace, root_of, rows_of
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products


def of_pairs(scores: Tensor, labels: Tensor) -> Tensor:
    """Return a loss over pairs of samples."""
    return (scores @ scores.T).square().mean()


@pytest.mark.parametrize(
    ("norm", "mode", "batch"), [(False, "batch", 64), (True, "running", 15), (True, "frozen-batch", 64)]
)
def test_the_trace_is_exact_where_samples_are_apart(norm: bool, mode: str, batch: int) -> None:
    with Problem(classifier(norm), labelled(), mode=mode, batch=batch, dtype=torch.float64) as problem:
        products = Products(problem, "ggn")
        dense, found = products.dense(), exact_trace(products, 3)
    if mode == "frozen-batch":  # the statistics of a batch of one are others
        assert found is None
        return
    assert found is not None
    for block in problem.blocks:
        assert found[block.name] == pytest.approx(float(dense.diagonal()[block.place].sum()), rel=1e-9, abs=1e-12)


def test_nothing_is_said_where_samples_depend_on_each_other() -> None:
    model, (x, y) = nn.Sequential(classifier(False), nn.Dropout(0.5)), labelled()
    with Problem(classifier(), (x, y)) as problem:
        assert exact_trace(Products(problem, "ggn"), 3) is None  # batch statistics
    with Problem(model, (x, y), masks=1) as problem:
        assert exact_trace(Products(problem, "ggn"), 3) is None  # masks of a batch
    with Problem(model, (x, y), of_pairs) as problem:
        assert exact_trace(Products(problem, "ggn"), 3) is None  # the loss
    with Problem(model, (x, y), lambda out, labels: out.pow(3).mean()) as problem:
        assert exact_trace(Products(problem, "ggn"), 3) is None  # not convex
    with Problem(model, (x, y)) as problem:
        assert exact_trace(Products(problem, "ggn"), 2) is None  # three outputs


@pytest.mark.parametrize("norm", [True, False])
def test_the_factor_gives_the_matrix(norm: bool) -> None:
    with Problem(classifier(norm), labelled(), batch=25, dtype=torch.float64) as problem:
        products = Products(problem, "ggn")
        total = torch.zeros(problem.dimension, problem.dimension, dtype=torch.float64)
        for term in problem.terms:
            root = root_of(products, term)
            assert root is not None
            assert root.count == 2 * len(root.scores)  # softmax does not see a common shift of three classes
            rows = torch.zeros(root.count, problem.dimension, dtype=torch.float64)
            rows_of(problem, term, root, rows)
            total += term.share * rows.mT @ rows
        torch.testing.assert_close(total, products.dense())


def test_what_the_gauss_newton_matrix_leaves_out() -> None:
    with Problem(classifier(), labelled(), batch=25, dtype=torch.float64) as problem:
        found = {matrix: Products(problem, matrix).dense() for matrix in ("hessian", "ggn", "residual")}
    torch.testing.assert_close(found["residual"], found["hessian"] - found["ggn"])
    with Problem(classifier(False, activation=nn.ReLU), labelled(), dtype=torch.float64) as problem:
        assert abs(float(Products(problem, "residual").dense().trace())) < 1e-12  # linear in every layer
