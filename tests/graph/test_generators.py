"""Generators that somebody holds: the draws after a return are those after the start."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from normscope.graph.generators import GeneratorState, has_state

Draw = Callable[[Any], Any]
KINDS: dict[str, tuple[Any, Draw]] = {
    "torch": (lambda: torch.Generator().manual_seed(3), lambda g: torch.randn(5, generator=g).tolist()),
    "python": (lambda: random.Random(3), lambda g: [g.gauss(0, 1) for _ in range(5)]),  # keeps a second number
    "legacy": (lambda: np.random.RandomState(3), lambda g: g.standard_normal(5).tolist()),
    **{
        kind.__name__: (lambda kind=kind: np.random.Generator(kind(3)), lambda g: g.integers(9, size=5).tolist())
        for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
    },
    "bits": (lambda: np.random.Philox(3), lambda g: g.random_raw(5).tolist()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers_come_again(kind: str) -> None:
    """From the middle of a stream as well."""
    make, draw = KINDS[kind]
    generator = make()
    assert has_state(generator)
    draw(generator)
    state = GeneratorState(generator)
    assert state.same()
    first, second = draw(generator), draw(generator)
    assert first != second
    assert not state.same()
    for _ in range(2):
        state.restore()
        assert state.same()
        assert [draw(generator), draw(generator)] == [first, second]


def test_what_draws_from_the_system_has_no_state() -> None:
    """It cannot be set back, and need not be."""
    assert not has_state(random.SystemRandom())
    assert not has_state(random)
