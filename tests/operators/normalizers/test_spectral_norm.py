"""Spectral normalization: what the reshaped kernel says about the map."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.normalizers.spectral_norm import (
    convolution_certificate,
    reshaped_kernel,
    reshaped_kernel_norm,
    spectral_norm_constant,
)
from operators.normalizers.truth import jacobian_norm, vectors


def convolution_norm(weight: Tensor, size: int, stride: int, dilation: int, groups: int) -> float:
    """Return the norm of a zero-padded convolution on a square image, by its dense matrix."""
    channels = weight.shape[1] * groups
    padding = dilation * (weight.shape[2] // 2)
    x = torch.zeros(channels, size, size, dtype=torch.float64)
    return jacobian_norm(
        lambda z: torch.nn.functional.conv2d(z[None], weight, None, stride, padding, dilation, groups), x
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "groups"),
    list(itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (1, 2))),
)
def test_the_certificate_is_above_the_true_norm(kernel: int, stride: int, dilation: int, groups: int) -> None:
    """Against the dense matrix of the convolution, for strides, dilations and groups."""
    for seed in range(2):
        weight = vectors(4 * 2 * kernel**2, seed).reshape(4, 2, kernel, kernel)
        if seed:
            weight = weight.abs()  # all positive kernels come close to the bound
        truth = convolution_norm(weight, 7, stride, dilation, groups)
        assert truth <= convolution_certificate(weight, stride, dilation, groups) * (1 + 1e-12)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 1), (3, 1), (2, 2), (3, 3), (4, 2)])
def test_a_constant_kernel_reaches_the_certificate_on_a_large_image(kernel: int, stride: int) -> None:
    """The box kernel comes within the boundary effect of the bound."""
    weight = torch.ones(1, 1, kernel, dtype=torch.float64)
    x = torch.zeros(1, 240, dtype=torch.float64)
    truth = jacobian_norm(lambda z: torch.nn.functional.conv1d(z[None], weight, stride=stride), x)
    bound = convolution_certificate(weight, stride)
    assert bound * 0.999 <= truth <= bound


def test_the_reshaped_kernel_is_a_lower_bound_only() -> None:
    """The 3x3 box kernel has reshaped norm one and comes close to three as a convolution."""
    weight = torch.ones(1, 1, 3, 3, dtype=torch.float64) / 3
    lower, upper = reshaped_kernel_norm(weight)
    assert lower <= 1.0 <= upper
    truth = convolution_norm(weight, 14, 1, 1, 1)
    assert 2.8 < truth <= convolution_certificate(weight) <= 3.0 * (1 + 1e-12)


def test_a_dense_layer_is_its_matrix() -> None:
    """For a matrix lower and upper bound enclose the singular value."""
    W = vectors(12, 3).reshape(3, 4)
    lower, upper = reshaped_kernel_norm(W)
    assert lower <= torch.linalg.matrix_norm(W, 2).item() <= upper
    assert upper / lower - 1 < 1e-12
    assert reshaped_kernel(W, dim=1).shape == (4, 3)


def test_what_pytorch_leaves_is_at_least_one() -> None:
    """The parametrization divides by an estimate from below: the effective norm is one or more, never less."""
    torch_layer = torch.nn.Linear(6, 5, bias=False).double()
    with torch.no_grad():
        torch_layer.weight.copy_(vectors(30, 4).reshape(5, 6))
    weight = torch_layer.weight.detach().clone()
    torch.nn.utils.parametrizations.spectral_norm(torch_layer)
    part = torch_layer.parametrizations.weight[0]
    part.eval()
    u, v = part._u, part._v
    effective = torch_layer.weight.detach()
    constant = spectral_norm_constant(weight, u, v)
    truth = torch.linalg.matrix_norm(effective, 2).item()
    assert truth >= 1.0 - 1e-12
    assert truth * (1 - 1e-13) <= constant <= truth * (1 + 1e-11)


def test_converged_vectors_give_one_and_zero_gives_nothing() -> None:
    """With the singular vectors themselves the constant is one; with orthogonal ones there is no bound."""
    W = vectors(12, 5).reshape(3, 4)
    U, _, Vh = torch.linalg.svd(W)
    assert spectral_norm_constant(W, U[:, 0], Vh[0]) == pytest.approx(1.0, rel=1e-12)
    assert spectral_norm_constant(W, U[:, 0], Vh[1]) == math.inf


def test_errors() -> None:
    """Groups must divide the outputs."""
    with pytest.raises(InputError, match="divided"):
        convolution_certificate(torch.ones(3, 1, 2, 2), groups=2)
