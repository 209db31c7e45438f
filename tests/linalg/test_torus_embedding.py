"""Embeddings: what the windows see of the torus has the singular values of torch's own convolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.linalg.convolution_geometry import Axis, convolution_axes, zero_padded_map
from normscope.linalg.torus import symbols, torus_map
from normscope.linalg.torus_embedding import Embedding, Window, zero_padding_embedding

#: Input size, kernel, stride, padding, one number per axis; inputs and outputs.
CASES = [
    ([6], [3], [1], [1], 2, 3),
    ([5], [4], [1], [3], 3, 2),
    ([7], [3], [2], [1], 2, 2),
    ([8], [3], [3], [2], 2, 5),
    ([6, 5], [3, 3], [1, 1], [1, 1], 2, 3),
    ([5, 6], [2, 4], [1, 1], [0, 2], 3, 2),
    ([7, 8], [3, 3], [2, 2], [1, 1], 2, 4),
    ([8, 7], [3, 3], [2, 1], [1, 0], 3, 2),
    ([4, 6], [7, 7], [2, 2], [3, 3], 1, 3),
    ([5, 5], [1, 3], [1, 1], [0, 1], 2, 2),
    ([6, 6], [3, 3], [1, 1], [3, 4], 2, 1),
    ([3, 4, 4], [2, 3, 2], [1, 1, 2], [1, 1, 0], 2, 2),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}k{c[1]}s{c[2]}p{c[3]}")


def embedded(case: tuple, seed: int = 0) -> tuple[Embedding, torch.Tensor]:
    """Return the embedding of a random convolution and the matrix of the convolution."""
    size, kernel, stride, padding, inputs, outputs = case
    weight = torch.randn(outputs, inputs, *kernel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    axes = convolution_axes(size, kernel, stride, padding, [1] * len(size))
    found = zero_padding_embedding(weight, axes)
    assert found is not None
    return found, zero_padded_map(weight, axes).matrix()


def members(windows: tuple[Window, ...], channels: int) -> np.ndarray:
    """Return which coordinates (channel, position) of a side the windows hold."""
    masks = []
    for window in windows:
        mask = np.ones((1,), dtype=bool)
        for axis in window:
            mask = np.logical_and.outer(mask, axis)
        masks += [mask.ravel()] * (channels // len(windows))
    return np.concatenate(masks)


@EVERY
def test_window_of_the_torus_is_the_convolution(case: tuple) -> None:
    found, matrix = embedded(case)
    rows, columns = found.form.taps.shape[-2:]
    assert rows <= columns
    torus = torus_map(found.form, found.torus).matrix()
    seen = torus[members(found.rows, rows)][:, members(found.columns, columns)]
    count = min(seen.shape)
    expected = torch.linalg.svdvals(matrix)
    # An axis of one tap is there once: its places are copies of each other.
    copies = math.prod(n for n, k, s in zip(case[0], case[1], case[2], strict=True) if k == 1 and s == 1)
    assert torch.allclose(torch.linalg.svdvals(seen)[: len(expected[::copies])], expected[::copies][:count], atol=1e-12)
    assert float(torch.linalg.matrix_norm(torus, 2)) >= float(expected[0])


@EVERY
def test_modes_outside_and_within(case: tuple) -> None:
    found, _ = embedded(case)
    torus, double = found.torus, 2 * np.array(found.torus.sizes)
    places = np.stack(np.meshgrid(*(np.arange(m) for m in torus.sizes), indexing="ij"), -1).reshape(-1, len(double))
    waves = np.exp(1j * np.pi * (places * 2 / double) @ found.numerators.T) / math.sqrt(len(places))
    window = found.columns[0]
    mask = members((window,), 1)
    outside = waves[~mask].conj().T @ waves[~mask]
    assert np.allclose(found.outside(window, found.numerators), outside, atol=1e-13)
    generator = torch.Generator().manual_seed(1)
    modes = torch.randn(len(found.numerators), len(found.columns) * 2, 3, generator=generator, dtype=torch.complex128)
    own = found.multiplicities == 1
    modes[own] = modes[own].real.to(modes.dtype)
    values = np.einsum("pf,fck->pck", waves * found.multiplicities, modes.numpy()).real
    expected = [values[members((w,), 1), c] for i, w in enumerate(found.columns) for c in (2 * i, 2 * i + 1)]
    got = found.within(modes, found.columns)
    assert got.shape[0] == sum(len(e) for e in expected)
    assert np.allclose(np.sort(got.numpy(), 0), np.sort(np.concatenate(expected), 0), atol=1e-12)


def test_multiplicities_count_every_frequency() -> None:
    for case in CASES:
        found, _ = embedded(case)
        assert found.multiplicities.sum() == math.prod(found.torus.sizes)
        symbol = symbols(found.form.taps[:, 0], found.form.offsets, found.torus, found.numerators)
        assert torch.allclose(symbol[found.multiplicities == 1].imag, torch.zeros(()).double(), atol=1e-12)


def test_dilation_is_left_to_others() -> None:
    weight = torch.ones(1, 1, 3, dtype=torch.float64)
    assert zero_padding_embedding(weight, [Axis(9, 9, 3, 1, 2, 2)]) is None
