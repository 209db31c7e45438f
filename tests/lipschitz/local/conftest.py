"""Networks around a point, shared by the tests of local certificates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from networks import program_of
from normscope.lipschitz.local.steps import Steps
from normscope.lipschitz.local.walk import Walk
from normscope.lipschitz.segments import SegmentNorms


@pytest.fixture
def walk_of() -> Callable[..., Walk]:
    """Return a function that makes the walk of a model on a ball."""

    def make(model: nn.Module, point: Tensor, radius: float, **settings: int) -> Walk:
        return Walk(program_of(model, point), Steps(SegmentNorms()), [point], radius, **settings)

    return make
