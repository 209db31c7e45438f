"""Switchable normalization: seen and counted, without a bound on all inputs, since there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizers.switch_norm import switch_norm_constants
from operators.normalizers.published import SwitchNorm


def _two(s: Lambda, x: Tensor) -> Tensor:
    """Instance and layer statistics, half of each, multiplied by an inverse root."""
    mean = 0.5 * x.mean((2, 3), keepdim=True) + 0.5 * x.mean((1, 2, 3), keepdim=True)
    variance = s.w * x.var((2, 3), keepdim=True) + (1 - s.w) * x.var((1, 2, 3), keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-3)


MODELS: dict[str, nn.Module] = {
    "as published": SwitchNorm(4),
    "two statistics": Lambda(_two, w=nn.Parameter(torch.tensor(0.3))),
    "several": nn.Sequential(SwitchNorm(4), nn.ReLU(), SwitchNorm(4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_seen_and_has_no_bound(name: str) -> None:
    """Every one of a network."""
    model = MODELS[name]
    program = program_of(seeded(model), points(2, 4, 3, 3))
    assert [s.kind for s in program.sites] == ["switch_norm"] * (2 if name == "several" else 1)
    assert switch_norm_constants(program.sites[0]).proved.log == math.inf
    assert upper_of(program) == math.inf


def test_there_is_none() -> None:
    """With a share of running statistics the Jacobian grows with the mean of the input."""
    model = seeded(SwitchNorm(4))
    x = points(1, 4, 3, 3) * 0.1
    norms = [jacobian_norm(model, x + c) for c in (1e2, 1e3, 1e4)]
    assert norms[1] > 5 * norms[0]
    assert norms[2] > 5 * norms[1]
