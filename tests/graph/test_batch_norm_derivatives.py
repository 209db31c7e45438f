"""The quick second derivative of BatchNorm against torch's own, and against differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.graph.batch_norm_derivatives import batch_normalized


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2), (3, 3, 2, 4), (2, 3, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("constant", [False, True], ids=["batch", "constants"])
@pytest.mark.parametrize("affine", [False, True], ids=["plain", "affine"])
def test_all_derivatives_are_those_of_torch(shape: tuple[int, ...], constant: bool, affine: bool) -> None:
    statistics = (random(3), random(3).square()) if constant else (None, None)
    leaves = [random(*shape), *([random(3) + 1, random(3)] if affine else [])]
    vectors = [random(*leaf.shape) for leaf in leaves]

    def theirs(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.batch_norm(x, *statistics, weight, bias, not constant, 0.0, 1e-2)

    def ours(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return batch_normalized(x, weight, bias, *statistics, 1e-2)

    found = []
    for function in (theirs, ours):
        every = [leaf.clone().requires_grad_() for leaf in leaves]
        loss = function(*every).pow(3).sum()
        slopes = torch.autograd.grad(loss, every, create_graph=True)
        found.append([loss, *slopes, *torch.autograd.grad(slopes, every, vectors)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("constant", [False, True], ids=["batch", "constants"])
@pytest.mark.parametrize("fixed", [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_what_needs_no_derivative_gets_none(constant: bool, fixed: tuple[int, ...]) -> None:
    statistics = (random(2), random(2).square()) if constant else (None, None)
    leaves = [random(4, 2), random(2), random(2)]
    for place, leaf in enumerate(leaves):
        leaf.requires_grad_(place not in fixed)

    def function(*given: Tensor) -> Tensor:
        every = iter(given)
        chosen = [next(every) if leaf.requires_grad else leaf for leaf in leaves]
        return batch_normalized(*chosen, *statistics).tanh()

    assert torch.autograd.gradgradcheck(function, [leaf for leaf in leaves if leaf.requires_grad])


@pytest.mark.parametrize("constant", [False, True], ids=["batch", "constants"])
def test_many_vectors_at_once_and_a_weight_of_zero(constant: bool) -> None:
    statistics = (random(2), random(2).square()) if constant else (None, None)
    x, weight = random(5, 2).requires_grad_(), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    loss = (batch_normalized(x, weight, None, *statistics) + 1).pow(3).sum()
    slopes = torch.autograd.grad(loss, [x, weight], create_graph=True)
    rows = [random(4, 5, 2), random(4, 2)]
    together = torch.autograd.grad(slopes, [x, weight], rows, is_grads_batched=True, retain_graph=True)
    for place in range(4):
        single = torch.autograd.grad(slopes, [x, weight], [row[place] for row in rows], retain_graph=True)
        for one, many in zip(single, together, strict=True):
            torch.testing.assert_close(one, many[place])
