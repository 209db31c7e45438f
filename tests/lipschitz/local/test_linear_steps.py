"""Linear operations on stacks of tangents: the same numbers as one by one, and an error that covers float32's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import Lambda, points, program_of, seeded
from normscope.lipschitz.local.linear_steps import WEIGHT_ROUNDINGS, OperationBounds, Steps, apply, size_of
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import evaluate

MODELS = {
    "linear": (lambda: nn.Linear(4, 3), (1, 4)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1, stride=2), (1, 2, 5, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(2), (1, 2, 3, 3)),
    "pooling": (lambda: nn.AvgPool2d(2), (1, 2, 4, 4)),
    "reshape": (lambda: nn.Flatten(), (1, 2, 3)),
    "side by side": (lambda: Lambda(lambda s, x: torch.cat([x, 2 * x], 1)), (1, 3)),
    "sum": (lambda: Lambda(lambda s, x: x + s.a(x), a=nn.Linear(3, 3)), (1, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_is_mapped_place_by_place(name: str) -> None:
    build, shape = MODELS[name]
    model = seeded(build())
    x = points(*shape)
    expr = program_of(model, x).outputs[0][1]
    stack = [points(5, *i.shape, seed=k) for k, i in enumerate(expr.inputs)]
    together = apply(expr, stack)
    assert expr.op is not None
    alone = torch.stack([expr.op.apply(*(s[i] for s in stack)) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_norm_and_mass_are_upper_bounds(name: str) -> None:
    build, shape = MODELS[name]
    expr = program_of(seeded(build()), points(*shape)).outputs[0][1]
    if len(expr.inputs) > 1:
        return
    step = Steps(SegmentNorms()).of(expr)
    eye = torch.eye(expr.inputs[0].numel, dtype=torch.float64).reshape(-1, *expr.inputs[0].shape)
    matrix = apply(expr, [eye]).flatten(1)
    assert float(torch.linalg.matrix_norm(matrix, 2)) <= step.norm * (1 + 1e-12)
    assert float(torch.linalg.matrix_norm(matrix.abs(), 2)) <= step.mass * (1 + 1e-12)


def test_a_segment_is_the_product_of_its_layers() -> None:
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    expr = program_of(model, points(1, 4)).outputs[0][1]
    segment = Steps(SegmentNorms()).segment(expr)
    assert segment is not None
    x = points(1, 4, seed=3)
    torch.testing.assert_close(segment.matrix @ x[0], evaluate(segment.source, expr)(x)[0])
    assert segment.step.norm >= float(torch.linalg.matrix_norm(segment.matrix, 2))


def test_errors_grow_by_the_norm_and_by_the_roundings() -> None:
    step = OperationBounds(2.0, 3.0, 10)
    assert step.error(1.0, 0.0) == pytest.approx(2.0)
    assert 10 * 2.0**-53 * 3.0 <= step.error(0.0, 1.0) < 11 * 2.0**-53 * 3.0


def test_the_size_of_several_tensors() -> None:
    assert size_of([torch.tensor([3.0]), torch.tensor([4.0])]) == pytest.approx(5.0)


def test_weights_that_were_rounded_count_as_more_roundings() -> None:
    """Folded weights are a few roundings off, which every inner product with them inherits; a reshape has none."""
    steps = Steps(SegmentNorms())
    dense, reshaped = (
        program_of(seeded(m), points(1, 4)).outputs[0][1] for m in (nn.Linear(4, 3), nn.Unflatten(1, (2, 2)))
    )
    assert steps.of(dense).roundings >= 4 + WEIGHT_ROUNDINGS
    assert steps.of(reshaped).roundings == 0
