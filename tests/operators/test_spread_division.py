"""Normalizers as centring, division and affine map: against torch layers, with scale folded where it belongs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import normscope
from networks import jacobian_norm, points, program_of, seeded, spectral_norm, upper_of
from normscope.core.errors import InputError
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.spread_division import Spread, division_constant
from normscope.testing.upper_bound import check_upper_bound

EPS = 1e-2
NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(5, eps=EPS), (5,)),
    "layer norm over two axes": (lambda: nn.LayerNorm((2, 3), eps=EPS), (2, 3)),
    "layer norm of tokens": (lambda: nn.LayerNorm(4, eps=EPS), (3, 4)),
    "rms norm": (lambda: nn.RMSNorm(5, eps=EPS), (5,)),
    "group norm": (lambda: nn.GroupNorm(2, 4, eps=EPS), (4, 3)),
    "group norm of one group": (lambda: nn.GroupNorm(1, 4, eps=EPS), (4, 2)),
    "group norm of single channels": (lambda: nn.GroupNorm(4, 4, eps=EPS), (4, 3)),
    "instance norm": (lambda: nn.InstanceNorm1d(3, eps=EPS, affine=True), (3, 4)),
    "instance norm with fixed statistics": (lambda: nn.InstanceNorm1d(3, eps=EPS, track_running_stats=True), (3, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(4, eps=EPS), (4,)),
    "batch norm on maps": (lambda: nn.BatchNorm2d(3, eps=EPS), (3, 2, 2)),
    "pairs": (lambda: nn.LayerNorm(2, eps=EPS), (2,)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NORMS)
def test_nothing_refutes_a_normalizer(name: str) -> None:
    """Jacobians, pairs and values at every node, between two linear layers too."""
    build, shape = NORMS[name]
    alone = check_upper_bound(seeded(build()), [points(4, *shape)], ascent=10)
    assert alone.violations == []
    assert alone.upper["floors"] <= alone.upper["everywhere"] < math.inf
    around = seeded(nn.Sequential(nn.Linear(shape[-1], shape[-1]), build(), nn.Linear(shape[-1], 3)))
    assert check_upper_bound(around, [points(4, *shape)], ascent=10).violations == []


@pytest.mark.parametrize("name", NORMS)
def test_the_global_constant_is_attained(name: str) -> None:
    """Near a constant input the Jacobian reaches it."""
    build, shape = NORMS[name]
    model = seeded(build())
    upper = upper_of(program_of(model, points(2, *shape)))
    worst = max(jacobian_norm(model, points(1, *shape, seed=i) * 1e-9) for i in range(3))
    assert worst <= upper * (1 + 1e-12)
    assert worst == pytest.approx(upper, rel=1e-6)


def test_centring_folds_into_the_layer_before_and_after() -> None:
    """||P W|| and ||V Gamma P|| are smaller than ||W|| and ||V|| max|gamma|: the mean direction is gone."""
    model = seeded(nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4, eps=EPS), nn.Linear(4, 4, bias=False)))
    with torch.no_grad():  # both layers act mostly along the mean
        model[0].weight += 5.0
        model[2].weight += 5.0
    centre = torch.eye(4).double() - 0.25
    gamma = torch.diag(model[1].weight.detach())
    before = spectral_norm(centre @ model[0].weight.detach())
    after = spectral_norm(model[2].weight.detach() @ gamma @ centre)
    expected = before * after / math.sqrt(EPS)
    assert upper_of(program_of(model, points(2, 4))) == pytest.approx(expected, rel=1e-9)
    assert before < 0.2 * spectral_norm(model[0].weight.detach())


def test_channel_scales_fold_into_the_layer_before() -> None:
    """InstanceNorm and BatchNorm on batches: ||diag(|gamma|/s) W||, not max|gamma|/s times ||W||."""
    model = seeded(nn.Sequential(nn.Conv1d(2, 3, 1, bias=False), nn.InstanceNorm1d(3, eps=EPS, affine=True)))
    model[1].weight.data.copy_(torch.tensor([0.1, 1.0, 10.0]))
    model[0].weight.data[2] *= 1e-3
    expected = spectral_norm((model[1].weight[:, None] * model[0].weight[:, :, 0]).detach()) / math.sqrt(EPS)
    assert upper_of(program_of(model, points(2, 2, 5))) == pytest.approx(expected, rel=1e-6)


def test_floors_per_channel() -> None:
    """Each channel of an InstanceNorm keeps its own."""
    model = seeded(nn.InstanceNorm1d(2, eps=EPS))
    program = program_of(model, points(2, 2, 5))
    (node,) = (s.node for s in program.sites)
    floors = torch.tensor([[[0.5], [3.0]]], dtype=torch.float64)
    certified = Composition(program, Domain("floors", {node: floors}), SegmentNorms()).total()[0]
    assert math.exp(certified) == pytest.approx(1 / math.sqrt(0.25 + EPS), rel=1e-9)


def test_batch_statistics_couple_the_batch() -> None:
    """The stacked batch is one input: max |gamma| / sqrt(eps), attained where a channel is constant."""
    model = seeded(nn.BatchNorm1d(3, eps=EPS, track_running_stats=False))
    program = program_of(model, points(4, 3), batch=4)
    assert program.blocks[0].shape == (4, 3)
    expected = float(model.weight.detach().abs().max()) / math.sqrt(EPS)
    assert upper_of(program) == pytest.approx(expected, rel=1e-9)
    assert jacobian_norm(model, torch.ones(4, 3).double()) == pytest.approx(expected, rel=1e-9)


SPREADS = [
    Spread((6,), (0,), 1e-2, True),
    Spread((6,), (0,), 1e-2, False),
    Spread((6,), (0,), 1e-2, True, 1.2),
    Spread((6,), (0,), 1e-1, False, 6.0, "outside"),
    Spread((6,), (0,), 1e-1, False, 6.0, "max"),
]


@pytest.mark.parametrize("least", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("spread", SPREADS)
def test_division_on_floors(spread: Spread, least: float) -> None:
    """No pair of points with spreads above s, near or opposite, changes faster; an antipodal pair attains it."""
    constant = float(division_constant(spread, torch.tensor(least, dtype=torch.float64)))
    worst = 0.0
    for seed in range(40):
        pair = points(2, 6, seed=seed)
        pair = pair - pair.mean(1, keepdim=True) if spread.centered else pair
        pair = pair / pair.square().mean(1, keepdim=True).sqrt()
        size = (least or 1e-6) * (1 + points(2, 1, seed=seed).abs() * (seed % 4))
        a, b = pair * size
        if seed % 2:
            b = -a * (1 + 0.1 * (seed % 3))
        worst = max(worst, float((spread.normalize(a) - spread.normalize(b)).norm() / (a - b).norm()))
    assert worst <= constant * (1 + 1e-9)
    assert worst >= constant * 0.99


def test_a_group_of_one_centred_entry_is_constant() -> None:
    """Nothing is left after its mean: constant zero."""
    spread = Spread((1,), (0,), 1e-5, True)
    assert float(division_constant(spread, torch.tensor(0.0))) == 0.0
    assert upper_of(program_of(seeded(nn.LayerNorm(1)), points(2, 1))) == 0.0


def test_without_a_stabilizer_the_constant_is_infinite() -> None:
    """And finite on a positive floor."""
    spread = Spread((3,), (0,), 0.0, True)
    assert float(division_constant(spread, torch.tensor(0.0, dtype=torch.float64))) == math.inf
    assert float(division_constant(spread, torch.tensor(2.0, dtype=torch.float64))) == pytest.approx(0.5, rel=1e-12)


def test_statistics_of_a_spread() -> None:
    """``of``, ``denominator`` and ``normalize`` against torch."""
    x = points(3, 6)
    spread = Spread((3, 6), (1,), 1e-3, True, 1.2, "inside")
    assert torch.allclose(spread.of(x)[:, 0], x.var(1, unbiased=False).sqrt(), rtol=1e-12)
    expected = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-3).sqrt()
    assert torch.allclose(spread.normalize(x), expected, rtol=1e-10)
    assert spread.size == 6


@pytest.mark.parametrize("layer", [nn.LayerNorm(4, eps=-1e-3), nn.GroupNorm(2, 4, eps=-1e-3)])
def test_a_negative_stabilizer_is_refused(layer: nn.Module) -> None:
    """It is a number under a root, and a normalizer with it is none."""
    with pytest.raises(InputError, match=r"to be a finite number >= 0, got -0\.001"):
        normscope.analyze(layer, torch.ones(2, 4))
