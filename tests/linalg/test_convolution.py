"""Convolution norms against dense singular values of the operator torch really applies."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg.bounds import NormBounds
from normscope.linalg.convolution import convolution_norm

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def dense_norm(layer: nn.Module, channels: int, size: tuple[int, ...]) -> float:
    """Return the largest singular value of the layer as a matrix: its values on all basis vectors."""
    dimension = channels * math.prod(size)
    basis = torch.eye(dimension, dtype=torch.float64).reshape(dimension, channels, *size)
    return float(torch.linalg.matrix_norm(layer(basis).flatten(1), 2))


def random_layer(layer: nn.Module, seed: int) -> nn.Module:
    """Return the layer in float64 with seeded Gaussian weights."""
    generator = torch.Generator().manual_seed(seed)
    layer = layer.to(torch.float64).requires_grad_(False)
    layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))
    return layer


def assert_exact(bounds: NormBounds, truth: float) -> None:
    """Check a two-sided bound of a small convolution: around the truth, and narrow."""
    assert bounds.lower <= truth * (1 + 1e-13)
    assert bounds.upper >= truth * (1 - 1e-13)
    assert bounds.width <= 1e-6
    assert bounds.delta == 0.0


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_agrees_with_dense_svd_in_two_dimensions(mode: str, stride: int, dilation: int, groups: int) -> None:
    """Every padding mode, stride, dilation and grouping of a small map is exact to 1e-6."""
    for padding, size in itertools.product([0, 1, (2, 1)], [(6, 7), (5, 5)]):
        layer = random_layer(
            nn.Conv2d(2, 4, 3, stride, padding, dilation, groups, False, mode), seed=stride + 10 * dilation
        )
        bounds = convolution_norm(
            layer.weight, size, stride=stride, padding=padding, dilation=dilation, groups=groups, padding_mode=mode
        )
        assert_exact(bounds, dense_norm(layer, 2, size))


@pytest.mark.turns(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 3])
def test_agrees_with_dense_svd_when_transposed(rank: int, stride: int, groups: int) -> None:
    """So is every transposed convolution, output padding included."""
    size = (5, 4, 3)[:rank]
    for padding, extra, dilation in [(0, 0, 1), (1, stride - 1, 1), (1, 1, 2)]:
        if extra >= max(stride, dilation):
            continue
        layer = random_layer(
            TRANSPOSED[rank](3, 6, 3, stride, padding, extra, groups, False, dilation), seed=stride + padding
        )
        bounds = convolution_norm(
            layer.weight,
            size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            transposed=True,
            output_padding=extra,
        )
        assert_exact(bounds, dense_norm(layer, 3, size))


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_agrees_with_dense_svd_in_one_and_three_dimensions(rank: int, kernel: int, stride: int) -> None:
    """One and three axes are as good as two."""
    size = (7, 4, 5)[:rank]
    layer = random_layer(CONVOLUTIONS[rank](3, 2, kernel, stride, 1, bias=False), seed=kernel)
    bounds = convolution_norm(layer.weight, size, stride=stride, padding=1)
    assert_exact(bounds, dense_norm(layer, 3, size))


@pytest.mark.parametrize("kernel", [(2, 4), (3, 3), (1, 5)])
@pytest.mark.parametrize("dilation", [1, 3])
def test_same_padding_is_asymmetric_for_even_reach(kernel: tuple[int, int], dilation: int) -> None:
    """An odd total padding puts the extra zero on the right, as torch does."""
    layer = random_layer(nn.Conv2d(2, 3, kernel, padding="same", dilation=dilation, bias=False), seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that an even kernel copies its input
        truth = dense_norm(layer, 2, (6, 8))
    assert_exact(convolution_norm(layer.weight, (6, 8), padding="same", dilation=dilation), truth)


@pytest.mark.parametrize(("stride", "kernel", "padding"), [(4, 4, 0), (2, 2, 1), (3, 2, 0), (2, 1, 0), (5, 2, 4)])
def test_windows_that_do_not_overlap_are_a_matrix(stride: int, kernel: int, padding: int) -> None:
    """Patch embeddings and strided one-by-one kernels, with windows cut by the border."""
    layer = random_layer(nn.Conv2d(3, 5, kernel, stride, padding, bias=False), seed=7)
    bounds = convolution_norm(layer.weight, (8, 8), stride=stride, padding=padding)
    assert_exact(bounds, dense_norm(layer, 3, (8, 8)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_channel_factors_are_folded_in(transposed: bool, groups: int) -> None:
    """Factors per channel, one of them zero, act like multiplications around the layer."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = random_layer(kind(4, 6, 3, padding=1, groups=groups, bias=False), seed=3)
    generator = torch.Generator().manual_seed(4)
    outer = torch.randn(6, generator=generator, dtype=torch.float64) * 100
    inner = torch.randn(4, generator=generator, dtype=torch.float64)
    inner[0] = 0.0

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return layer(x * inner[:, None, None]) * outer[:, None, None]

    bounds = convolution_norm(
        layer.weight, (5, 6), padding=1, groups=groups, transposed=transposed, output_scale=outer, input_scale=inner
    )
    assert_exact(bounds, dense_norm(Scaled(), 4, (5, 6)))


