"""Run someone's code from a known seed and put every global generator back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from normscope.core.environment import restore_rng, rng_state
from normscope.core.errors import InputError


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python, numpy and torch inside the block, and restore their states after it.

    >>> before = torch.get_rng_state()
    >>> with seeded(0):
    ...     first = torch.rand(1)
    >>> with seeded(0):
    ...     again = torch.rand(1)
    >>> bool(first == again), torch.equal(before, torch.get_rng_state())
    (True, True)
    """
    if not -(2**63) <= seed < 2**64:
        raise InputError(f"Expected a seed of at most 64 bits, got one of {seed.bit_length()}.")
    state = rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # numpy takes no more bits
        torch.manual_seed(seed)
        yield
    finally:
        restore_rng(state)
