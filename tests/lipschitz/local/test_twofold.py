"""Values in twofold precision are those of the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import points, program_of, residual_network, seeded
from normscope.lipschitz.local.enclosed import Enclosed
from normscope.lipschitz.local.lean import Lean
from normscope.lipschitz.local.steps import Steps
from normscope.lipschitz.local.twofold import is_piecewise_linear
from normscope.lipschitz.segments import SegmentNorms


@pytest.mark.parametrize("make", [Lean, Enclosed])
def test_values_at_the_point_are_those_of_the_network(make: type[Lean]) -> None:
    model, x = residual_network(0), points(1, 2, 4, 4)
    walk = make(program_of(model, x), Steps(SegmentNorms()), [x], 0.1)
    (output,) = [walk.values()[e.id] for _, e in walk.program.outputs]
    torch.testing.assert_close(output.value, model(x).detach(), rtol=1e-12, atol=1e-12)
    assert output.error < 1e-12


def test_the_rounding_of_scales_counts_where_they_are_not_given() -> None:
    model, x = residual_network(0), points(1, 2, 4, 4)
    program, steps = program_of(model, x), Steps(SegmentNorms())
    (output,) = [e for _, e in program.outputs]
    given, rounded = (make(program, steps, [x], 0.1).values()[output.id].error for make in (Lean, Enclosed))
    assert given < rounded


def test_curved_functions_are_not_piecewise_linear() -> None:
    assert is_piecewise_linear(program_of(residual_network(0), points(1, 2, 4, 4)))
    assert not is_piecewise_linear(program_of(seeded(nn.Sequential(nn.Linear(2, 2), nn.GELU())), points(1, 2)))
