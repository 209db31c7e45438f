"""The Gram matrix of a convolution along one axis, against the dense one; its certificate against singular values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.linalg.convolution_block import ConvolutionBlock
from normscope.linalg.convolution_geometry import Axis, convolution_axes
from normscope.linalg.convolution_on_line import LineGram, banded_certificate, factorisation_cost, gram_along, slow_axis

#: Input size, kernel, stride, padding, dilation, one number per axis; inputs and outputs.
CASES = [
    ([9], [3], [1], [1], [1], 2, 3),
    ([10], [4], [1], [0], [1], 3, 2),
    ([11], [3], [2], [1], [1], 2, 2),
    ([13], [3], [1], [2], [2], 2, 2),
    ([12], [3], [3], [4], [2], 1, 2),
    ([6], [1], [1], [0], [1], 2, 3),
    ([4], [7], [1], [3], [1], 2, 2),
    ([5, 8], [3, 3], [1, 1], [1, 1], [1, 1], 2, 2),
    ([8, 5], [3, 2], [2, 1], [1, 0], [1, 1], 3, 2),
    ([7, 7], [3, 3], [2, 2], [1, 1], [1, 1], 2, 4),
    ([9, 6], [3, 1], [1, 1], [2, 0], [2, 1], 2, 2),
    ([4, 5, 6], [3, 2, 3], [1, 1, 1], [1, 0, 1], [1, 1, 1], 2, 1),
    ([6, 4, 5], [2, 3, 1], [2, 1, 1], [0, 1, 0], [1, 1, 1], 1, 2),
]
SIDES = pytest.mark.parametrize("of_outputs", [False, True], ids=["inputs", "outputs"])
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}k{c[1]}s{c[2]}p{c[3]}d{c[4]}")


def kernel_of(case: tuple, seed: int = 0) -> tuple[Tensor, tuple[Axis, ...]]:
    """Return a random kernel and its geometry."""
    size, kernel, stride, padding, dilation, inputs, outputs = case
    weight = torch.randn(outputs, inputs, *kernel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return weight, convolution_axes(size, kernel, stride, padding, dilation)


def dense_matrix(weight: Tensor, case: tuple) -> Tensor:
    """Return the matrix of the convolution: torch's own, applied to unit vectors."""
    size, _, stride, padding, dilation, inputs, _ = case
    convolution = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[len(size)]
    count = inputs * math.prod(size)
    units = torch.eye(count, dtype=torch.float64).reshape(count, inputs, *size)
    return convolution(units, weight, None, stride, padding, dilation).flatten(1).T


def assembled(gram: LineGram) -> Tensor:
    """Return the symmetric matrix the blocks stand for."""
    count, side = gram.positions.places, gram.side
    whole = torch.zeros(count, side, count, side, dtype=torch.float64)
    for (i, j), pairs in gram.positions.pairs.items():
        whole[i, :, j] = gram.blocks[pairs]
        whole[j, :, i] = gram.blocks[pairs].T
    return whole.reshape(count * side, -1)


@EVERY
@SIDES
def test_blocks_are_the_dense_gram_matrix(case: tuple, of_outputs: bool) -> None:
    """Entry by entry along every axis, its places first; nothing is coupled beyond the reach."""
    weight, axes = kernel_of(case)
    A = dense_matrix(weight, case)
    dense = A @ A.T if of_outputs else A.T @ A
    sizes = [a.output_size if of_outputs else a.size for a in axes]
    channels = weight.shape[0 if of_outputs else 1]
    for along in range(len(axes)):
        order = torch.arange(len(dense)).reshape(channels, *sizes).movedim(1 + along, 0).flatten()
        gram = gram_along(weight, axes, along, of_outputs=of_outputs)
        torch.testing.assert_close(assembled(gram), dense[order][:, order], rtol=0.0, atol=1e-12)
        assert gram.trace == pytest.approx(float(dense.trace()), rel=1e-12)
        assert max(i - j for i, j in gram.positions.pairs) <= gram.positions.reach


