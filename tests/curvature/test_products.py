"""Products against dense matrices that use none of our code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from curved import classifier, dense_hessian, labelled, plain_hessian
from normscope.core.errors import InputError
from normscope.curvature.problem import Problem
from normscope.curvature.products import MATRICES, WAYS, Products, difference_gap, symmetry_gap


@pytest.mark.turns(6)
@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize("way", WAYS)
def test_the_hessian_is_that_of_a_plain_model(mode: str, way: str) -> None:
    model, (x, y) = classifier(activation=nn.ReLU), labelled()
    expected = plain_hessian(model, x, y, train=mode == "batch")
    with Problem(model, (x, y), mode=mode, dtype=torch.float64) as problem:
        torch.testing.assert_close(Products(problem, way=way).dense(), expected, rtol=1e-8, atol=1e-10)


def test_frozen_statistics_give_a_third_matrix() -> None:
    model, data = classifier(), labelled()
    found = {}
    for mode in ("batch", "frozen-batch"):
        with Problem(model, data, mode=mode, dtype=torch.float64) as problem:
            found[mode] = Products(problem).dense()
            torch.testing.assert_close(found[mode], dense_hessian(problem))
    assert float((found["batch"] - found["frozen-batch"]).abs().max()) > 0.1


def test_gauss_newton_is_jacobian_times_curvature_times_jacobian() -> None:
    model, (x, y) = classifier(), labelled(20)
    with Problem(model, (x, y), dtype=torch.float64, batch=7) as problem:
        expected = torch.zeros(problem.dimension, problem.dimension, dtype=torch.float64)
        for term in problem.terms:
            jacobian = torch.autograd.functional.jacobian(
                lambda v, t=term: problem.prediction(problem.outputs(problem.split(v), t)), problem.point()
            )
            scores = problem.prediction(problem.outputs({}, term)).detach()
            p = scores.softmax(1)
            for row, rate in zip(jacobian, p, strict=True):
                expected += row.T @ (torch.diag(rate) - torch.outer(rate, rate)) @ row / len(x)
        torch.testing.assert_close(Products(problem, "ggn").dense(), expected)
        torch.testing.assert_close(Products(problem, "fisher").dense(), expected)


def test_the_empirical_fisher_is_the_mean_of_outer_products_of_single_gradients() -> None:
    model, (x, y) = classifier(norm=False), labelled(12)
    with Problem(model, (x, y), dtype=torch.float64) as problem:
        found = Products(problem, "empirical-fisher").dense()
    expected = torch.zeros_like(found)
    for i in range(len(x)):
        with Problem(model, (x[i : i + 1], y[i : i + 1]), dtype=torch.float64) as single:
            slope = single.gradient()[1]
        expected += torch.outer(slope, slope) / len(x)
    torch.testing.assert_close(found, expected)


@pytest.mark.turns(5)
def test_batches_masks_and_blocks() -> None:
    model, data = nn.Sequential(classifier(), nn.Dropout(0.3)), labelled()
    with Problem(model, data, dtype=torch.float64, batch=15, masks=2, parameters="0.0.*") as problem:
        assert len(problem.terms) == 6
        for way in WAYS:
            torch.testing.assert_close(Products(problem, way=way).dense(), dense_hessian(problem))


def test_float32_products_agree_with_float64_ones() -> None:
    model, data = classifier(), labelled()
    vector = torch.ones(sum(p.numel() for p in model.parameters()))
    found = []
    for dtype in (None, torch.float64):
        with Problem(model, data, dtype=dtype) as problem:
            found.append([Products(problem, matrix)(vector).double() for matrix in MATRICES])
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-6)


def test_a_linear_loss_has_no_curvature() -> None:
    model, (x, _) = nn.Linear(3, 1), labelled(6, 3)
    with Problem(model, x, lambda out: out.mean()) as problem:
        assert float(Products(problem)(torch.ones(4)).abs().max()) == 0.0
        assert float(Products(problem, "ggn")(torch.ones(4)).abs().max()) == 0.0


def test_mistakes_are_told() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.inner(x)
            return {"loss": scores.square().mean(), "logits": scores}

    x, _ = labelled()
    with Problem(Own(), x, dtype=torch.float64) as problem:
        with pytest.raises(InputError, match="loss as a function of the outputs"):
            Products(problem, "ggn")
        assert Products(problem).dense().shape == (15, 15)
    with Problem(classifier(), labelled()) as problem:
        with pytest.raises(InputError, match="Unknown matrix"):
            Products(problem, "laplacian")
        with pytest.raises(InputError, match="Unknown way"):
            Products(problem, way="fast")
    own = Problem(classifier(), labelled(), nn.functional.cross_entropy)
    with own as problem, pytest.raises(InputError, match="needs a likelihood"):
        Products(problem, "fisher")


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
