"""The tests that a run makes of itself find wrong products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from curved import classifier, labelled
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.self_test import difference_gap, symmetry_gap


class _Wrong(torch.autograd.Function):
    """A square whose second derivative is wrong."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x * x

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 2 * x.detach() * g + 0 * x.flip(-1) + 3 * (x.flip(-1) - x.flip(-1).detach()) * g


def test_right_products_pass() -> None:
    with Problem(classifier(activation=nn.ReLU), labelled(), dtype=torch.float64) as problem:
        products = Products(problem)
        vector = torch.ones(problem.dimension, dtype=torch.float64)
        assert symmetry_gap(products) < 1e-12
        assert difference_gap(problem, vector, products(vector)) < 1e-5


def test_a_wrong_second_derivative_is_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(_Wrong.apply(self.a(x)))

    with Problem(Net(), labelled(), dtype=torch.float64) as problem:
        products = Products(problem)
        vector = torch.ones(problem.dimension, dtype=torch.float64)
        assert symmetry_gap(products) > 1e-3
        assert difference_gap(problem, vector, products(vector)) > 0.1
