"""Torus bounds: symbols against dense twisted convolutions, embeddings against zero-padded ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from normscope.linalg.convolution_geometry import Axis, convolution_axes, zero_padded_map
from normscope.linalg.convolution_on_torus import (
    PHASE_ERROR,
    Embedding,
    Polyphase,
    Torus,
    Window,
    gram_error,
    polyphase,
    symbol_angles,
    symbol_grams,
    symbols,
    torus_bound,
    torus_map,
    zero_padding_embedding,
    zero_padding_tori,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return seeded Gaussian numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norm(matrix: torch.Tensor) -> float:
    """Return the largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, 2))


@pytest.mark.parametrize(("sizes", "twists"), [((5,), (0,)), ((6,), (1,)), ((3, 4), (0, 1)), ((2, 3, 3), (1, 1, 0))])
def test_the_symbol_norm_is_the_norm_on_the_torus(sizes: tuple[int, ...], twists: tuple[int, ...]) -> None:
    """The bound equals the dense norm of the twisted convolution itself, attained by a wave."""
    axes = [Axis(m, m, 2, 1, 1, 0) for m in sizes]
    form = polyphase(random(3, 2, *[2] * len(sizes)), axes, 1)
    torus = Torus(sizes, twists)
    dense = norm(torus_map(form, torus).matrix())
    assert math.sqrt(float(torus_bound(form, torus))) == pytest.approx(dense, rel=1e-9)
    assert math.sqrt(float(torus_bound(form, torus))) >= dense * (1 - 1e-14)


def test_conjugate_frequencies_are_taken_once() -> None:
    """Half of the frequencies and their negatives make the whole grid, each once."""
    for sizes, twists in [((4, 5), (0, 1)), ((3, 3, 2), (1, 0, 1)), ((1,), (0,)), ((6,), (1,))]:
        half = {tuple(a) for a in Torus(sizes, twists).numerators().tolist()}
        negatives = {tuple(-x % (2 * m) for x, m in zip(a, sizes, strict=True)) for a in half}
        grid = set(itertools.product(*(range(t, 2 * m, 2) for m, t in zip(sizes, twists, strict=True))))
        assert half | negatives == grid
        assert len(half) + len(negatives) == len(grid) + len(half & negatives)


def test_phases_are_accurate_for_large_offsets() -> None:
    """Integer reduction keeps the promised accuracy where a naive product would lose it."""
    torus = Torus((57, 57), (1, 0))
    offsets = np.array([[0, 0], [1, 10**12 + 7], [10**15, 3]])
    numerators = torus.numerators()[:40]
    computed = symbol_angles(torus, numerators, offsets)
    for i, (a, b) in enumerate(numerators.tolist()):
        for j, (p, q) in enumerate(offsets.tolist()):
            turn = (a * p + b * q) % 114
            assert (
                abs(computed[i, j] - complex(math.cos(math.pi * turn / 57), math.sin(math.pi * turn / 57)))
                < PHASE_ERROR
            )


