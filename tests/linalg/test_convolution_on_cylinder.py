"""Cylinders: Gram matrices on the line against dense ones, bounds against singular values of the convolution."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.linalg.convolution_geometry import Axis, convolution_axes
from normscope.linalg.convolution_on_cylinder import (
    closed_is_definite,
    cylinder_bound,
    cylinder_error,
    cylinder_map,
    zero_padding_cylinders,
)
from normscope.linalg.convolution_on_line import LineGram

#: Input size, kernel, stride, padding, dilation, one number per axis; inputs and outputs.
CASES = [
    ([6, 5], [3, 3], [1, 1], [1, 1], [1, 1], 2, 3),
    ([5, 6], [2, 4], [1, 1], [0, 2], [1, 1], 2, 2),
    ([7, 8], [3, 3], [2, 2], [1, 1], [1, 1], 2, 4),
    ([8, 7], [3, 3], [2, 1], [1, 0], [1, 1], 3, 2),
    ([9, 8], [3, 3], [1, 1], [2, 2], [2, 2], 2, 2),
    ([9, 7], [3, 2], [2, 3], [1, 1], [2, 1], 2, 2),
    ([4, 6], [7, 7], [2, 2], [3, 3], [1, 1], 1, 3),
    ([5, 5], [1, 3], [1, 1], [0, 1], [1, 1], 2, 2),
    ([6, 6], [3, 3], [1, 1], [3, 4], [1, 1], 2, 1),
    ([3, 4, 4], [2, 3, 2], [1, 1, 2], [1, 1, 0], [1, 1, 1], 2, 2),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}k{c[1]}s{c[2]}p{c[3]}d{c[4]}")


def kernel_of(case: tuple, seed: int = 0) -> tuple[Tensor, tuple[Axis, ...]]:
    """Return a random kernel and its geometry."""
    size, kernel, stride, padding, dilation, inputs, outputs = case
    weight = torch.randn(outputs, inputs, *kernel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return weight, convolution_axes(size, kernel, stride, padding, dilation)


def norm_of(weight: Tensor, case: tuple) -> float:
    """Return the norm of torch's own convolution: a singular value of its matrix."""
    size, _, stride, padding, dilation, _, _ = case
    convolution = {2: functional.conv2d, 3: functional.conv3d}[len(size)]
    count = weight.shape[1] * math.prod(size)
    units = torch.eye(count, dtype=torch.float64).reshape(count, weight.shape[1], *size)
    return float(torch.linalg.matrix_norm(convolution(units, weight, None, stride, padding, dilation).flatten(1), 2))


def dense_gram(gram: LineGram) -> Tensor:
    """Return a Gram matrix on the line, assembled from its blocks."""
    n, side = gram.positions.places, gram.side
    whole = torch.zeros(n, side, n, side, dtype=torch.complex128)
    for (i, j), pairs in gram.positions.pairs.items():
        whole[i, :, j] = gram.blocks[pairs]
        whole[j, :, i] = gram.blocks[pairs].mH
    return whole.reshape(n * side, n * side)


@EVERY
def test_the_spectrum_on_the_cylinder_is_that_of_all_frequencies(case: tuple) -> None:
    """The dense map on the cylinder has the norm of the largest Gram matrix among the frequencies."""
    weight, axes = kernel_of(case)
    for cylinder in zero_padding_cylinders(weight, axes):
        dense = torch.linalg.matrix_norm(cylinder_map(cylinder, torch.float64).matrix(), 2) ** 2
        tops = [torch.linalg.eigvalsh(dense_gram(cylinder.gram(a)))[-1] for a in cylinder.torus.numerators()]
        torch.testing.assert_close(max(tops), dense, rtol=1e-12, atol=0.0)


@EVERY
def test_the_map_for_estimates_has_its_adjoint(case: tuple) -> None:
    """The matrix of the adjoint is the transpose."""
    weight, axes = kernel_of(case, seed=1)
    for cylinder in zero_padding_cylinders(weight, axes):
        map = cylinder_map(cylinder, torch.float64)
        torch.testing.assert_close(map.transpose.matrix(), map.matrix().T)


@EVERY
def test_every_cylinder_bounds_the_convolution(case: tuple) -> None:
    """Whatever the guess, a finite bound is at least the squared norm; a good guess gives a close one."""
    weight, axes = kernel_of(case, seed=2)
    truth = norm_of(weight, case) ** 2
    cylinders = zero_padding_cylinders(weight, axes)
    assert cylinders
    for cylinder in cylinders:
        own = float(torch.linalg.matrix_norm(cylinder_map(cylinder, torch.float64).matrix(), 2)) ** 2
        assert own >= truth * (1 - 1e-12)
        for factor in (0.5, 0.97, 1 - 1e-9, 1 + 1e-9, 1.1):
            bound = cylinder_bound(cylinder, own * factor)
            assert bound >= truth * (1 - 1e-13)
            assert bound >= own * (1 - 1e-13)
            if factor > 1:
                assert bound <= own * factor * (1 + 1e-9)


