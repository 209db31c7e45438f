"""The geometry of convolutions against torch's own layers."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.linalg.convolution_geometry import (
    Axis,
    adjoint_axes,
    convolution_axes,
    extended,
    extension_multiplicity,
    extension_sources,
    padded_map,
    zero_padded_map,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return seeded Gaussian numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_the_map_is_what_the_layer_computes(mode: str) -> None:
    """For every stride, padding, dilation and grouping, apply is the layer and adjoint is its transpose."""
    for stride, padding, dilation, groups in itertools.product([1, 2, 3], [0, 1, 2], [1, 2], [1, 2]):
        layer = nn.Conv2d(4, 6, (3, 2), stride, padding, dilation, groups, False, mode).to(torch.float64)
        layer.requires_grad_(False)
        axes = convolution_axes((7, 6), (3, 2), [stride] * 2, [padding] * 2, [dilation] * 2)
        A = padded_map(layer.weight, axes, groups, mode)
        x = random(4, 7, 6)
        y = layer(x[None])[0]
        assert A.range_shape == tuple(y.shape)
        torch.testing.assert_close(A.apply(x), y)
        z = random(*y.shape, seed=1)
        torch.testing.assert_close((y * z).sum(), (x * A.adjoint(z)).sum())


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_adjoint_axes_belong_to_the_transposed_layer(stride: int) -> None:
    """The adjoint of the described convolution is ConvTranspose, output padding up to max(stride, dilation) - 1."""
    for padding, dilation, extra in itertools.product([0, 1, 4], [1, 3], [0, 1, 2]):
        if extra >= max(stride, dilation):
            continue
        layer = nn.ConvTranspose1d(2, 3, 3, stride, padding, extra, 1, False, dilation).to(torch.float64)
        layer.requires_grad_(False)
        if (6 - 1) * stride - 2 * padding + dilation * 2 + extra + 1 < 1:
            continue
        axes = adjoint_axes([6], [3], [stride], [padding], [dilation], [extra])
        x = random(2, 6)
        torch.testing.assert_close(zero_padded_map(layer.weight, axes).adjoint(x), layer(x[None])[0])


def test_torus_size_is_the_least_without_wrap_around() -> None:
    """On a torus of that size no needed product crosses the seam; on a smaller one some does."""
    for n, k, s, d, p in itertools.product([4, 7], [1, 3, 4], [1, 2], [1, 2], [0, 1, 3, 9]):
        if n + 2 * p < d * (k - 1) + 1:
            continue
        axis = convolution_axes([n], [k], [s], [p], [d])[0]

        def wraps(m: int, axis: Axis = axis) -> bool:
            """Return whether an output that reads some input would read a wrapped one on a torus of m."""
            for output in range(axis.output_size):
                first = axis.stride * output - axis.padding
                if first > axis.size - 1 or first + axis.reach < 0:
                    continue
                positions = range(first, first + axis.reach + 1)
                if any(not 0 <= i < axis.size and i % m < axis.size for i in positions):
                    return True
            return False

        assert not wraps(axis.torus_size)
        assert axis.torus_size == axis.size or wraps(axis.torus_size - 1)


def test_extensions_copy_what_torch_copies() -> None:
    """The written-out padding is torch.nn.functional.pad; its norm is the largest number of copies."""
    for mode, p in itertools.product(["circular", "reflect", "replicate"], [1, 2, 3]):
        axis = convolution_axes([5], [3], [1], [p], [1])[0]
        x = torch.arange(5.0)
        expected = nn.functional.pad(x[None, None], (p, p), mode=mode)[0, 0]
        sources = extension_sources(axis, mode)
        assert x[sources].tolist() == expected.tolist()
        E = torch.eye(5)[sources]
        assert extension_multiplicity(axis, mode) == pytest.approx(float(torch.linalg.matrix_norm(E, 2)) ** 2, rel=1e-5)
        assert extended(axis).size == len(sources)
        assert extended(axis).output_size == axis.output_size


def test_extensions_by_as_much_as_there_is() -> None:
    """A circle can be gone round once, and a reflection needs one entry more than it copies."""
    for mode, p in (("circular", 3), ("reflect", 2)):
        axis = convolution_axes([3], [3], [1], [p], [1])[0]
        expected = nn.functional.pad(torch.arange(3.0)[None, None], (p, p), mode=mode)[0, 0]
        assert torch.arange(3.0)[extension_sources(axis, mode)].tolist() == expected.tolist()
        with pytest.raises(InputError, match=mode):
            extension_sources(convolution_axes([3], [3], [1], [p + 1], [1])[0], mode)


def test_what_cannot_be_is_refused() -> None:
    """A reflection beyond the signal, a kernel beyond the input, 'same' with a stride, an unknown word."""
    with pytest.raises(InputError, match="reflect"):
        extension_sources(Axis(3, 7, 3, 1, 1, 3), "reflect")
    with pytest.raises(InputError, match="does not fit"):
        convolution_axes([2], [5], [1], [1], [1])
    with pytest.raises(InputError, match="stride 1"):
        convolution_axes([5], [3], [2], "same", [1])
    with pytest.raises(InputError, match="'same' or 'valid'"):
        convolution_axes([5], [3], [1], "full", [1])
    with pytest.raises(InputError, match="no output"):
        adjoint_axes([1], [1], [1], [3], [1], [0])
