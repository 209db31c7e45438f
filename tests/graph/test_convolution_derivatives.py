"""The quick second derivative of convolution against torch's own, and against differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normscope.graph.convolution_derivatives import quick

CASES = {
    "plain": (2, {}, (3, 2, 5, 4), (4, 2, 3, 3), True),
    "strided": (2, {"stride": 2, "padding": (1, 2), "dilation": (2, 1)}, (2, 2, 8, 6), (3, 2, 3, 2), True),
    "depthwise": (2, {"padding": 1, "groups": 4}, (2, 4, 4, 4), (4, 1, 3, 3), False),
    "one axis": (1, {"stride": [2], "padding": 1}, (2, 3, 7), (2, 3, 3), True),
    "three axes": (3, {"padding": 1}, (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), True),
}  # fmt: skip


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_all_derivatives_are_those_of_torch(name: str) -> None:
    axes, options, inputs, weights, biased = CASES[name]
    own = getattr(torch, f"conv{axes}d")
    leaves = [random(*inputs), random(*weights), *([random(weights[0])] if biased else [])]
    vectors = [random(*leaf.shape) for leaf in leaves]
    found = []
    for function in (own, quick(own, axes)):
        every = [leaf.clone().requires_grad_() for leaf in leaves]
        loss = function(*every, **options).pow(3).sum()
        slopes = torch.autograd.grad(loss, every, create_graph=True)
        found.append([*slopes, *torch.autograd.grad(slopes, every, vectors)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fixed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_what_needs_no_derivative_gets_none(fixed: tuple[int, ...]) -> None:
    leaves = [random(2, 2, 4), random(3, 2, 2), random(3)]
    for place, leaf in enumerate(leaves):
        leaf.requires_grad_(place not in fixed)
    moving = [leaf for leaf in leaves if leaf.requires_grad]

    def function(*given: Tensor) -> Tensor:
        every = iter(given)
        return quick(torch.conv1d, 1)(*(next(every) if leaf.requires_grad else leaf for leaf in leaves)).tanh()

    assert torch.autograd.gradgradcheck(function, moving)


def test_many_vectors_at_once() -> None:
    x, w = random(2, 2, 4, 4), random(3, 2, 3, 3).requires_grad_()
    slope = torch.autograd.grad(quick(torch.conv2d, 2)(x, w).pow(3).sum(), w, create_graph=True)[0]
    rows = random(5, *w.shape)
    together = torch.autograd.grad(slope, w, rows, is_grads_batched=True, retain_graph=True)[0]
    single = torch.stack([torch.autograd.grad(slope, w, row, retain_graph=True)[0] for row in rows])
    torch.testing.assert_close(together, single)


def test_what_is_not_covered_goes_to_torch() -> None:
    convolution = quick(torch.conv2d, 2)
    x, w = random(2, 4, 4), random(3, 2, 3, 3).requires_grad_()
    torch.testing.assert_close(convolution(x, w), torch.conv2d(x, w))  # one sample without a batch
    torch.testing.assert_close(convolution(x[None], w, padding="same"), torch.conv2d(x[None], w, padding="same"))
    hessian = torch.func.hessian(lambda w: convolution(x[None], w).pow(3).sum())(w.detach())
    torch.testing.assert_close(hessian, torch.func.hessian(lambda w: torch.conv2d(x[None], w).pow(3).sum())(w.detach()))
    with pytest.raises(RuntimeError):
        convolution(x[None], w.float())
