"""Attention, recurrent layers, checkpointed blocks and weight norm have second derivatives, and the right ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from curved import dense_hessian
from fingerprints import fingerprint
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.graph.second_derivatives import TWICE, twice_differentiable


class _Tagger(nn.Module):
    """Twelve encoder layers between an embedding and its transpose, checkpointed in some way."""

    def __init__(self, layers: int, reentrant: bool | None, dropout: float = 0.1) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(5, 8)
            parts = [
                nn.TransformerEncoderLayer(8, 2, 8, dropout, batch_first=True, norm_first=True) for _ in range(layers)
            ]
            self.layers = nn.ModuleList(parts)
            self.out = nn.Linear(8, 5)
        self.out.weight = self.embed.weight
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h) if self.reentrant is None else checkpoint(layer, h, use_reentrant=self.reentrant)
        return self.out(h)


def _tokens() -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 5, (3, 4), generator=torch.Generator().manual_seed(0))
    return x, x.roll(1, 1)


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_twelve_layers_of_attention_with_tied_weights_dropout_and_checkpointing(reentrant: bool | None) -> None:
    model, data = _Tagger(12, reentrant), _tokens()
    before = fingerprint(model)
    with Problem(model, data, masks=1, dtype=torch.float64) as problem:
        vector = torch.ones(problem.dimension, dtype=torch.float64)
        image = Products(problem)(vector)
        slopes = [problem.gradient(problem.point() + sign * 1e-5 * vector)[1] for sign in (1, -1)]
        middle = Products(problem, "ggn")(vector)
    assert fingerprint(model) == before
    torch.testing.assert_close(image, (slopes[0] - slopes[1]) / 2e-5, rtol=1e-3, atol=1e-5)
    assert bool(torch.isfinite(middle).all())


def test_checkpointing_changes_no_product() -> None:
    found = []
    for reentrant in (None, True, False):
        with Problem(_Tagger(2, reentrant), _tokens(), masks=2, dtype=torch.float64) as problem:
            found.append(Products(problem)(torch.ones(problem.dimension, dtype=torch.float64)))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_an_lstm_has_a_hessian() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.read(x)[0][:, -1])

    generator = torch.Generator().manual_seed(0)
    data = (torch.randn(5, 6, 3, generator=generator), torch.tensor([0, 1, 0, 1, 1]))
    with Problem(Reader(), data, dtype=torch.float64) as problem:
        torch.testing.assert_close(Products(problem).dense(), dense_hessian(problem))


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_has_the_hessian_of_its_formula(hook: bool, dim: int | None) -> None:
    """Torch's own kernel takes the norms for constants the second time: its products are not even symmetric."""
    norm = torch.nn.utils.weight_norm if hook else torch.nn.utils.parametrizations.weight_norm
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(norm(nn.Linear(3, 4), dim=dim), nn.Tanh(), nn.Linear(4, 2)).double()
        x, y = torch.randn(5, 3).double(), torch.tensor([0, 1, 0, 1, 1])
    with Problem(model, (x, y)) as problem:
        step = 1e-5
        products = Products(problem)
        columns = torch.stack([products(row) for row in torch.eye(problem.dimension, dtype=torch.float64)])
        point = problem.point()
        slopes = [
            (problem.gradient(point + step * row)[1] - problem.gradient(point - step * row)[1]) / (2 * step)
            for row in torch.eye(problem.dimension, dtype=torch.float64)
        ]
    torch.testing.assert_close(columns, columns.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(columns, torch.stack(slopes), rtol=0, atol=1e-8)


def test_hard_sigmoid_has_a_second_derivative() -> None:
    """Torch's own has none; as in the gates of MobileNet v3."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 2)).double()
    with Problem(model, (torch.ones(2, 3).double(), torch.tensor([0, 1]))) as problem:
        found = Products(problem)(torch.ones(problem.dimension, dtype=torch.float64))
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("training", [True, False])
def test_operations_of_a_graph_have_the_second_derivatives_of_torch(training: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, mean = torch.randn(5, 2, 4, 4).double(), torch.randn(3).double()
        values = [torch.randn(3, 2, 2, 2).double(), torch.randn(3).double(), torch.randn(3).double()]
    spread = mean.square() + 1.0
    found = []
    for functions in ({}, TWICE):
        convolve = functions.get("aten.conv2d.default", torch.ops.aten.conv2d.default)
        normalize = functions.get("aten.batch_norm.default", torch.ops.aten.batch_norm.default)

        def loss(
            w: Tensor, gamma: Tensor, beta: Tensor, convolve: Any = convolve, normalize: Any = normalize
        ) -> Tensor:
            statistics = mean.clone(), spread.clone()
            y = normalize(convolve(x, w, None, [1, 1], [1, 1]), gamma, beta, *statistics, training, 0.1, 1e-5, False)
            return (torch.tanh(y) ** 2).sum()

        leaves = [value.clone().requires_grad_() for value in values]
        slopes = torch.autograd.grad(loss(*leaves, convolve, normalize), leaves, create_graph=True)
        found.append(torch.autograd.grad(slopes, leaves, [torch.ones_like(leaf) for leaf in leaves]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_squared_error_is_what_torch_gives_and_can_be_recorded(reduction: str) -> None:
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    expected = F.mse_loss(x, y, reduction=reduction)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(z, y, reduction=reduction).sum()

    with twice_differentiable(nn.Identity()):
        torch.testing.assert_close(F.mse_loss(x, y, reduction=reduction), expected)
        torch.testing.assert_close(nn.MSELoss(reduction=reduction)(x, y), expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, derivative = torch.func.linearize(torch.func.grad(loss), x)  # torch's own kernel ends the process here
    factor = 2 / 12 if reduction == "mean" else 2.0
    torch.testing.assert_close(derivative(y), factor * y)
