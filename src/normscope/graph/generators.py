"""One random generator that somebody holds: where it stands, whether it moved, and back again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: What draws numbers and can be set back.
KINDS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)


def has_state(value: object) -> bool:
    """Tell whether something is a generator that can be set back; what draws from the system cannot.

    >>> has_state(random.Random(0)), has_state(random.SystemRandom()), has_state(0)
    (True, False, False)
    """
    return isinstance(value, KINDS) and not isinstance(value, random.SystemRandom)


class GeneratorState:
    """Where a generator of torch, numpy or Python stands.

    Args:
        generator: one that :func:`has_state`.

    >>> generator = random.Random(0)
    >>> state = GeneratorState(generator)
    >>> first, moved = generator.random(), not state.same()
    >>> state.restore()
    >>> moved, generator.random() == first
    (True, True)
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.state = self._read()

    def _read(self) -> Any:
        """Return the state now, in memory of its own."""
        match self.generator:
            case torch.Generator():
                return self.generator.get_state()
            case np.random.Generator():
                return self.generator.bit_generator.state
            case np.random.BitGenerator():
                return self.generator.state
            case np.random.RandomState():
                return self.generator.get_state(legacy=False)
        return self.generator.getstate()

    def same(self) -> bool:
        """Tell whether it stands where it stood."""
        return _same(self._read(), self.state)

    def restore(self) -> None:
        """Set it back."""
        match self.generator:
            case torch.Generator() | np.random.RandomState():
                self.generator.set_state(self.state)
            case np.random.Generator():
                self.generator.bit_generator.state = self.state
            case np.random.BitGenerator():
                self.generator.state = self.state
            case _:
                self.generator.setstate(self.state)


def _same(a: Any, b: Any) -> bool:
    """Tell whether two states are equal, bit by bit where they are arrays."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)
