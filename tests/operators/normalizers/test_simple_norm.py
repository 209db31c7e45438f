"""SimpleNorm: seen and counted, without a bound on all inputs, since there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizers.simple_norm import simple_norm_constants
from operators.normalizers.published import SimpleNorm

SPELLINGS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "as published": (SimpleNorm(6), (3, 6)),
    "biased, divided": (Lambda(lambda s, x: x / (x.var(-1, keepdim=True, unbiased=False) + 1e-3).sqrt()), (6,)),
    "over channels": (Lambda(lambda s, x: x * torch.rsqrt(x.var(1, keepdim=True) + 1e-3)), (6, 3, 3)),
    "variance from two means": (
        Lambda(lambda s, x: x * ((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + 1e-3).rsqrt()), (6,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_is_seen_and_has_no_bound(name: str) -> None:
    """However it is written."""
    model, shape = SPELLINGS[name]
    program = program_of(seeded(model), points(2, *shape))
    (site,) = program.sites
    assert site.kind == "simple_norm"
    assert simple_norm_constants(site).proved.log == math.inf
    assert upper_of(program) == math.inf


def test_there_is_none() -> None:
    """The Jacobian grows with the mean, which the variance does not see."""
    model = Lambda(lambda s, x: x * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-2))
    direction = points(1, 6) * 0.1
    norms = [jacobian_norm(model, direction + c) for c in (10.0, 100.0, 1000.0)]
    assert norms[1] > 8 * norms[0]
    assert norms[2] > 8 * norms[1]


def test_what_is_centred_afterwards_is_layer_normalization() -> None:
    """``x/std - mean/std`` is not SimpleNorm."""

    def fused(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-3) * s.g
        return x * scale + (s.b - x.mean(-1, keepdim=True) * scale)

    model = seeded(Lambda(fused, g=nn.Parameter(torch.ones(6)), b=nn.Parameter(torch.zeros(6))))
    program = program_of(model, points(2, 6))
    assert [s.kind for s in program.sites] == ["layer_norm"]
    upper = upper_of(program)
    worst = jacobian_norm(model, points(1, 6) * 1e-9)
    assert worst <= upper * (1 + 1e-9)
    assert worst >= upper * 0.999
