"""Pooling and interpolation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from networks import upper_of
from normscope.operators.expression import atom_expr
from normscope.operators.nonlinear import Range
from normscope.operators.pooling import MaxPool, adaptive_overlap, power_pool_constant, window_overlap
from operators.refute import Case, linear, nonlinear, program, refuted

PLACES = torch.linspace(-1.3, 1.4, 24).double().sin().reshape(1, 4, 3, 2)


def _sampled(x: torch.Tensor, mode: str) -> torch.Tensor:
    """Return a map sampled at fixed places."""
    return F.grid_sample(x, PLACES.expand(len(x), -1, -1, -1), mode=mode, align_corners=False)


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
    "bicubic on a larger map": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (2, 7, 6), None),
    "bicubic down, smoothed": (
        lambda x: F.interpolate(x, size=(6, 7), mode="bicubic", antialias=True), (1, 10, 9), None),
    "bicubic sampling at fixed places": (lambda x: _sampled(x, "bicubic"), (2, 5, 4), None),
    "nearest sampling at fixed places": (lambda x: _sampled(x, "nearest"), (2, 5, 4), None),
    "put at fixed places": (
        lambda x: F.max_unpool2d(x, torch.tensor([[0, 3], [9, 14]]).expand(len(x), 1, 2, 2), 2), (1, 2, 2), 1.0),
    "linear of one axis": (lambda x: F.interpolate(x, size=5, mode="linear"), (2, 3), None),
    "smoothed down": (lambda x: F.interpolate(x, size=2, mode="bilinear", antialias=True), (1, 5, 5), None),
    "sampled at fixed places": (
        lambda x: F.grid_sample(x, torch.linspace(-1, 1, 12).reshape(1, 2, 3, 2).double().expand(len(x), -1, -1, -1),
                                align_corners=False), (1, 3, 3), None),
}  # fmt: skip


@pytest.mark.turns(6)
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


def test_maps_too_large_to_multiply_out_have_certified_bounds() -> None:
    """Bicubic interpolation and sampling, against singular values of the matrix of one channel."""
    grid = F.affine_grid(torch.tensor([[[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1]]]).double(), [1, 4, 20, 20], False)

    def sample(x: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), mode="bicubic", align_corners=False)

    def enlarge(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(25, 23), mode="bicubic")

    for function, slack in ((sample, 2.0), (enlarge, 1 + 1e-6)):
        found = program(function, 4, 20, 20)
        upper = upper_of(found)
        channel = torch.zeros(1, 1, 20, 20, dtype=torch.float64)
        matrix = torch.autograd.functional.jacobian(function, channel).reshape(-1, 400)
        truth = float(torch.linalg.matrix_norm(matrix, 2))
        assert found.opaque == []
        assert truth <= upper <= slack * truth


def test_places_of_largest_entries_jump() -> None:
    """Putting maxima back where they were is known to be discontinuous."""
    (_, jump) = program(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), 1, 4, 4).opaque
    assert jump.atom.known


POOLS: dict[str, Case] = {
    "squares": (lambda x: F.lp_pool2d(x, 2, 2), (1, 4, 4), 1.0),
    "overlapping windows": (lambda x: F.lp_pool2d(x, 2.0, 3, 1), (1, 5, 5), 3.0),
    "fourth powers": (lambda x: F.lp_pool1d(x, 4, 3), (2, 6), 1.0),
    "one axis, overlapping": (lambda x: F.lp_pool1d(x, 2, 3, 2), (2, 7), math.sqrt(2)),
    "three axes": (lambda x: F.lp_pool3d(x, 2, 2), (1, 2, 2, 2), 1.0),
}


@pytest.mark.parametrize("name", POOLS)
def test_norms_of_windows(name: str) -> None:
    """The root of the largest number of windows an entry lies in."""
    nonlinear(POOLS[name])


def test_odd_powers_and_windows_that_are_cut_are_not_taken_for_norms() -> None:
    """They have no rule."""
    assert program(lambda x: F.lp_pool1d(x, 3, 2), 1, 4).opaque
    assert program(lambda x: F.lp_pool1d(x, 2, 3, 2, ceil_mode=True), 1, 6).opaque


def test_the_constant_is_attained_by_one_entry() -> None:
    """It moves the norm of every window it lies in."""
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    x[0, 0, 2, 2] = 1.0
    moved = F.lp_pool2d(2.0 * x, 2, 3, 1) - F.lp_pool2d(x, 2, 3, 1)
    assert float(moved.norm()) == pytest.approx(power_pool_constant(9), rel=1e-12)


def _norm_of_image(norm: float, overlap: int) -> float:
    """Return the norm of the largest entries of windows of a tensor of a norm."""
    context = SimpleNamespace(range=lambda expr: Range(norm=norm))
    return MaxPool(atom_expr(None, (3,)), overlap).image(context).norm  # type: ignore[arg-type]


@pytest.mark.parametrize("overlap", [1, 2, 3, 6, 9])
def test_norms_behind_windows_are_rounded_up(overlap: int) -> None:
    """Never below the norm times the root of the overlap, which is rounded itself."""
    for norm in (5e-324, 1e-200, *(0.1 * i for i in range(1, 100))):
        assert Fraction(_norm_of_image(norm, overlap)) ** 2 >= Fraction(norm) ** 2 * overlap
    assert Fraction(power_pool_constant(overlap)) ** 2 >= overlap


def test_windows_that_read_nothing_have_norm_zero() -> None:
    """Even where no bound on the input is known."""
    assert _norm_of_image(math.inf, 0) == 0.0
    assert _norm_of_image(math.inf, 2) == math.inf
