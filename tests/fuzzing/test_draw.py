"""Random choices depend on their seed alone, and stay where they are said to be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from fuzzing.draw import Draw, Function, randomized

DRAWN: dict[str, Callable[[Draw], object]] = {
    "choice": lambda d: d.choice(range(1000)),
    "integer": lambda d: d.integer(0, 1000),
    "number": lambda d: d.number(),
    "scale": lambda d: d.scale(),
    "permutation": lambda d: d.permutation(20),
    "tensor": lambda d: d.tensor(3, 2).tolist(),
    "mask": lambda d: d.mask(40).tolist(),
    "indices": lambda d: d.indices(100, 6).tolist(),
    "eps": lambda d: d.eps(),
    "gamma": lambda d: d.gamma(5).tolist(),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_seed_decides_and_nothing_else_moves(name: str) -> None:
    """The same again from the same seed, another from another; the global generators stay put."""
    nothing = nn.Identity()
    before = fingerprint(nothing)
    first = DRAWN[name](Draw(1))
    assert fingerprint(nothing) == before
    torch.rand(3, generator=torch.Generator().manual_seed(9))
    assert DRAWN[name](Draw(1)) == first
    assert any(DRAWN[name](Draw(seed)) != first for seed in (2, 3))
    draw = Draw(1)
    assert any(DRAWN[name](draw) != first for _ in range(3))


def test_numbers_are_where_they_are_said_to_be() -> None:
    """Ends included where they are whole; each is met."""
    draw = Draw(0)
    assert {draw.integer(-1, 2) for _ in range(200)} == {-1, 0, 1, 2}
    assert all(-2.0 <= draw.number() <= 2.0 for _ in range(200))
    scales = [math.log10(draw.scale(-3.0, 1.0)) for _ in range(400)]
    assert min(scales) >= -3.0 - 1e-12
    assert max(scales) <= 1.0 + 1e-12
    assert abs(sum(scales) / 400 + 1.0) < 0.3  # uniform in the logarithm
    assert all(1e-12 * 0.999 <= draw.eps() <= 0.1 * 1.001 for _ in range(200))
    assert sorted(draw.permutation(7)) == list(range(7))
    assert abs(sum(draw.chance(0.2) for _ in range(1000)) / 1000 - 0.2) < 0.06
    assert set(draw.indices(3, 100).tolist()) == {0, 1, 2}


def test_tensors_are_normal_in_float64() -> None:
    """Of the size asked for; masks have about their share."""
    draw = Draw(0)
    x = draw.tensor(4000, scale=3.0)
    assert x.dtype == torch.float64
    assert abs(float(x.mean())) < 0.2
    assert abs(float(x.std()) - 3.0) < 0.2
    mask = draw.mask(4000, share=0.8)
    assert mask.dtype == torch.bool
    assert abs(float(mask.double().mean()) - 0.8) < 0.05


def test_scales_of_normalizers_are_of_every_sort() -> None:
    """Near one, of both signs, some with zeros."""
    drawn = [Draw(seed).gamma(8) for seed in range(60)]
    assert any(bool((g - 1).abs().max() < 0.5) for g in drawn)
    assert any(bool((g < 0).any()) for g in drawn)
    assert any(bool((g == 0).any()) for g in drawn)


def test_functions_keep_what_they_are_given() -> None:
    """Finite floating tensors are trained, masks and infinities are not, modules are part of it."""
    hidden = torch.tensor([0.0, -math.inf])
    inner = nn.Linear(2, 2)
    module = Function("f", lambda m, x: m.inner(x) + m.w, w=torch.ones(2), hidden=hidden, mask=None, inner=inner)
    assert {name for name, _ in module.named_parameters()} == {"w", "inner.weight", "inner.bias"}
    assert {name for name, _ in module.named_buffers()} == {"hidden"}
    assert module.mask is None
    x = torch.ones(1, 2)
    assert torch.equal(module(x), inner(x) + 1.0)
    assert "f" in repr(module)


def test_every_parameter_and_statistic_is_drawn() -> None:
    """In float64; running variances positive; twice the same from one seed."""

    def made(seed: int) -> nn.Module:
        return randomized(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU()), Draw(seed))

    def flat(module: nn.Module) -> Tensor:
        return torch.cat([t.detach().flatten().double() for t in module.state_dict().values()])

    first = made(0)
    assert {p.dtype for p in first.parameters()} == {torch.float64}
    assert torch.equal(flat(first), flat(made(0)))
    assert not torch.equal(flat(first), flat(made(1)))
    norm = first[1]  # type: ignore[index]
    assert bool((norm.running_var > 0).all())
    assert not torch.equal(norm.running_var, torch.ones(4).double())
    assert not torch.equal(norm.running_mean, torch.zeros(4).double())
    assert not torch.equal(norm.bias, torch.zeros(4).double())
