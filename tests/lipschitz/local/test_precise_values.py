"""Values in twofold precision are those of the network."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
import torch
from torch import nn

from networks import points, program_of, residual_network, seeded
from normscope.lipschitz.local.bounded_rounding import BoundedRoundingPropagation
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.piecewise_linear import PiecewiseLinearPropagation
from normscope.lipschitz.local.precise_values import exact_factors, is_piecewise_linear
from normscope.lipschitz.segments import SegmentNorms


@pytest.mark.parametrize("make", [PiecewiseLinearPropagation, BoundedRoundingPropagation])
def test_values_at_the_point_are_those_of_the_network(make: type[PiecewiseLinearPropagation]) -> None:
    model, x = residual_network(0), points(1, 2, 4, 4)
    walk = make(program_of(model, x), Steps(SegmentNorms()), [x], 0.1)
    (output,) = [walk.values()[e.id] for _, e in walk.program.outputs]
    torch.testing.assert_close(output.value, model(x).detach(), rtol=1e-12, atol=1e-12)
    assert output.error < 1e-12


def test_factors_and_shifts_of_batchnorm_agree_with_many_digits() -> None:
    """``gamma / sqrt(v + eps)`` and ``beta - mean s`` to 2^-98, by decimal arithmetic; a factor of zero is exact."""
    layer = seeded(nn.Sequential(nn.Conv2d(2, 6, 1), nn.BatchNorm2d(6), nn.ReLU()))
    generator, norm = torch.Generator().manual_seed(3), layer[1]
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.copy_(torch.randn(6, generator=generator))
        norm.running_var.copy_(10.0 ** (6 * torch.rand(6, generator=generator) - 3))
        norm.weight[2] = 0.0
    atom = program_of(layer.eval(), points(1, 2, 3, 3)).atoms[-1]
    (op,) = [e.op for e in (atom.atom.inputs[0],) if e.op is not None and e.op.kind == "diagonal"]
    factor, shift, sizes = exact_factors(op)
    with localcontext() as context:
        context.prec = 60
        columns = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        for c, (gamma, beta, mean, var) in enumerate(zip(*(map(Decimal, t.tolist()) for t in columns), strict=True)):
            exact = gamma / (var + Decimal(norm.eps)).sqrt()
            for pair, wanted, size in ((factor, exact, abs(exact)), (shift, beta - mean * exact, sizes.flatten()[c])):
                found = Decimal(pair.high.flatten()[c].item()) + Decimal(pair.low.flatten()[c].item())
                assert abs(found - wanted) <= Decimal(2) ** -98 * Decimal(float(size))


def test_statistics_are_exact_and_other_factors_count_as_rounded() -> None:
    model, x = residual_network(0), points(1, 2, 4, 4)
    program, steps = program_of(model, x), Steps(SegmentNorms())
    (output,) = [e for _, e in program.outputs]
    exact = BoundedRoundingPropagation(program, steps, [x], 0.1).values()[output.id].error
    for expr in BoundedRoundingPropagation(program, steps, [x], 0.1).order():
        if expr.op is not None:
            expr.op.data.pop("statistics", None)
    rounded = BoundedRoundingPropagation(program, Steps(SegmentNorms()), [x], 0.1).values()[output.id].error
    assert exact < rounded


def test_curved_functions_are_not_piecewise_linear() -> None:
    assert is_piecewise_linear(program_of(residual_network(0), points(1, 2, 4, 4)))
    assert not is_piecewise_linear(program_of(seeded(nn.Sequential(nn.Linear(2, 2), nn.GELU())), points(1, 2)))
