"""Pooling and interpolation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from normscope.operators.pooling import adaptive_overlap, window_overlap
from operators.refute import Case, linear, nonlinear, refuted

LINEAR: dict[str, Case] = {
    "average": (lambda x: F.avg_pool2d(x, 2), (2, 4, 4), 0.5),
    "average of one axis": (lambda x: F.avg_pool1d(x, 3), (1, 6), 1 / math.sqrt(3)),
    "overlapping average": (lambda x: F.avg_pool2d(x, 3, 1, 1), (1, 4, 4), None),
    "average without the padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (1, 4, 4), None),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 3), 1 / 3.0),
    "uneven adaptive average": (lambda x: F.adaptive_avg_pool1d(x, 3), (1, 7), None),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 3, 3), 2.0),
    "bilinear": (lambda x: F.interpolate(x, size=5, mode="bilinear"), (1, 3, 3), None),
    "bilinear with corners": (lambda x: F.interpolate(x, size=5, mode="bilinear", align_corners=True), (1, 3, 3), None),
    "bicubic": (lambda x: F.interpolate(x, size=5, mode="bicubic"), (1, 3, 3), None),
    "linear of one axis": (lambda x: F.interpolate(x, size=5, mode="linear"), (2, 3), None),
    "smoothed down": (lambda x: F.interpolate(x, size=2, mode="bilinear", antialias=True), (1, 5, 5), None),
    "sampled at fixed places": (
        lambda x: F.grid_sample(x, torch.linspace(-1, 1, 12).reshape(1, 2, 3, 2).double().expand(len(x), -1, -1, -1),
                                align_corners=False), (1, 3, 3), None),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_averages_and_interpolation(name: str) -> None:
    """Linear: exact on small maps."""
    linear(LINEAR[name])


NONLINEAR: dict[str, Case] = {
    "disjoint windows": (lambda x: F.max_pool2d(x, 2), (1, 4, 4), 1.0),
    "overlapping windows": (lambda x: F.max_pool2d(x, 3, 2, 1), (1, 6, 6), 2.0),
    "one axis": (lambda x: F.max_pool1d(x, 3, 1), (1, 6), math.sqrt(3)),
    "dilated": (lambda x: F.max_pool1d(x, 2, 1, dilation=2), (1, 6), math.sqrt(2)),
    "with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (1, 4, 4), 1.0),
    "adaptive": (lambda x: F.adaptive_max_pool1d(x, 2), (1, 6), 1.0),
    "uneven adaptive": (lambda x: F.adaptive_max_pool1d(x, 3), (1, 7), math.sqrt(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", NONLINEAR)
def test_largest_of_windows(name: str) -> None:
    """The root of the largest number of windows an entry lies in, attained by a peak."""
    function, shape, constant = NONLINEAR[name]
    nonlinear((function, shape, constant))
    assert constant is not None
    attained = 0.0
    for place in itertools.product(*(range(n) for n in shape)):
        x = torch.zeros(1, *shape, dtype=torch.float64)
        x[(0, *place)] = 1.0
        attained = max(attained, float(function(x).norm()))
    assert attained == pytest.approx(constant, rel=1e-12)


def test_places_of_maxima_jump() -> None:
    """Used as numbers, they have no constant."""
    checked = refuted(lambda x: F.max_pool2d(x, 2, return_indices=True)[1].double(), 1, 4, 4)
    assert checked.upper["everywhere"] == math.inf


@pytest.mark.parametrize("size", [1, 5, 8])
def test_overlaps_against_counting(size: int) -> None:
    """How many windows hold an entry, by applying the windows to indicators."""
    for kernel, stride, padding, dilation in itertools.product((1, 2, 3), (1, 2, 3), (0, 1), (1, 2)):
        out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        if out < 1 or padding > kernel // 2:
            continue
        counts = F.conv_transpose1d(torch.ones(1, 1, out), torch.ones(1, 1, kernel), None, stride, 0, 0, 1, dilation)[
            0, 0
        ]
        inside = counts[padding : padding + size]
        assert window_overlap(size, out, kernel, stride, padding, dilation) == int(inside.max())
    for out in range(1, size + 1):
        counts = [0] * size
        for i in range(out):
            for j in range(math.floor(i * size / out), math.ceil((i + 1) * size / out)):
                counts[j] += 1
        assert adaptive_overlap(size, out) == max(counts)
