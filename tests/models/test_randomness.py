"""Seeding someone's code leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from normscope.models.randomness import seeded


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
