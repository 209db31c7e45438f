"""Operations written out: the values and Jacobians of torch's own, and constants above those of the ball."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.expansion import expanded
from normscope.lipschitz.local.linear_steps import OperationBounds, Steps
from normscope.lipschitz.local.tangents import TangentAlgebra, TensorWithTangents, UnboundedError
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.lipschitz.segments import SegmentNorms

Build = Callable[[], nn.Module]


def _gate(s: nn.Module, x: Tensor) -> Tensor:
    return s.c(F.silu(s.a(x)) * s.b(x))


def _attention(s: nn.Module, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(s.a(x), s.b(x), s.c(x), is_causal=True)


def _written(s: nn.Module, x: Tensor) -> Tensor:
    return torch.softmax(s.a(x) @ s.b(x).transpose(-1, -2), -1) @ s.c(x)


def _extremes(s: nn.Module, x: Tensor) -> Tensor:
    return torch.maximum(s.a(x), s.b(x)) - torch.minimum(s.a(x), s.c(x))


def _three(width: int) -> dict[str, nn.Module]:
    return {name: nn.Linear(width, width) for name in "abc"}


OPERATIONS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "gate": (lambda: Lambda(_gate, **_three(4)), (1, 4)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)), (1, 4)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6), nn.Linear(6, 3)), (1, 4)),
    "group norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)), (1, 4)),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, affine=True)), (1, 1, 5, 5)),
    "local response norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.LocalResponseNorm(3, 1.0), nn.Conv2d(4, 2, 2)),
        (1, 2, 4, 4),
    ),
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1), nn.Linear(6, 3)), (1, 4)),
    "log softmax": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LogSoftmax(-1)), (1, 4)),
    "max pool": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(3, 2, 1)), (1, 1, 6, 6)),
    "maximum": (
        lambda: Lambda(lambda s, x: torch.maximum(s.a(x), s.b(x)) - torch.minimum(s.a(x), s.c(x)), **_three(4)),
        (1, 4),
    ),
    "quotient": (lambda: Lambda(lambda s, x: s.a(x) / (2.0 + torch.sigmoid(s.b(x))), **_three(4)), (1, 4)),
    "attention": (lambda: Lambda(_attention, **_three(3)), (1, 3, 3)),
    "attention written out": (lambda: Lambda(_written, **_three(3)), (1, 3, 3)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_at_the_point_it_is_the_jacobian_and_around_it_above_all(name: str) -> None:
    build, shape = OPERATIONS[name]
    model, x = seeded(build()), points(*shape)
    radius = 0.01
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        here, around = on_balls(program_of(model, x), Steps(SegmentNorms()), [x], [0.0, radius])
        norm = jacobian_norm(model, x)
        assert norm <= here.constant <= norm * (1 + 1e-5)
        assert math.isfinite(around.constant), around.why
        assert around.constant < 2 * norm
        for k in range(8):
            d = points(*shape, seed=k + 1)
            assert jacobian_norm(model, x + radius * (1 - 1e-9) * d / d.norm()) <= around.constant


def _value(model: nn.Module, x: Tensor, algebra: TangentAlgebra) -> Tensor:
    """Return the value of a model at a point, every operation written out."""
    known: dict[int, ValueAtPoint] = {}
    stack = [program_of(model, x).outputs[0][1]]
    order = {}
    while stack:
        expr = stack.pop()
        order[expr.id] = expr
        stack.extend(expr.inputs if expr.op is not None else expr.atom.inputs)
    for key in sorted(order):
        expr = order[key]
        if expr.op is not None:
            value = expr.op.apply(*(known[i.id].value for i in expr.inputs))
            known[key] = ValueAtPoint(value if expr.op.bias is None else value + expr.op.bias, 1e-12)
        elif expr.atom.inputs:
            known[key] = expanded(expr.atom, [TensorWithTangents(known[i.id]) for i in expr.atom.inputs], algebra).at
        else:
            known[key] = ValueAtPoint(x, 0.0)
    return known[max(order)].value


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_are_those_of_the_model(name: str) -> None:
    build, shape = OPERATIONS[name]
    model, x = seeded(build()), points(*shape)
    torch.testing.assert_close(_value(model, x, TangentAlgebra()), model(x).detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_steps_bound_the_norms_of_the_linear_maps_that_they_belong_to(name: str) -> None:
    """Errors grow by the norm of each map, and roundings in it by the norm of its absolute values."""

    class Watched(TangentAlgebra):
        def mapped(
            self, x: TensorWithTangents, function: Callable[[Tensor], Tensor], step: OperationBounds
        ) -> TensorWithTangents:
            entries, shape = x.at.value.numel(), x.at.value.shape
            eye = torch.eye(entries, dtype=torch.float64)
            zero = function(torch.zeros(shape, dtype=torch.float64))
            matrix = torch.stack([(function(row.reshape(shape)) - zero).flatten() for row in eye])
            assert float(torch.linalg.matrix_norm(matrix, 2)) <= step.norm
            assert float(torch.linalg.matrix_norm(matrix.abs(), 2)) <= step.mass
            return super().mapped(x, function, step)

    build, shape = OPERATIONS[name]
    _value(seeded(build()), points(*shape), Watched())


def test_what_has_no_rule_says_so() -> None:
    model = Lambda(lambda s, x: x.norm(dim=-1)).double()
    (rule,) = [a.atom for a in program_of(model, points(1, 3)).atoms if a.atom.inputs]
    with pytest.raises(UnboundedError, match="no local rule"):
        expanded(rule, [TensorWithTangents(ValueAtPoint(points(1, 3), 0.0))], TangentAlgebra())
