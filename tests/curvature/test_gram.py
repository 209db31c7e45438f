"""Inner products of the rows of the Jacobian, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from curved import classifier, labelled
from normscope.curvature import gram
from normscope.curvature.gram import RestrictedProblem, gram_of
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products


class Twice(nn.Module):
    """A network that uses one weight in two places: by two calls, or in another operation."""

    def __init__(self, *, call: bool) -> None:
        super().__init__()
        self.call = call
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        hidden = torch.tanh(self.inner(x))
        return self.last(self.inner(hidden) if self.call else hidden @ self.inner.weight)


class Mixing(nn.Module):
    """A network in which samples see the mean of their batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        hidden = torch.tanh(self.first(x))
        return self.last(hidden - hidden.mean(0))


def convolutional() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.GroupNorm(1, 3), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(27, 3),
    )  # fmt: skip


def of_tokens() -> nn.Module:
    """Return a network whose first layers see four tokens of each sample."""
    return nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))


CASES: list[tuple[Callable[[], nn.Module], str, set[str]]] = [
    (lambda: classifier(False), "running", {"0.weight", "2.weight", "4.weight"}),
    (lambda: classifier(activation=nn.ReLU), "running", {"0.weight", "3.weight", "6.weight"}),
    (lambda: classifier(), "batch", {"6.weight"}),
    (convolutional, "running", {"5.weight"}),
    (of_tokens, "running", {"4.weight"}),
    (lambda: Twice(call=True), "running", {"last.weight"}),
    (lambda: Twice(call=False), "running", {"last.weight"}),
    (Mixing, "running", {"last.weight"}),
]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("build", "mode", "outer"), CASES)
@pytest.mark.parametrize("held", [gram.HELD, 500])
def test_the_spectrum_is_that_of_the_dense_matrix(
    build: Callable[[], nn.Module], mode: str, outer: set[str], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gram, "HELD", held)  # few columns at a time
    monkeypatch.setattr(gram, "TOGETHER", 7)
    torch.manual_seed(1)
    with Problem(build(), labelled(), mode=mode, batch=25, dtype=torch.float64) as problem:
        products = Products(problem, "ggn")
        found = gram_of(products)
        assert found is not None
        assert {layer.weight.name for layer in found.layers} == outer
        expected = torch.linalg.eigvalsh(products.dense()).flip(0)
        values = torch.linalg.eigvalsh(found.matrix()).flip(0)
    assert found.count == len(values) == 2 * 40
    size = min(len(values), len(expected))
    scale = float(expected[0])
    torch.testing.assert_close(values[:size], expected[:size], rtol=1e-9, atol=1e-13 * scale)
    for rest in (values[size:], expected[size:]):
        assert float(rest.abs().max()) < 1e-13 * scale if len(rest) else True


@pytest.mark.parametrize("matrix", ["ggn", "empirical-fisher"])
def test_some_parameters_and_other_matrices(matrix: str) -> None:
    with Problem(classifier(), labelled(), mode="running", parameters=["*.weight", "0.bias"]) as problem:
        products = Products(problem, matrix)
        found = gram_of(products)
        assert found is not None
        assert found.entries == 7 + 6  # of BatchNorm
        norm = torch.linalg.matrix_norm(products.dense())
        torch.testing.assert_close(torch.linalg.matrix_norm(found.matrix()), norm, rtol=1e-5, atol=0.0)
        assert found.bytes > 8 * found.count**2
        assert found.work > found.count**2 * found.entries / 2


@pytest.mark.parametrize(
    "loss", [lambda out, labels: (out @ out.T).square().mean(), lambda out, labels: out.pow(3).mean()]
)
def test_losses_of_pairs_and_losses_that_are_not_convex_have_none(loss: Any) -> None:
    with Problem(classifier(), labelled(), loss) as problem:
        assert gram_of(Products(problem, "ggn")) is None


def test_rows_along_directions() -> None:
    with Problem(classifier(), labelled(), batch=25, dtype=torch.float64) as problem:
        products = Products(problem, "ggn")
        found = gram_of(products)
        assert found is not None
        units = torch.eye(problem.dimension, dtype=torch.float64)
        rows = found.pushed(units)
        torch.testing.assert_close(rows.mT @ rows, products.dense())
        torch.testing.assert_close(rows @ rows.mT, found.matrix())


def test_columns_are_a_part_of_the_problem() -> None:
    with Problem(classifier(), labelled(), dtype=torch.float64) as problem:
        part = RestrictedProblem(problem, [(problem.blocks[0], slice(3, 9)), (problem.blocks[2], slice(0, 2))])
        assert part.dimension == 8
        assert part.value() == problem.value()
        _, whole = problem.gradient()
        _, some = part.gradient(torch.cat([problem.point()[3:9], problem.point()[problem.blocks[2].place][:2]]))
        torch.testing.assert_close(some, torch.cat([whole[3:9], whole[problem.blocks[2].place][:2]]))