@pytest.mark.parametrize("size", [8, 32])
def test_a_filter_of_zeros_among_others(size: int) -> None:
    """Pruned channels have norm zero and say nothing about the others."""
    weight = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight[1] = 0.0
    kept = convolution_norm(weight[[0, 2, 3]], [size, size], padding=1, groups=3)
    bounds = convolution_norm(weight, [size, size], padding=1, groups=4)
    assert bounds.lower <= kept.upper
    assert kept.lower <= bounds.upper
    assert bounds.upper == pytest.approx(kept.upper, rel=1e-3)
    assert convolution_norm(torch.zeros(2, 1, 3, 3), [size, size], padding=1, groups=2).upper == 0.0


def test_depthwise_is_the_largest_channel() -> None:
    """The norm of a depthwise convolution is that of its largest channel."""
    layer = random_layer(nn.Conv2d(16, 16, 7, padding=3, groups=16, bias=False), seed=5)
    layer.weight[4] *= 3.0
    assert_exact(convolution_norm(layer.weight, (9, 9), padding=3, groups=16), dense_norm(layer, 16, (9, 9)))


def test_padding_beyond_the_kernel_changes_nothing() -> None:
    """Outputs that read only zeros do not loosen the bound."""
    layer = random_layer(nn.Conv1d(2, 2, 3, padding=9, bias=False), seed=6)
    assert_exact(convolution_norm(layer.weight, (5,), padding=9), dense_norm(layer, 2, (5,)))


def he_normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return a float32 kernel with the usual initial scale."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * math.sqrt(2.0 / math.prod(shape[1:]))


def smooth(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return a kernel like trained ones: low rank, smooth in space, so that its symbol has one sharp peak."""
    generator = torch.Generator().manual_seed(seed)
    bump = torch.tensor([0.5, 1.0, 0.5])[:, None] * torch.tensor([0.6, 1.0, 0.4])
    rank_one = torch.randn(shape[0], 1, generator=generator) * torch.randn(1, shape[1], generator=generator)
    return rank_one[..., None, None] * bump + 0.3 * torch.randn(shape, generator=generator)


@pytest.mark.turns(5)
@pytest.mark.parametrize("kernel", [he_normal, smooth])
@pytest.mark.parametrize(
    ("channels", "size", "stride", "width"),
    [((16, 16), 28, 1, 1e-3), ((32, 32), 14, 1, 5e-3), ((16, 32), 28, 2, 5e-3), ((40, 48), 14, 1, 5e-3)],
)
def test_width_on_medium_maps(kernel: object, channels: tuple[int, int], size: int, stride: int, width: float) -> None:
    """The widths promised for random and for peaked kernels are reached."""
    weight = kernel((channels[1], channels[0], 3, 3), 11)  # type: ignore[operator]
    bounds = convolution_norm(weight, (size, size), stride=stride, padding=1)
    assert bounds.probable_width <= width
    assert bounds.lower < bounds.probable <= bounds.upper
    assert bounds.upper <= bounds.lower * 1.02


@pytest.mark.turns(2)
def test_the_certificate_holds_against_a_larger_dense_operator() -> None:
    """A map solved by torus and Lanczos contains the dense singular value."""
    weight = he_normal((12, 12, 3, 3), 1)
    layer = nn.Conv2d(12, 12, 3, padding=1, bias=False).requires_grad_(False)
    layer.weight.copy_(weight)
    truth = dense_norm(layer.to(torch.float64), 12, (12, 12))
    bounds = convolution_norm(weight, (12, 12), padding=1)
    assert bounds.lower <= truth * (1 + 1e-12) <= bounds.upper * (1 + 2e-12)
    assert bounds.probable_width <= 1e-3


def test_results_do_not_depend_on_scale_or_global_state() -> None:
    """Powers of two come out exactly; the global generator does not move."""
    weight = he_normal((4, 4, 3, 3), 2).double()
    state = torch.get_rng_state()
    base = convolution_norm(weight, (6, 6), padding=1)
    tiny = convolution_norm(weight * 2.0**-900, (6, 6), padding=1)
    huge = convolution_norm(weight * 2.0**900, (6, 6), padding=1)
    assert torch.equal(state, torch.get_rng_state())
    assert tiny.log_upper - base.log_upper == pytest.approx(-900 * math.log(2), abs=1e-11)
    assert huge.log_lower - base.log_lower == pytest.approx(900 * math.log(2), abs=1e-11)


def test_zero_kernel_is_exactly_zero() -> None:
    """Zero is zero, not a small number."""
    assert convolution_norm(torch.zeros(2, 2, 3, 3), (5, 5), padding=1).upper == 0.0


def test_wrong_use_is_refused() -> None:
    """Arguments that describe no convolution are errors that say what to do."""
    weight = torch.ones(4, 2, 3)
    with pytest.raises(InputError, match="two channel axes"):
        convolution_norm(weight, (5, 5))
    with pytest.raises(InputError, match="groups to divide"):
        convolution_norm(weight, (5,), groups=3)
    with pytest.raises(InputError, match="padding_mode"):
        convolution_norm(weight, (5,), padding_mode="mirror")
    with pytest.raises(InputError, match="Transposed"):
        convolution_norm(weight, (5,), transposed=True, padding="same")
    with pytest.raises(InputError, match="does not fit"):
        convolution_norm(weight, (2,))
    with pytest.raises(InputError, match="output factor"):
        convolution_norm(weight, (5,), output_scale=torch.ones(3))
    with pytest.raises(InputError, match="input factor"):
        convolution_norm(weight, (5,), input_scale=torch.ones(3))
    with pytest.raises(NonFiniteError):
        convolution_norm(weight * math.nan, (5,))