@EVERY
def test_definite_above_and_not_below(case: tuple) -> None:
    """On the line the factorisation tells the largest eigenvalue to a part in a billion; closed it never says less."""
    weight, axes = kernel_of(case, seed=3)
    for cylinder in zero_padding_cylinders(weight, axes):
        for numerators in cylinder.torus.numerators():
            gram = cylinder.gram(numerators)
            dense = dense_gram(gram)
            top = float(torch.linalg.eigvalsh(dense)[-1])
            assert gram.trace == pytest.approx(float(dense.diagonal().real.sum()), rel=1e-12)
            assert gram.is_definite(top * (1 + 1e-9))
            assert not gram.is_definite(top * (1 - 1e-9))
            assert not closed_is_definite(gram, top * (1 - 1e-9))


def test_closed_lines_pass_where_the_torus_does() -> None:
    """Far above the norm every frequency passes closed, so the cheap test is a real one; just above it some do not."""
    weight, axes = kernel_of(CASES[0], seed=4)
    for cylinder in zero_padding_cylinders(weight, axes):
        every = [cylinder.gram(a) for a in cylinder.torus.numerators()]
        whole = float(weight.abs().sum()) ** 2
        assert all(closed_is_definite(gram, whole) for gram in every)
        tops = [float(torch.linalg.eigvalsh(dense_gram(gram))[-1]) for gram in every]
        assert not all(closed_is_definite(gram, top * 1.0001) for gram, top in zip(every, tops, strict=True))


def test_the_bound_is_closer_than_the_torus_and_exact_along_the_line() -> None:
    """(1,2,1) along the line is exact: 2 + 2 cos(pi/(n+1)); a one-tap axis leaves nothing to relax."""
    line = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    other = torch.tensor([1.0, 0.5], dtype=torch.float64)
    case = ([9, 4], [3, 2], [1, 1], [1, 1], [1, 1], 1, 1)
    weight = (line[:, None] * other)[None, None]
    axes = convolution_axes(*case[:5])
    along = 2 + 2 * math.cos(math.pi / 10)
    kept = [c for c in zero_padding_cylinders(weight, axes) if c.axis == 0]
    for cylinder in kept:
        size, twist = cylinder.torus.sizes[0], cylinder.torus.twists[0]
        angles = [math.pi * a / size for a in range(twist, 2 * size, 2)]
        exact = along * max(abs(1 + 0.5 * complex(math.cos(t), math.sin(t))) for t in angles)
        assert exact**2 <= cylinder_bound(cylinder, exact**2 * (1 + 1e-9)) <= exact**2 * (1 + 1e-8)
    flat = convolution_axes([9, 4], [3, 1], [1, 1], [1, 0], [1, 1])
    assert {c.axis for c in zero_padding_cylinders(torch.ones(1, 1, 3, 1), flat)} == {1}


@pytest.mark.parametrize("kind", ["peak", "antisymmetric", "huge", "tiny", "rank one", "border", "equal"])
def test_adversarial_weights(kind: str) -> None:
    """Peaks between frequencies, odd kernels, extreme scales, degenerate spectra: never below the norm."""
    case = ([6, 7], [3, 3], [1, 1], [1, 1], [1, 1], 3, 3)
    weight, axes = kernel_of(case, seed=5)
    grid = torch.arange(3, dtype=torch.float64)
    weight = {
        "peak": weight.sign() * torch.cos(0.4 * grid[:, None] + 0.9 * grid),
        "antisymmetric": weight - weight.flip(2, 3),
        "huge": weight * 1e60,
        "tiny": weight * 1e-60,
        "rank one": weight.sum((0, 1), keepdim=True).expand_as(weight).contiguous(),
        "border": weight * torch.tensor([1e8, 1.0, 1e-8], dtype=torch.float64),
        "equal": torch.ones_like(weight),
    }[kind]
    truth = norm_of(weight, case) ** 2
    for cylinder, factor in itertools.product(
        zero_padding_cylinders(weight, axes), (0.9, 1 - 1e-12, 1.0, 1 + 1e-12, 2)
    ):
        assert cylinder_bound(cylinder, truth * factor) >= truth * (1 - 1e-13)
        assert cylinder_error(cylinder) > 0


def test_hopeless_guesses_give_no_bound() -> None:
    """Nothing within reach of a guess far below can be factorised: infinity, not a wrong number."""
    weight, axes = kernel_of(CASES[0], seed=6)
    truth = norm_of(weight, CASES[0]) ** 2
    for cylinder in zero_padding_cylinders(weight, axes):
        for guess in (0.5 * truth, 0.98 * truth, 0.0, -1.0):
            assert cylinder_bound(cylinder, guess) == math.inf


def test_cost_grows_with_the_blocks() -> None:
    """Twice the channels cost eight times as much, twice the line twice as much."""
    axes = convolution_axes([8, 8], [3, 3], [1, 1], [1, 1], [1, 1])
    longer = convolution_axes([16, 8], [3, 3], [1, 1], [1, 1], [1, 1])
    small = zero_padding_cylinders(torch.ones(2, 2, 3, 3), axes)[0].multiplications
    assert zero_padding_cylinders(torch.ones(4, 4, 3, 3), axes)[0].multiplications == pytest.approx(8 * small)
    assert zero_padding_cylinders(torch.ones(2, 2, 3, 3), longer)[0].multiplications == pytest.approx(2 * small)
