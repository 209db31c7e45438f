"""Compressed RMSNorm: its Jacobian is not symmetric, and its constant is above that of RMSNorm, and attained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.core.errors import InputError
from normscope.operators.normalizer import site_constants
from normscope.operators.normalizers.crms_norm import crms_norm_on_floor
from operators.normalizers.published import CRMSNorm


def _bare(x: Tensor, ratio: float, eps: float) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + ratio * x.sum(-1, keepdim=True).square() + eps).sqrt()


def _worst(n: int, ratio: float, eps: float, s: float = 0.0) -> float:
    """Return the largest Jacobian norm along the direction where the projection is longest, at many lengths."""
    across = torch.zeros(n, dtype=torch.float64)
    across[0], across[1] = 1.0, -1.0
    x = across / math.sqrt(2.0) + torch.ones(n).double() / math.sqrt(n * (1 + n * ratio))
    unit = x / math.sqrt(float(x.square().sum() + ratio * x.sum() ** 2))
    model = Lambda(lambda _, z: _bare(z, ratio, eps))
    sizes = [s * 1.0000001 + t for t in torch.logspace(-4, 2, 60).tolist()] + [max(s, 1e-9)]
    return max(jacobian_norm(model, (unit * size)[None]) for size in sizes)


@pytest.mark.turns(2)
@pytest.mark.parametrize("n", [2, 5, 17, 64])
@pytest.mark.parametrize(("ratio", "eps", "s"), [(1.0, 0.5, 0.0), (3.0, 1e-2, 0.0), (1.0, 0.5, 0.8), (0.0, 0.5, 0.3)])
def test_the_constant_is_attained(n: int, ratio: float, eps: float, s: float) -> None:
    """Where the mean and the rest of a vector weigh the same in the form."""
    bound = crms_norm_on_floor(n, ratio, eps, s)
    worst = _worst(n, ratio, eps, s)
    assert worst <= bound * (1 + 1e-9)
    assert worst >= bound * 0.99


def test_no_random_point_exceeds_it() -> None:
    """At several sizes, shifts and widths."""
    for n in (2, 3, 20):
        bound = crms_norm_on_floor(n, 1.0, 0.1)
        model = Lambda(lambda _, z: _bare(z, 1.0, 0.1))
        for seed in range(4):
            for size, shift in ((0.1, 0.0), (1.0, 0.0), (0.3, 0.3), (1.0, 3.0)):
                assert jacobian_norm(model, points(1, n, seed=seed) * size + shift) <= bound


def test_without_stabilizer_it_needs_a_floor() -> None:
    """And is then the length of the projection over it."""
    assert crms_norm_on_floor(3, 1.0, 0.0) == math.inf
    assert crms_norm_on_floor(3, 1.0, 0.0, 2.0) == pytest.approx(5 / 4 / 2, rel=1e-12)
    with pytest.raises(InputError, match="two entries"):
        crms_norm_on_floor(1, 1.0, 0.1)


SPELLINGS = {
    "as published": CRMSNorm(6, eps=1e-2),
    "divided, the last entry named": Lambda(
        lambda s, x: x / (((-x.sum(-1, keepdim=True)) ** 2 + x.pow(2).sum(-1, keepdim=True)) / 7 + 1e-2).sqrt()
    ),
    "by means": Lambda(
        lambda s, x: s.g * x * (x.square().mean(-1, keepdim=True) + 6 * x.mean(-1, keepdim=True).pow(2) + 1e-2) ** -0.5,
        g=nn.Parameter(torch.ones(6)),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_is_seen_in_a_network_with_its_constant(name: str) -> None:
    """However it is written."""
    model = seeded(SPELLINGS[name])
    program = program_of(model, points(2, 3, 6))
    (site,) = program.sites
    assert (site.kind, site.eps) == ("crms_norm", pytest.approx(1e-2, rel=1e-9))
    proved = site_constants(site, None, "running").proved.value
    assert upper_of(program) == pytest.approx(proved, rel=1e-6)
    for size in (1e-6, 0.05, 0.3, 3.0):
        assert jacobian_norm(model, points(1, 3, 6, seed=2) * size + size) <= proved
    gain = 1.0 if site.gamma is None else float(site.gamma.abs().max())
    assert jacobian_norm(model, torch.full((1, 3, 6), 1e-12).double()) >= 0.999 * gain / math.sqrt(1e-2)
