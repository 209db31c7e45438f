"""Random networks: of every kind, small, finite, each sample on its own, and decided by their seed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from fuzzing.random_networks import LARGEST, random_network

SEEDS = range(60)


@functools.cache
def _networks() -> dict[int, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return many networks by their seeds, made once."""
    return {seed: random_network(seed) for seed in SEEDS}


def test_outputs_are_finite_float64_and_belong_to_their_samples() -> None:
    """Five samples in evaluation mode: one alone gives what it gives among the others."""
    for seed, (network, inputs) in _networks().items():
        with torch.no_grad():
            out, alone = network(*inputs), network(*(t[2:3] for t in inputs))
        assert not network.training
        assert out.dtype == torch.float64
        assert out.shape[0] == 5
        assert 0 < out[0].numel() <= LARGEST
        assert bool(out.isfinite().all()), seed
        assert torch.allclose(alone, out[2:3], rtol=1e-6, atol=1e-8), f"seed {seed}: {network}"


def test_every_tensor_inside_is_small() -> None:
    """So that a dense Jacobian is cheap."""
    for network, inputs in _networks().values():
        sizes: list[int] = []

        def note(module: nn.Module, args: Any, out: Any, sizes: list[int] = sizes) -> None:
            if isinstance(out, Tensor):
                sizes.append(out[0].numel())

        handles = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, nn.Sequential)]
        with torch.no_grad():
            network(*inputs)
        for handle in handles:
            handle.remove()
        assert max(sizes, default=0) <= LARGEST


def test_the_seed_decides_and_nothing_else_moves() -> None:
    """Twice the same network and data; the global generators stay put."""
    nothing = nn.Identity()
    before = fingerprint(nothing)
    for seed in (0, 7, 23):
        network, inputs = random_network(seed)
        known, given = _networks()[seed]
        assert all(torch.equal(a, b) for a, b in zip(inputs, given, strict=True))
        state = known.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
        with torch.no_grad():
            assert torch.equal(network(*inputs), known(*given))
    assert fingerprint(nothing) == before


def test_one_input_two_inputs_and_tokens_are_drawn() -> None:
    """And many different layers."""
    kinds = {(len(inputs), inputs[0].is_floating_point()) for _, inputs in _networks().values()}
    assert kinds == {(1, True), (2, True), (1, False)}
    modules = [m for network, _ in _networks().values() for m in network.modules()]
    assert len({str(getattr(m, "name", type(m).__name__)) for m in modules}) > 60
