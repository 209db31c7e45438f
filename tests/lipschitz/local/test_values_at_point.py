"""Values at a point: float32's lie within the error that a bound of float64's roundings becomes for it."""

from __future__ import annotations

import torch
from torch import nn

from networks import points, program_of, seeded
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.tangent_propagation import atom_value
from normscope.lipschitz.local.values_at_point import values_at_point
from normscope.lipschitz.segments import SegmentNorms


def test_values_are_those_of_the_model_and_errors_are_small() -> None:
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    x = points(1, 4)
    program = program_of(model, x)
    (output,) = (e for _, e in program.outputs)
    order, stack = {}, [output]
    while stack:
        expr = stack.pop()
        order[expr.id] = expr
        stack.extend(expr.inputs if expr.op is not None else expr.atom.inputs)
    known = values_at_point([order[k] for k in sorted(order)], Steps(SegmentNorms()), [x], atom_value)
    found = known[output.id]
    torch.testing.assert_close(found.value, model(x).detach(), rtol=1e-13, atol=1e-13)
    assert 0 < found.error < 1e-12
    narrow = model.float()(x.float()).detach().double()
    assert float((narrow - found.value).norm()) <= found.error * 2.0**29  # float32 has 29 bits less
