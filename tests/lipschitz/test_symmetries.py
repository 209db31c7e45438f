"""Headline numbers do not move under what leaves the function alone: rescaled channels, BatchNorm, permutations."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from networks import points, program_of, seeded
from normscope import analyze, fix
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.segments import SegmentNorms
from normscope.zoo import build

RADIUS = 0.05


class Block(nn.Module):
    """``relu(x + conv(relu(bn(conv(x)))))``, or the same with linear layers."""

    def __init__(self, width: int, *, image: bool) -> None:
        super().__init__()
        make = (lambda: nn.Conv2d(width, width, 3, padding=1)) if image else (lambda: nn.Linear(width, width))
        self.conv1, self.conv2 = make(), make()
        self.bn1 = nn.BatchNorm2d(width) if image else nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return torch.relu(x + self.conv2(torch.relu(self.bn1(self.conv1(x)))))


def _network(kind: str, seed: int) -> tuple[nn.Module, Tensor]:
    if kind == "dense":
        layers = [nn.Linear(4, 6), Block(6, image=False), Block(6, image=False), nn.Linear(6, 3)]
        return seeded(nn.Sequential(*layers), seed), points(1, 4, seed=seed)
    body = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), Block(3, image=True), Block(3, image=True)]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    return seeded(model, seed), points(1, 2, 4, 4, seed=seed)


def moved(model: nn.Module, seed: int) -> nn.Module:
    """Return the same function: inner channels rescaled and permuted, the weight before each BatchNorm rescaled."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in other.modules():
            if not hasattr(block, "conv2") or not hasattr(block, "bn1"):
                continue
            count = len(block.bn1.weight)
            draw = lambda n=count: torch.rand(n, generator=generator, dtype=torch.float64)  # noqa: E731
            outer, inner, order = (
                10 ** (4 * draw() - 2),
                10 ** (2 * draw() - 1),
                torch.randperm(count, generator=generator),
            )
            wide = (-1, *(1,) * (block.conv1.weight.ndim - 1))
            first, norm, second = block.conv1, block.bn1, block.conv2
            first.weight.mul_(inner.reshape(wide))
            if first.bias is not None:
                first.bias.mul_(inner)
            norm.running_mean.mul_(inner)
            norm.weight.mul_((norm.running_var * inner**2 + norm.eps).sqrt() / (norm.running_var + norm.eps).sqrt())
            norm.running_var.mul_(inner**2)
            norm.weight.div_(inner).mul_(outer)
            norm.bias.mul_(outer)
            second.weight.div_(outer.reshape(1, *wide[:1], *wide[2:]))
            for tensor in (first.weight, first.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var):
                if tensor is not None:
                    tensor.copy_(tensor[order].clone())
            second.weight.copy_(second.weight[:, order].clone())
    return other


def _numbers(model: nn.Module, x: Tensor, seconds: float = 0.5) -> dict[str, float]:
    program, norms = program_of(model, x), SegmentNorms()
    everywhere = Composition(program, Domain(), norms, Chains(program, seconds=seconds)).total()[0]
    here, around = (b.constant for b in on_balls(program, Steps(norms), [x], [0.0, RADIUS]))
    return {"everywhere": everywhere, "around": math.log(around), "here": math.log(here)}


@pytest.mark.turns(3)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_headline_numbers_stay(kind: str, seed: int) -> None:
    model, x = _network(kind, seed)
    other = moved(model, seed)
    torch.testing.assert_close(other(x), model(x), rtol=1e-9, atol=1e-9)
    first, second = _numbers(model, x), _numbers(other, x)
    assert second["here"] == pytest.approx(first["here"], abs=1e-6)  # nothing is searched for
    assert second["around"] == pytest.approx(first["around"], abs=1e-3)
    assert second["everywhere"] == pytest.approx(first["everywhere"], abs=1e-3)


@pytest.mark.slow
def test_the_chain_of_a_residual_network_on_a_torus_stays() -> None:
    model = seeded(build("resnet20", width=4, blocks=1))
    x = points(1, 3, 32, 32)
    other = moved(model, 0)
    torch.testing.assert_close(other(x), model(x), rtol=1e-9, atol=1e-9)
    logs = []
    for network in (model, other):
        program = program_of(network, x)
        logs.append(Composition(program, Domain(), SegmentNorms(), Chains(program, seconds=20.0)).total()[0])
    assert logs[1] == pytest.approx(logs[0], abs=1e-3)


@pytest.mark.parametrize("seed", range(2))
def test_balancing_never_makes_a_bound_worse(seed: int) -> None:
    """Layers far out of balance: the fix changes weights, and no bound that is told first grows."""
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    model, data = seeded(nn.Sequential(*layers), seed), points(6, 4)
    with torch.no_grad():
        factors = 2.0 ** torch.arange(-8, 8, 2, dtype=torch.float64)
        model[0].weight.mul_(factors[:, None])
        model[0].bias.mul_(factors)
        model[2].weight.div_(factors)
    found = fix(model, data, only=("balance",))
    assert found.changes
    balanced = copy.deepcopy(model)
    balanced.load_state_dict(found.state)
    before, after = (analyze(m, data, time=0.5, radius=RADIUS) for m in (model, balanced))
    assert after.end_to_end["global"].log <= before.end_to_end["global"].log + 1e-3
    for a, b in zip(after.around.neighbourhoods, before.around.neighbourhoods, strict=True):
        assert all(x <= y * (1 + 1e-3) for x, y in zip(a.constants, b.constants, strict=True))
