"""1,000 random networks and balls: no Jacobian, flipped pattern or pair exceeds a certificate.

A few of them run in ``make test``, others every day; ``make test-all`` runs all.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, points, seeded, spectral_norm
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.balanced_channels import balanced_program, with_balanced_channels
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import Program, build_program
from rotation import todays

COUNT, CHUNK = 1000, 20
#: Points of a ball, patterns put together from theirs, and pairs.
POINTS, PATTERNS, PAIRS = 10, 6, 10
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Tanh, nn.SiLU)
SMOOTH = (nn.GELU, nn.Tanh, nn.SiLU)


class Switch(nn.Module):
    """A ReLU or leaky ReLU whose slopes are noted, or replaced by given ones."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.slope = slope
        self.seen: list[Tensor] = []
        self.given: Tensor | None = None

    def forward(self, z: Tensor) -> Tensor:
        """Return the activation, or the linear map with the given slopes."""
        if self.given is not None:
            return self.given * z
        if not torch.compiler.is_exporting():
            self.seen.append(torch.where(z > 0, 1.0, self.slope).to(z).detach())
        return nn.functional.leaky_relu(z, self.slope) if self.slope else nn.functional.relu(z)


def _activation(draw: random.Random) -> nn.Module:
    kind = draw.choice(ACTIVATIONS)
    return kind() if kind in SMOOTH else Switch(0.0 if kind is nn.ReLU else 0.01)


def _dense(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    sizes = [draw.randint(2, 9) for _ in range(draw.randint(3, 6))]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if draw.random() < 0.4 else []), _activation(draw)]
    return nn.Sequential(*layers[:-1]), (1, sizes[0])


def _convolutional(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels = [draw.randint(1, 3) for _ in range(3)]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(channels):
        stride = draw.choice((1, 1, 2))
        layers += [nn.Conv2d(a, b, 3, padding=1, stride=stride), nn.BatchNorm2d(b), _activation(draw)]
    if draw.random() < 0.3:
        layers.insert(3, nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 3)), (
        1,
        channels[0],
        6,
        6,
    )


def _residual(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = draw.randint(3, 6)
    if draw.random() < 0.5:
        parts = {f"a{i}": nn.Linear(width, width) for i in range(4)} | {f"s{i}": _activation(draw) for i in range(4)}
        shape: tuple[int, ...] = (1, width)
        end: nn.Module = nn.Linear(width, 3)
    else:
        parts = {f"a{i}": nn.Conv2d(2, 2, 3, padding=1) for i in range(4)}
        parts |= {f"s{i}": _activation(draw) for i in range(4)}
        shape, end = (1, 2, 4, 4), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))

    def forward(s: nn.Module, x: Tensor) -> Tensor:
        h = s.s1(x + s.a1(s.s0(s.a0(x))))
        h = s.s3(h + s.a3(s.s2(s.a2(h))))
        return s.end(h)

    return Lambda(forward, **parts, end=end), shape


