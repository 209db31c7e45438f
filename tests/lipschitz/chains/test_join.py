"""Chains joined to the rest of a network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms


def _bounds(model: nn.Module, *shape: int) -> tuple[float, float, Chains]:
    program = program_of(model, points(2, *shape))
    chains, norms = Chains(program, seconds=1.0), SegmentNorms()
    alone = Composition(program, Domain(), norms).total()[0]
    joined = Composition(program, Domain(), norms, chains).total()[0]
    return math.exp(alone), math.exp(joined), chains


def _residual(s: Lambda, x: torch.Tensor) -> torch.Tensor:
    h = s.a(x).relu()
    h = (h + s.c(nn.functional.gelu(s.b(h)))).relu()
    return s.d(h + s.b(h).tanh())


MODELS = {
    "plain": nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)),
    "residual": Lambda(_residual, a=nn.Linear(6, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 8), d=nn.Linear(8, 3)),
    "layer norm": nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 3)
    ),
    "two heads": Lambda(
        lambda s, x: torch.cat([s.b(s.a(x).relu()), s.c(s.a(x).relu()).sigmoid()], 1),
        a=nn.Linear(6, 8), b=nn.Linear(8, 3), c=nn.Linear(8, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(2))
def test_it_is_never_worse_than_composition_and_no_jacobian_exceeds_it(name: str, seed: int) -> None:
    """At points of many sizes."""
    model = seeded(MODELS[name], seed)
    alone, joined, chains = _bounds(model, 6)
    worst = max(jacobian_norm(model, points(1, 6, seed=i) * 10.0**e) for i in range(5) for e in range(-3, 3))
    assert chains.used
    assert 0 < worst <= joined <= alone


def test_it_gains_where_composition_multiplies() -> None:
    """A deep plain network."""
    layers = [m for _ in range(5) for m in (nn.Linear(16, 16), nn.ReLU())]
    alone, joined, _ = _bounds(seeded(nn.Sequential(*layers, nn.Linear(16, 4)), 0), 16)
    assert joined < 0.5 * alone


def test_it_ends_before_what_is_not_slope_restricted() -> None:
    """Chains end at what LayerNorm reads, and at the output."""
    program = program_of(seeded(MODELS["layer norm"]), points(2, 6))
    assert len(Chains(program).ends) == 1


def test_a_network_without_activations_needs_no_chain() -> None:
    """Its norm is measured exactly."""
    alone, joined, chains = _bounds(seeded(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))), 6)
    assert not chains.used
    assert joined == alone


@pytest.mark.turns(5)
def test_in_a_deep_network_only_short_chains_are_made() -> None:
    """Every block adds to what the next chain runs over: those that are too long are left out, by counting."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.linear(self.norm(x).relu())

    longest = []
    for blocks in (6, 18):
        program = program_of(seeded(nn.Sequential(*(Block() for _ in range(blocks)))), points(2, 2))
        chains = Chains(program, seconds=0.4)
        Composition(program, Domain(), SegmentNorms(), chains).total()
        units = [len(region.units) for found in chains._found.values() for region, _ in found]
        longest.append(max(units))
    assert longest[0] == 6
    assert longest[1] < 12
