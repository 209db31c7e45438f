"""Seeding someone's code leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.randomness import seeded


def draw() -> tuple[float, float, float]:
    """Return one number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def draw_and_fail() -> None:
    """Raise inside a seeded block."""
    with seeded(5):
        draw()
        raise KeyError


def test_same_seed_same_numbers_and_states_restored() -> None:
    """Even if the block raises."""
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    drawn = []
    for seed in (-3, -3, 2**40):
        with seeded(seed):
            drawn.append(draw())
    with pytest.raises(KeyError):
        draw_and_fail()
    assert drawn[0] == drawn[1] != drawn[2]
    assert states[0] == random.getstate()
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert torch.equal(states[2], torch.get_rng_state())


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 2**20000], ids=["large", "small", "huge"])
def test_a_seed_of_more_than_64_bits_is_refused(seed: int) -> None:
    """Before anything is touched."""
    state = random.getstate()
    with pytest.raises(InputError, match="at most 64 bits"), seeded(seed):
        pytest.fail("no generator takes it")
    assert state == random.getstate()


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63)])
def test_the_largest_seeds_are_taken(seed: int) -> None:
    """By every generator."""
    with seeded(seed):
        first = draw()
    with seeded(seed):
        assert draw() == first
