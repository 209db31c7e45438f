"""Filter response normalization: every one of a network is seen, and the constant of each is the supremum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizer import site_constants
from normscope.operators.normalizers.rms_norm import rms_norm_on_floor
from operators.normalizers.published import FilterResponseNorm


def _shared(s: Lambda, x: Tensor) -> Tensor:
    """Two of them with one stabilizer."""
    eps = s.eps.abs()
    for _ in range(2):
        x = x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + eps)
    return x


MODELS: dict[str, tuple[nn.Module, int]] = {
    "in sequence": (nn.Sequential(FilterResponseNorm(3), nn.Conv2d(3, 3, 1), FilterResponseNorm(3)), 2),
    "one stabilizer for all": (Lambda(_shared, eps=nn.Parameter(torch.full((), 1e-2))), 2),
    "a stabilizer per channel": (nn.Sequential(FilterResponseNorm(3, per_channel=True), nn.Conv2d(3, 3, 1)), 1),
    "divided by a root": (Lambda(lambda s, x: x / (x.pow(2).mean((2, 3), keepdim=True) + s.e.abs()).sqrt(),
                                 e=nn.Parameter(torch.full((1, 3, 1, 1), 0.1))), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_all_are_seen_and_nothing_exceeds_the_bound(name: str) -> None:
    """Also the last one of a graph."""
    model, count = MODELS[name]
    model = seeded(model)
    program = program_of(model, points(2, 3, 4, 4))
    assert [s.kind for s in program.sites] == ["filter_response_norm"] * count
    upper = upper_of(program)
    assert upper < math.inf
    for size in (1e-6, 0.1, 1.0, 10.0):
        assert jacobian_norm(model, points(1, 3, 4, 4, seed=1) * size) <= upper * (1 + 1e-9)


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_constant_is_attained_at_zero(per_channel: bool) -> None:
    """Where no threshold cuts it off."""
    model = seeded(FilterResponseNorm(3, per_channel=per_channel))
    with torch.no_grad():
        model.tau.fill_(-100.0)
        model.eps.fill_(1e-2)
    (site,) = program_of(model, points(2, 3, 4, 4)).sites
    proved = site_constants(site, None, "running").proved.value
    assert proved == pytest.approx(rms_norm_on_floor(model.gamma, 1e-2, 0.0), rel=1e-12)
    assert jacobian_norm(model, torch.full((1, 3, 4, 4), 1e-12).double()) == pytest.approx(proved, rel=1e-6)


def test_above_a_floor() -> None:
    """The root mean square of every channel is at least s."""
    model, gamma = seeded(FilterResponseNorm(2)), torch.tensor([2.0, -3.0]).double()
    with torch.no_grad():
        model.tau.fill_(-100.0)
        model.eps.fill_(1e-2)
        model.gamma.copy_(gamma)
    x = points(1, 2, 3, 3)
    floor = float(x.square().mean((2, 3)).sqrt().min())
    bound = rms_norm_on_floor(gamma, 1e-2, floor)
    assert 0.5 * bound < jacobian_norm(model, x) <= bound
