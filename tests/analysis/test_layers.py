"""Layer by layer: what a layer is, against dense Jacobians."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import normscope
from networks import jacobian_norm, points, seeded
from normscope.analysis import analyze
from normscope.analysis.layers import TimeLeft


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


def test_a_channel_of_large_scale_is_hot() -> None:
    """BatchNorm: the factor is |gamma| over the running standard deviation."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval()
    with torch.no_grad():
        model[1].weight[4] = -20.0
        model[1].running_var[2] = 1e-4
    (row,) = analyze(model).normalizers
    hot = {item["channel"]: item for item in row.details["hot_channels"]}
    assert list(hot) == [2, 4]
    assert hot[4]["factor"] == pytest.approx(20 / math.sqrt(1 + 1e-5))
    assert hot[2]["factor"] == pytest.approx(1 / math.sqrt(1e-4 + 1e-5))
    assert hot[4]["factor_over_median"] == pytest.approx(20, rel=1e-6)


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8, eps=1e-6)])
def test_a_channel_the_data_varies_in_is_hot(norm: nn.Module) -> None:
    """LayerNorm and RMSNorm: the variance of one channel stands out in the data."""
    data = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    data[:, 5] *= 10
    (row,) = analyze(nn.Sequential(norm), data).normalizers
    (hot,) = row.details["hot_channels"]
    assert hot["channel"] == 5
    assert hot["variance"] == pytest.approx(float(data[:, 5].double().var(correction=0)), rel=1e-6)
    ratio = float(data.double().var(0, correction=0)[5] / data.double().var(0, correction=0).median())
    assert hot["variance_over_median"] == pytest.approx(ratio, rel=1e-6)
    assert hot["factor_over_median"] == pytest.approx(1.0)


def test_equal_channels_are_not_hot() -> None:
    """Nothing stands out where all are alike."""
    data = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    (row,) = analyze(nn.Sequential(nn.LayerNorm(4)), data).normalizers
    assert "hot_channels" not in row.details


def test_groups_have_their_own_floor() -> None:
    """GroupNorm: the factor of a channel uses the least spread of its group."""
    data = torch.randn(50, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    data[:, 2:] *= 0.01
    model = nn.Sequential(nn.GroupNorm(2, 4, eps=1e-8))
    with torch.no_grad():
        model[0].weight[3] = 5.0
    (row,) = analyze(model, data).normalizers
    hot = {item["channel"]: item["factor"] for item in row.details["hot_channels"]}
    least = data[:, 2:].double().reshape(50, -1).std(1, correction=0).min()
    assert hot[3] == pytest.approx(float(5.0 / (least**2 + 1e-8).sqrt()), rel=1e-6)


def test_the_share_of_the_costs_counts_not_that_of_the_steps() -> None:
    """Nine of ten parts of the work are left after one of two steps."""
    assert TimeLeft([1.0, 9.0], clock=iter([100.0, 102.0]).__next__).text(1) == ", about 18 s left"


def test_nothing_is_said_where_nothing_is_known_or_little_is_left() -> None:
    """Before the first step is done, and below two seconds."""
    assert TimeLeft([1.0]).text(0) == ""
    assert TimeLeft([1.0, 1.0], clock=iter([0.0, 1.0]).__next__).text(1) == ""
    assert TimeLeft([], clock=iter([0.0, 1.0]).__next__).text(0) == ""
