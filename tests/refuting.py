"""Small networks and forged results for the tests of the refuter."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import nn

import normscope
from normscope.core.value import Value
from normscope.graph.inputs import ModelInputs
from normscope.testing.attack_context import AttackContext
from normscope.testing.refute import _attack_context


@functools.cache
def small() -> tuple[nn.Module, torch.Tensor, normscope.Result]:
    """Return a network with LayerNorm, data and its result."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([2.0, -1.0, 0.5, 1.0, -3.0]))
    data = torch.randn(5, 4)
    return model, data, normscope.analyze(model, data, points=2, ascent=3)


@functools.cache
def convolutional() -> tuple[nn.Module, torch.Tensor, normscope.Result]:
    """Return a network with BatchNorm, data and its result."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    ).eval()
    with torch.no_grad():
        model[1].running_var.copy_(torch.tensor([0.1, 2.0, 30.0]))
        model[1].weight.copy_(torch.tensor([1.0, -2.0, 0.0]))
    data = torch.randn(5, 2, 4, 4)
    return model, data, normscope.analyze(model, data, points=2, ascent=3)


def context(model: nn.Module, data: torch.Tensor, result: normscope.Result) -> AttackContext:
    """Return a context at which a result is attacked."""
    return _attack_context(model, ModelInputs((data,)), result, 0, 0.5, lambda text: None)


def less(value: Value | None, factor: float = 0.99) -> Value:
    """Return a value that claims a little less than was proved."""
    assert value is not None
    return replace(value, log=value.log + torch.tensor(factor).double().log().item())
