"""Weights whose scale does not matter: found by structure, confirmed by numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, seeded
from normscope.lipschitz.weights.invariance import scale_free

EPS = 1e-14


def _divided(y: Tensor) -> Tensor:
    return y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()


CASES: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    "layer norm": (nn.Sequential(nn.Linear(4, 5, bias=False), nn.LayerNorm(5, eps=EPS)), (2, 4), True),
    "layer norm after a bias": (nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5, eps=EPS)), (2, 4), False),
    "rms norm after relu": (nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.RMSNorm(5, EPS)), (2, 4), True),
    "after tanh": (nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.LayerNorm(5, eps=EPS)), (2, 4), False),
    "instance norm after a bias": (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, eps=EPS)),
        (2, 2, 4, 4),
        True,
    ),
    "instance norm after a bias and relu": (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.InstanceNorm2d(3, eps=EPS)),
        (2, 2, 4, 4),
        False,
    ),
    "group norm": (nn.Sequential(nn.Conv2d(2, 4, 2, bias=False), nn.GroupNorm(2, 4, eps=EPS)), (2, 2, 4, 4), True),
    "a skip beside it": (
        Lambda(lambda m, x: (y := m.f(x)) + m.n(y), f=nn.Linear(4, 4, bias=False), n=nn.LayerNorm(4, eps=EPS)),
        (2, 4),
        False,
    ),
    "rms norm written out": (
        Lambda(lambda m, x: _divided(m.f(x)), f=nn.Linear(4, 5, bias=False)),
        (2, 4),
        True,
    ),
    "a skip beside one written out": (
        Lambda(lambda m, x: (y := m.f(x)) + _divided(y), f=nn.Linear(4, 4, bias=False)),
        (2, 4),
        False,
    ),
    "nothing after it": (nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()), (2, 4), False),
}


@pytest.mark.parametrize("name", CASES)
def test_structure_agrees_with_numbers(name: str, found: Any) -> None:
    """A scale-free weight times three gives the same output and a third of the derivative; the others do not."""
    model, shape, expected = CASES[name]
    model = seeded(model)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    captured, weights = found(model, x)
    site = scale_free(captured.graph, weights.program, weights.uses[0])
    assert (site is not None) == expected
    parameter = next(p for n, p in model.named_parameters() if n == weights.leaves[weights.uses[0].leaf].name)
    others = {n: p for n, p in model.named_parameters() if p is not parameter}
    key = next(n for n, p in model.named_parameters() if p is parameter)

    def of(weight: Tensor) -> Tensor:
        return torch.func.functional_call(model, others | {key: weight}, (x,))

    one, three = (torch.autograd.functional.jacobian(of, c * parameter.detach()) for c in (1.0, 3.0))
    same = torch.allclose(of(parameter), of(3 * parameter), rtol=1e-6, atol=1e-9)
    assert same == expected
    if expected:
        assert torch.allclose(three, one / 3, rtol=1e-5, atol=1e-8)


def test_batch_norm_in_training(found: Any) -> None:
    """With running statistics the scale matters; with those of the batch, as in training, it does not."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)))
    captured, weights = found(model, torch.ones(2, 4, dtype=torch.float64))
    assert scale_free(captured.graph, weights.program, weights.uses[0]) is None
    assert scale_free(captured.graph, weights.program, weights.uses[0], training=True) is not None
    assert scale_free(captured.graph, weights.program, weights.uses[1], training=True) is None
