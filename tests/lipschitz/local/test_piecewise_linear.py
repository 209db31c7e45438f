"""Rows made in few passes are those of the plain walk."""

from __future__ import annotations

import math

import torch
from torch import nn

from networks import points, program_of, residual_network, seeded
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.piecewise_linear import PiecewiseLinearPropagation, scaled_convolutions
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.segments import SegmentNorms


def test_rows_are_those_of_the_plain_walk() -> None:
    model, x = residual_network(0), points(1, 2, 4, 4)
    program, steps = program_of(model, x), Steps(SegmentNorms())
    (plain,) = TangentPropagation(program, steps, [x], 0.0).tangents()
    (lean,) = PiecewiseLinearPropagation(program, steps, [x], 0.0).tangents()
    torch.testing.assert_close(lean.rows, plain.rows, rtol=1e-12, atol=1e-12)
    assert lean.error == math.inf  # nothing is said of it


def test_a_scale_is_folded_into_the_convolution_that_only_it_reads() -> None:
    x = points(1, 2, 4, 4)
    program = program_of(residual_network(0), x)
    found = scaled_convolutions(TangentPropagation(program, Steps(SegmentNorms()), [x], 0.0).order())
    assert sorted(v is None for v in found.values()) == [False, False, True, True]
    plain = program_of(seeded(nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU())), x)
    assert not scaled_convolutions(TangentPropagation(plain, Steps(SegmentNorms()), [x], 0.0).order())
