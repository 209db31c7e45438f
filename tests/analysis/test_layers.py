"""Layer by layer: what a layer is, against dense Jacobians."""

from __future__ import annotations

import pytest
from torch import nn

import normscope
from networks import jacobian_norm, points, seeded


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv1d(1, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(1, 2, 3, padding=1, padding_mode="replicate"),
        nn.Conv1d(1, 2, 4, padding="same"),
    ],
)
def test_the_padding_is_part_of_a_layer(conv: nn.Conv1d) -> None:
    """Also where it is an operation of its own; alone and with the BatchNorm behind it."""
    model = seeded(nn.Sequential(conv, nn.BatchNorm1d(2))).double().eval()
    (row,) = normscope.analyze(model, points(4, 1, 7)).layers
    truth = jacobian_norm(model[0], points(1, 1, 7))
    assert row.upper.value == pytest.approx(truth, rel=1e-6)
    assert row.lower.value == pytest.approx(truth, rel=1e-6)
    assert row.folded is not None
    assert row.folded.value == pytest.approx(jacobian_norm(model, points(1, 1, 7)), rel=1e-6)


def test_weights_in_the_same_memory_are_told_apart() -> None:
    """Views of one tensor with other strides are other kernels."""
    big = points(3, 3, 5, 5)
    first, second = (nn.Conv2d(3, 3, 5, bias=False).double() for _ in range(2))
    first.weight = nn.Parameter(big, requires_grad=False)
    second.weight = nn.Parameter(big.transpose(2, 3), requires_grad=False)
    rows = normscope.analyze(nn.Sequential(first, nn.ReLU(), nn.Upsample((5, 12)), second), points(2, 3, 9, 16)).layers
    for row, layer, shape in zip(rows, (first, second), ((3, 9, 16), (3, 5, 12)), strict=True):
        assert row.upper.value == pytest.approx(jacobian_norm(layer, points(1, *shape)), rel=1e-3)
