"""Networks around a point, shared by the tests of local certificates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from networks import program_of
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.segments import SegmentNorms


@pytest.fixture
def walk_of() -> Callable[..., TangentPropagation]:
    """Return a function that makes the walk of a model on a ball."""

    def make(model: nn.Module, point: Tensor, radius: float, **settings: int) -> TangentPropagation:
        return TangentPropagation(program_of(model, point), Steps(SegmentNorms()), [point], radius, **settings)

    return make