@pytest.mark.parametrize("shape", [(12, 9), (9, 12)])
@pytest.mark.parametrize("stride", [1, 2])
def test_both_ways_to_the_gram_agree_within_their_error(shape: tuple[int, int], stride: int) -> None:
    """Autocorrelation and direct products give the same matrices, closer than the error bound says."""
    axis = Axis(40, 40 // stride, 3, stride, 1, 1)
    form = polyphase(random(*shape, 3, 3), [axis, axis], 1)
    torus = Torus((21, 21), (1, 0))
    grams = torch.cat(list(symbol_grams(form, torus)))[:, 0]
    taps = form.taps[:, 0] if form.taps.shape[-2] <= form.taps.shape[-1] else form.taps[:, 0].mT
    phase = torch.as_tensor(symbol_angles(torus, torus.numerators(), form.offsets))
    symbol = torch.einsum("ft,tab->fab", phase, taps.to(torch.complex128))
    difference = torch.linalg.matrix_norm(grams - symbol @ symbol.mH, 2)
    assert float(difference.max()) <= 2 * float(gram_error(form))
    assert float(gram_error(form)) <= 1e-11 * float(torch.linalg.matrix_norm(grams, 2).max())


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_every_torus_bounds_the_zero_padded_convolution(stride: int, dilation: int) -> None:
    """For every twist and size, the symbol is above the dense norm; for the best one not by much."""
    for padding, n, k, extra in itertools.product([0, 1, 2], [6, 9], [2, 3], [0, 1]):
        if n + 2 * padding < dilation * (k - 1) + 1:
            continue
        axes = convolution_axes([n], [k], [stride], [padding], [dilation])
        weight = random(3, 2, k, seed=n + k)
        truth = norm(zero_padded_map(weight, axes).matrix())
        form = polyphase(weight, axes, 1)
        bounds = [math.sqrt(float(torus_bound(form, torus))) for torus in zero_padding_tori(axes, extra=extra)]
        assert min(bounds) >= truth * (1 - 1e-12)


def test_twist_makes_the_smoothing_kernel_exact() -> None:
    """In two dimensions (1,2,1) x (1,2,1) peaks at zero frequency: the doubly twisted torus is attained."""
    line = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    axes = convolution_axes([8, 5], [3, 3], [1, 1], [1, 1], [1, 1])
    form = polyphase((line[:, None] * line)[None, None], axes, 1)
    bounds = {t.twists: math.sqrt(float(torus_bound(form, t))) for t in zero_padding_tori(axes)}
    exact = (2 + 2 * math.cos(math.pi / 9)) * (2 + 2 * math.cos(math.pi / 6))
    assert bounds[(1, 1)] == pytest.approx(exact, rel=1e-12)
    assert bounds[(0, 0)] == pytest.approx(16.0, rel=1e-12)


def test_groups_are_bounded_each_by_itself() -> None:
    """One batch gives one bound per group, each that of the group alone."""
    axes = convolution_axes([7, 7], [3, 3], [1, 1], [1, 1], [1, 1])
    weight = random(6, 2, 3, 3)
    torus = zero_padding_tori(axes)[3]
    together = torus_bound(polyphase(weight, axes, 3), torus)
    alone = [float(torus_bound(polyphase(w, axes, 1), torus)) for w in weight.reshape(3, 2, 2, 3, 3)]
    assert together.tolist() == pytest.approx(alone, rel=1e-9)


@pytest.mark.turns(3)
@pytest.mark.parametrize("factor", [0.5, 0.999, 1.0001])
def test_large_sides_from_guesses_of_any_quality(factor: float) -> None:
    """A guess below costs eigenvalues, one above is kept: both certify."""
    axes = convolution_axes([5, 5], [3, 3], [1, 1], [1, 1], [1, 1])
    weight = random(40, 36, 3, 3)
    form, torus = polyphase(weight, axes, 1), zero_padding_tori(axes)[0]
    truth = norm(torus_map(form, torus).matrix()) ** 2
    bound = float(torus_bound(form, torus, torch.tensor([truth * factor], dtype=torch.float64)))
    assert truth * (1 - 1e-13) <= bound <= truth * max(factor, 1.0) * (1 + 1e-8)


def test_one_tap_axes_need_one_frequency() -> None:
    """A kernel of one tap along an axis has a constant symbol there."""
    axes = convolution_axes([6, 6], [1, 3], [1, 1], [0, 1], [1, 1])
    assert {t.sizes for t in zero_padding_tori(axes)} == {(1, 7)}
    assert {t.twists for t in zero_padding_tori(axes)} == {(0, 0), (0, 1)}


def test_a_larger_torus_has_more_frequencies() -> None:
    """One more per axis, of which the tightest bound is taken."""
    assert [t.sizes for t in zero_padding_tori([Axis(8, 8, 3, 1, 1, 1)], extra=1)] == [(10,), (10,)]


def test_polyphase_is_the_strided_convolution() -> None:
    """Phases of the input, convolved with stride one, give the strided output on the periodic line."""
    weight = random(2, 3, 5)
    form = polyphase(weight, [Axis(12, 4, 5, 3, 1, 0)], 1)
    assert isinstance(form, Polyphase)
    x = random(3, 12, seed=1)
    long = torch.cat([x, x[:, :4]], 1)
    expected = torch.nn.functional.conv1d(long[None], weight, stride=3)[0]
    phases = torch.stack([x[:, r::3] for r in range(3)]).flatten(0, 1)
    torch.testing.assert_close(torus_map(form, Torus((4,), (0,))).apply(phases), expected)


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