def _attention(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    tokens, width = draw.randint(2, 3), draw.choice((2, 4))
    norm = draw.choice((nn.LayerNorm, nn.RMSNorm, nn.Identity))(width)
    parts = {"norm": norm, "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width), "s": _activation(draw)}
    parts |= {"up": nn.Linear(width, 4), "down": nn.Linear(4, 2)}

    def forward(s: nn.Module, x: Tensor) -> Tensor:
        q, k, v = s.qkv(s.norm(x)).chunk(3, -1)
        h = x + s.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return s.down(s.s(s.up(h))).mean(1)

    return Lambda(forward, **parts), (1, tokens, width)


FAMILIES: tuple[Callable[[random.Random], tuple[nn.Module, tuple[int, ...]]], ...] = (
    _dense,
    _convolutional,
    _residual,
    _attention,
)


def _network(seed: int) -> tuple[nn.Module, tuple[int, ...], float]:
    """Return a random network, the shape of its input and a radius."""
    draw = random.Random(seed)
    model, shape = FAMILIES[seed % len(FAMILIES)](draw)
    model = seeded(model, seed, scale=draw.choice((0.7, 1.0, 1.6)))
    weights = draw.choice((torch.float64, torch.float32, torch.float16))
    return model.to(weights).double(), shape, draw.choice((0.001, 0.01, 0.1, 0.5, 2.0))


def _norm_at(model: nn.Module, x: Tensor) -> float:
    found = torch.autograd.functional.jacobian(lambda z: model(z).flatten(), x)
    return spectral_norm(found.flatten(1).detach())


def _ball(model: nn.Module, x: Tensor, radius: float, seed: int) -> list[Tensor]:
    """Return points of the ball: most of them on its boundary, some in the direction in which the output moves most."""
    found = []
    for k in range(POINTS):
        d = points(*x.shape, seed=1000 * seed + k)
        found.append(x + (radius if k % 3 else 0.3 * radius) * (1 - 1e-9) * d / d.norm())
    jacobian = torch.autograd.functional.jacobian(lambda z: model(z).flatten(), x).flatten(1)
    d = torch.linalg.svd(jacobian.detach())[2][0].reshape(x.shape)
    return [*found, x + radius * (1 - 1e-9) * d, x - radius * (1 - 1e-9) * d]


def _mixed(model: nn.Module, x: Tensor, seed: int) -> list[float]:
    """Return norms of Jacobians whose every kinked unit has a slope that it has somewhere in the ball, chosen apart."""
    switches = [m for m in model.modules() if isinstance(m, Switch)]
    if not switches or any(not isinstance(m, Switch | nn.Linear | nn.Conv2d) and _bends(m) for m in model.modules()):
        return []
    found = []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(PATTERNS):
        for switch in switches:
            seen = torch.stack(switch.seen)
            chosen = torch.randint(len(seen), seen.shape[1:], generator=generator)
            switch.given = seen.gather(0, chosen[None])[0]
        found.append(_norm_at(model, x))
    for switch in switches:
        switch.given = None
    return found


def _bends(module: nn.Module) -> bool:
    """Return whether a module is nonlinear, other than a switch."""
    return isinstance(module, (*SMOOTH, nn.MaxPool2d, nn.LayerNorm, nn.RMSNorm)) or "qkv" in dict(
        module.named_children()
    )


def _programs(model: nn.Module, x: Tensor) -> tuple[Program, Program]:
    """Return the program on all inputs, and the one for balls."""
    captured = captured_of(model, x)
    whole = build_program(captured.graph, captured.tensors, captured.at_batch(1))
    return whole, balanced_program(with_balanced_channels(captured), captured.at_batch(1))


def check(seed: int) -> None:
    """Attack the certificates of one network: on all inputs, at a point, and on a ball."""
    model, shape, radius = _network(seed)
    x = points(*shape, seed=seed)
    program, balanced = _programs(model, x)
    norms = SegmentNorms()
    everywhere = Composition(program, Domain(), norms, Chains(program, seconds=0.05)).total()[0]
    here, around = (b.constant for b in on_balls(balanced, Steps(norms), [x], [0.0, radius], tries=15))
    for switch in model.modules():
        if isinstance(switch, Switch):
            switch.seen.clear()
    with torch.no_grad():
        model(x)
    inside = _ball(model, x, radius, seed)
    attained = {
        "the Jacobian at the point": (_norm_at(model, x), here),
        "a Jacobian in the ball": (max(_norm_at(model, y) for y in inside), around),
        "a flipped pattern": (max(_mixed(model, x, seed), default=0.0), around),
        "a Jacobian on all inputs": (max(_norm_at(model, 10.0**k * inside[k]) for k in range(3)), math.exp(everywhere)),
    }
    with torch.no_grad():
        for a, b in itertools.pairwise(inside[: PAIRS + 1]):
            quotient = float((model(a) - model(b)).norm() / (a - b).norm())
            attained[f"a pair, {len(attained)}"] = (quotient, min(around, math.exp(everywhere)))
    exceeded = {name: pair for name, pair in attained.items() if pair[0] > pair[1] * (1 + 1e-9) + 1e-12}
    assert not exceeded, f"seed {seed}, radius {radius}: {exceeded}\n{model}"
    assert here <= max(around, here * (1 + 1e-6))


@pytest.mark.turns(6)
@pytest.mark.parametrize("seed", todays(range(COUNT), 12))
def test_nothing_in_a_ball_exceeds_its_certificate(seed: int) -> None:
    check(seed)


def test_an_attack_succeeds_on_a_constant_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attacks find every certificate that is lowered by a tenth to be false, on some network."""
    from normscope.lipschitz.local import ball

    real = ball.gain
    monkeypatch.setattr(ball, "gain", lambda *a, **k: type(real(*a, **k))(0.9 * real(*a, **k).value))
    with pytest.raises(AssertionError, match="the Jacobian at the point"):
        check(next(seed for seed in range(0, 40, 4) if _alive(seed)))


def _alive(seed: int) -> bool:
    model, shape, _ = _network(seed)
    return _norm_at(model, points(*shape, seed=seed)) > 0