@EVERY
@SIDES
def test_the_factorisation_succeeds_just_above_the_norm_and_fails_just_below(case: tuple, of_outputs: bool) -> None:
    """Shifted by a part in a billion either way, along every axis."""
    weight, axes = kernel_of(case, seed=1)
    square = float(torch.linalg.matrix_norm(dense_matrix(weight, case), 2)) ** 2
    for along in range(len(axes)):
        gram = gram_along(weight, axes, along, of_outputs=of_outputs)
        assert gram.is_definite(square * (1 + 1e-9))
        assert not gram.is_definite(square * (1 - 1e-9))


@EVERY
@SIDES
def test_certificates_are_above_the_norm_and_close(case: tuple, of_outputs: bool) -> None:
    """From an attained value a little too low, with the error of the Gram matrix that the caller gives."""
    weight, axes = kernel_of(case, seed=2)
    truth = float(torch.linalg.matrix_norm(dense_matrix(weight, case), 2))
    block = ConvolutionBlock(weight, axes, "zeros")
    error = 2 * block.apply_error * block.absolute_norm + block.apply_error**2
    for lower in (truth, truth * (1 - 1e-7)):
        upper = banded_certificate(weight, axes, lower, of_outputs=of_outputs, gram_error=error, widest=1e-3)
        assert truth <= upper <= truth * (1 + 1e-5)


@SIDES
def test_errors_of_the_gram_matrix_are_added(of_outputs: bool) -> None:
    """The bound on the square grows by what the matrix may be wrong by."""
    weight, axes = kernel_of(CASES[7])
    truth = float(torch.linalg.matrix_norm(dense_matrix(weight, CASES[7]), 2))
    sharp, blurred = (
        banded_certificate(weight, axes, truth, of_outputs=of_outputs, gram_error=error, widest=1e-3)
        for error in (0.0, 0.5)
    )
    assert blurred**2 - sharp**2 == pytest.approx(0.5, rel=1e-9)


@SIDES
def test_a_value_far_too_low_is_refused(of_outputs: bool) -> None:
    """No certificate is invented: nothing within reach of half the norm can be factorised."""
    weight, axes = kernel_of(CASES[9])
    truth = float(torch.linalg.matrix_norm(dense_matrix(weight, CASES[9]), 2))
    for lower in (truth / 2, truth * (1 - 2e-3), 0.0):
        upper = banded_certificate(weight, axes, lower, of_outputs=of_outputs, gram_error=1e-12, widest=1e-3)
        assert upper == math.inf


def test_every_position_carries_what_came_before() -> None:
    """The closed form of tridiag(1, 2, 1): 2 + 2 cos(pi / (n + 1)), approached only by the chain of all positions."""
    n = 400
    box = torch.tensor([[[1.0, 2.0, 1.0]]], dtype=torch.float64)
    axes = convolution_axes([n], [3], [1], [1], [1])
    exact = 2 + 2 * math.cos(math.pi / (n + 1))
    gram = gram_along(box, axes, 0, of_outputs=False)
    assert gram.is_definite(exact**2 * (1 + 1e-11))
    assert not gram.is_definite(exact**2 * (1 - 1e-11))
    # Every position on its own stays definite far below: only together they prove the norm.
    alone = {
        pairs: block * (pairs in (gram.positions.pairs[i, i] for i in range(n))) for pairs, block in gram.blocks.items()
    }
    assert LineGram(gram.positions, alone).is_definite(0.5 * exact**2)
    upper = banded_certificate(box, axes, exact, of_outputs=False, gram_error=1e-12, widest=1e-3)
    assert exact <= upper <= exact * (1 + 1e-6)


@EVERY
@SIDES
def test_cost_is_about_that_of_the_blocks_that_are_made(case: tuple, of_outputs: bool) -> None:
    """One third for the triangle of each position, and the products with those it reaches: within a factor of three."""
    weight, axes = kernel_of(case)
    gram = gram_along(weight, axes, slow_axis(axes, of_outputs=of_outputs), of_outputs=of_outputs)
    b = max(1, gram.positions.reach)
    made = gram.positions.places * gram.side**3 * (1 / 6 + b / 2 + b * (b + 1) / 2)
    cost = factorisation_cost(axes, weight.shape[0 if of_outputs else 1], of_outputs=of_outputs)
    assert made / 3 <= cost <= 3 * made
