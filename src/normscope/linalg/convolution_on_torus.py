r"""Zero-padded convolutions embedded in a twisted torus: certified upper bounds from symbols.

Extend the input by zeros to a torus of ``m`` positions per axis, convolve there, crop: extension and crop have norm
one, and with ``m >= n + p`` no output kept by the crop reads across the seam. So the zero-padded norm is at most the
torus norm. Because nothing kept reads across the seam, a sign change there (a twist) changes nothing either: the
functions on the twisted torus satisfy :math:`x_{j+m} = -x_j`, and its frequencies are
:math:`\theta = (2 t + 1) \pi / m` instead of :math:`2 t \pi / m`. The best of the twists avoids the peak of the symbol.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import certify_largest_eigenvalue
from normscope.linalg.convolution_geometry import CONVOLUTIONS, Axis
from normscope.linalg.matrix_rounding import gamma
from normscope.operators.linear_map import LinearMap

#: Complex numbers held at once in a batch of symbols (16 MiB, about what a cache holds).
CHUNK_NUMBERS = 2**20
#: Error of one computed phase factor exp(i angle) of up to three axes: argument, cosine, sine and two products.
PHASE_ERROR = 2.0**-46


@dataclass(frozen=True)
class Torus:
    """A discrete torus, one entry per axis."""

    sizes: tuple[int, ...]  #: the number of frequencies per axis (the number of positions divided by the stride)
    twists: tuple[int, ...]  #: 1 where functions change sign across the seam, 0 where they are periodic

    def numerators(self) -> np.ndarray:
        r"""Return one of each conjugate pair of frequencies: integers ``a`` with angle :math:`\pi a / m` per axis.

        >>> Torus((4,), (0,)).numerators().tolist()
        [[0], [2], [4]]
        >>> Torus((4,), (1,)).numerators().tolist()
        [[1], [3]]
        """
        grids = [range(twist, 2 * size, 2) for size, twist in zip(self.sizes, self.twists, strict=True)]
        points = np.array(list(itertools.product(*grids)), dtype=np.int64)
        double = 2 * np.array(self.sizes)
        weights = np.concatenate([np.cumprod(double[::-1])[::-1][1:], [1]])
        own, conjugate = points @ weights, ((-points) % double) @ weights
        return points[own <= conjugate]


@dataclass(frozen=True)
class Polyphase:
    r"""A strided convolution written as a stride-one convolution of its input phases."""

    offsets: np.ndarray  #: the tap positions ``(T, axes)``
    taps: Tensor  #: the tap matrices ``(T, groups, rows, columns)``; the columns are phase by phase
    #: the phases, a number below the stride per axis, in the order of the columns
    phases: tuple[tuple[int, ...], ...] = ()

    @property
    def absolute_sum(self) -> Tensor:
        r"""Return per group :math:`(\sum_a \|W_a\|_F)^2`, an upper bound on the norm of the entrywise absolute Gram."""
        return torch.linalg.matrix_norm(self.taps).sum(0).square() * (1.0 + 1e-9)

    @property
    def side(self) -> int:
        """Return the side of the smaller Gram matrix."""
        return min(self.taps.shape[-2:])

    def kernel(self) -> Tensor:
        """Return the kernel ``(rows, columns, groups, *offsets)``."""
        groups, rows, columns = self.taps.shape[1:]
        found = self.taps.new_zeros(rows, columns, groups, *(int(r) + 1 for r in self.offsets.max(0)))
        for offset, taps in zip(self.offsets.tolist(), self.taps, strict=True):
            found[(slice(None), slice(None), slice(None), *offset)] = taps.permute(1, 2, 0)
        return found


def polyphase(weight: Tensor, axes: Sequence[Axis], groups: int, *, sublattices: bool = True) -> Polyphase:
    """Return the polyphase form of a kernel ``(Cout, Cin / groups, *k)`` in float64.

    Tap ``k`` sits at position ``d k = s a + r``: it belongs to phase ``r`` and offset ``a``. Phases no tap touches are
    zero columns, and left out. With stride one and dilation ``d`` the input falls apart into ``d`` sub-lattices, on
    each of which the convolution is undilated: the offset is then ``k`` itself, on a torus ``d`` times smaller
    (``sublattices=False`` keeps the torus, for circular padding whose size ``d`` need not divide).

    >>> polyphase(torch.ones(1, 1, 3), [Axis(8, 4, 3, 2, 1, 1)], 1).taps.shape
    torch.Size([2, 1, 1, 2])
    """
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    grouped = weight.reshape(groups, rows, columns, -1)
    found: dict[tuple[int, ...], dict[tuple[int, ...], Tensor]] = {}
    phases: dict[tuple[int, ...], int] = {}
    for flat, index in enumerate(itertools.product(*(range(a.kernel) for a in axes))):
        split = [
            (k, 0) if a.stride == 1 and sublattices else divmod(a.dilation * k, a.stride)
            for a, k in zip(axes, index, strict=True)
        ]
        offset, phase = tuple(q for q, _ in split), tuple(r for _, r in split)
        phases.setdefault(phase, len(phases))
        found.setdefault(offset, {})[phase] = grouped[..., flat]
    taps = weight.new_zeros(len(found), groups, rows, len(phases), columns)
    for t, blocks in enumerate(found.values()):
        for phase, block in blocks.items():
            taps[t, :, :, phases[phase]] = block
    return Polyphase(np.array(list(found), dtype=np.int64), taps.flatten(-2), tuple(phases))


def zero_padding_tori(axes: Sequence[Axis], *, extra: int = 0) -> list[Torus]:
    """Return the smallest tori that hold a zero-padded convolution, one per choice of twists.

    >>> [t.sizes for t in zero_padding_tori([Axis(8, 8, 3, 1, 1, 1)])]
    [(9,), (9,)]
    """
    sizes = tuple(frequencies(a, extra) for a in axes)
    flat = [a.reach == 0 for a in axes]  # a one-tap axis has a constant symbol: no twist changes it
    choices = [(0,) if f else (0, 1) for f in flat]
    return [
        Torus(tuple(1 if f else m for f, m in zip(flat, sizes, strict=True)), t) for t in itertools.product(*choices)
    ]


def frequencies(axis: Axis, extra: int = 0) -> int:
    """Return the number of frequencies of the smallest torus of an axis, plus ``extra``."""
    step = axis.dilation if axis.stride == 1 else axis.stride
    return -(-axis.torus_size // step) + extra


def symbol_angles(torus: Torus, numerators: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return ``exp(i theta . a)`` for every frequency and offset, with error at most :data:`PHASE_ERROR`.

    Each angle is reduced in integers first, so that large offsets lose nothing.
    """
    phase = np.ones((len(numerators), len(offsets)), dtype=np.complex128)
    for axis, size in enumerate(torus.sizes):
        turns = np.outer(numerators[:, axis], offsets[:, axis]) % (2 * size)
        phase *= np.exp(1j * (np.pi * turns / size))
    return phase


def symbols(taps: Tensor, offsets: np.ndarray, torus: Torus, numerators: np.ndarray) -> Tensor:
    r"""Return the symbol :math:`\hat K(\theta) = \sum_a W_a e^{i \theta a}` at some frequencies of a torus.

    >>> symbols(torch.ones(2, 1, 1).double(), np.array([[0], [1]]), Torus((4,), (0,)), np.array([[2]])).tolist()
    [[[(1+1j)]]]
    """
    phase = torch.as_tensor(symbol_angles(torus, numerators, offsets), device=taps.device)
    flat = taps.reshape(len(offsets), -1)
    return torch.complex(phase.real @ flat, phase.imag @ flat).reshape(len(numerators), *taps.shape[1:])


def symbol_grams(form: Polyphase, torus: Torus) -> Iterator[Tensor]:
    """Yield the Gram matrices of the symbol, ``(frequencies, groups, side, side)``, chunk by chunk."""
    groups, rows, columns = form.taps.shape[1:]
    side = min(rows, columns)
    taps = form.taps if rows <= columns else form.taps.mT
    numerators = torus.numerators()
    pairs = len(form.offsets) ** 2 / 2
    correlate = side > 8 and pairs / 4 < 0.5 * len(numerators) * len(form.offsets)
    step = max(1, CHUNK_NUMBERS // (groups * (side * side if correlate else rows * columns + side * side)))
    if correlate:
        lags, even, odd = _autocorrelation(form.offsets, taps)
    for start in range(0, len(numerators), step):
        part = numerators[start : start + step]
        if correlate:
            phase = torch.as_tensor(symbol_angles(torus, part, lags), device=taps.device)
            real, imaginary = phase.real @ even, phase.imag @ odd
            yield torch.complex(real, imaginary).reshape(len(part), groups, side, side)
        else:
            symbol = symbols(taps, form.offsets, torus, part)
            yield symbol @ symbol.mH


def _autocorrelation(offsets: np.ndarray, taps: Tensor) -> tuple[np.ndarray, Tensor, Tensor]:
    r"""Return lags and the even and odd parts of :math:`R_d = \sum_{a - a' = d} W_a W_{a'}^T`, one of each pair ``±d``.

    The Gram symbol is :math:`\sum_d R_d e^{i \theta d} = R_0 + \sum_{d > 0} (R_d + R_d^T) \cos + i (R_d - R_d^T) \sin`.
    """
    pairs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for i, j in itertools.product(range(len(offsets)), repeat=2):
        lag = tuple(int(x) for x in offsets[i] - offsets[j])
        if lag >= (0,) * len(lag):
            pairs.setdefault(lag, []).append((i, j))
    groups, side = taps.shape[1:3]
    even, odd = taps.new_empty(2, len(pairs), groups, side, side)
    zero = (0,) * offsets.shape[1]
    for t, (lag, members) in enumerate(pairs.items()):
        product = torch.zeros(groups, side, side, dtype=taps.dtype, device=taps.device)
        for i, j in members:
            product.baddbmm_(taps[i], taps[j].mT)
        even[t] = product if lag == zero else product + product.mT
        odd[t] = product - product.mT
    return np.array(list(pairs), dtype=np.int64), even.flatten(1), odd.flatten(1)


def gram_error(form: Polyphase) -> Tensor:
    r"""Return per group a bound on the error in norm of any matrix :func:`symbol_grams` yields.

    Every entry of the Gram is a sum of products of two weights and a phase: over ``columns`` entries, over the tap
    pairs, and over the lags. Each summation order costs at most that many roundings, each phase
    :data:`PHASE_ERROR`, and the entrywise absolute Gram has norm at most :math:`(\sum_a \|W_a\|_F)^2`.
    """
    taps = len(form.offsets)
    summands = max(form.taps.shape[-2:])
    roundings = gamma(summands + taps * taps + 2 * taps + 8, complex_arithmetic=True)
    return form.absolute_sum * (2.0 * roundings + 2.0 * PHASE_ERROR)


@statement("normscope", "Twisted torus", holds="zero padding, torus at least input plus padding, stride divides it")
def torus_bound(form: Polyphase, torus: Torus, guess: Tensor | None = None) -> Tensor:
    r"""Return per group a certified upper bound on the **squared** norm of the convolution on a torus.

    :math:`\|T\|^2 \le \max_\theta \lambda_{\max}(\hat K(\theta) \hat K(\theta)^H)` over the frequencies of the torus.

    >>> form = polyphase(torch.tensor([[[1.0, 2.0, 1.0]]], dtype=torch.float64), [Axis(7, 7, 3, 1, 1, 1)], 1)
    >>> bound = torus_bound(form, Torus((8,), (1,))).sqrt().item()
    >>> bool(abs(bound - (2 + 2 * np.cos(np.pi / 8))) < 1e-12)  # attained: the norm of tridiag(1, 2, 1)
    True
    """
    error = gram_error(form)
    best = torch.zeros_like(error) if guess is None else guess.to(error)
    certified = torch.zeros_like(error)
    for grams in symbol_grams(form, torus):
        if form.side == 1:
            certified = torch.maximum(certified, grams.real[..., 0, 0].amax(0))
            continue
        if form.side <= 32:
            best = torch.maximum(best, torch.linalg.eigvalsh(grams)[..., -1].amax(0))
        bound = certify_largest_eigenvalue(grams, best.expand(grams.shape[:2]), slack=1e-10, raises=1)
        best = torch.maximum(best, bound.amax(0))
        certified = torch.maximum(certified, bound.amax(0))
    return certified + error


def torus_map(form: Polyphase, torus: Torus) -> LinearMap:
    """Return the convolution of one group on a twisted torus as a linear map, for estimates.

    >>> form = polyphase(torch.tensor([[[1.0, 2.0, 1.0]]]), [Axis(3, 3, 3, 1, 1, 1)], 1)
    >>> torus_map(form, Torus((4,), (1,))).matrix()[3].tolist()
    [-2.0, -1.0, 0.0, 1.0]
    """
    kernel = form.kernel()[:, :, 0].contiguous()
    reach = [size - 1 for size in kernel.shape[2:]]
    flipped = kernel.transpose(0, 1).flip(*range(2, kernel.ndim)).contiguous()
    convolution = CONVOLUTIONS[len(reach)]

    def apply(X: Tensor) -> Tensor:
        return convolution(wrapped(X, torus, [0] * len(reach), reach), kernel)

    def adjoint(Y: Tensor) -> Tensor:
        return convolution(wrapped(Y, torus, reach, [0] * len(reach)), flipped)

    return LinearMap.of_batches(apply, adjoint, (kernel.shape[1], *torus.sizes), (len(kernel), *torus.sizes), kernel)


def wrapped(X: Tensor, torus: Torus, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Return a batch on the torus extended beyond its seams, with the signs of the twists.

    >>> wrapped(torch.tensor([[[1.0, 2.0]]]), Torus((2,), (1,)), [1], [1]).tolist()
    [[[-2.0, 1.0, 2.0, -1.0]]]
    """
    for axis, size in enumerate(torus.sizes):
        positions, signs = _continuation(torus, axis, left[axis], right[axis], X)
        X = X.index_select(2 + axis, positions % size)
        X = X if signs is None else X * signs
    return X


def folded(X: Tensor, torus: Torus, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Return the adjoint of :func:`wrapped`: entries beyond the seams are added to those they copy.

    >>> folded(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), Torus((2,), (1,)), [1], [1]).tolist()
    [[[-2.0, 2.0]]]
    """
    for axis, size in enumerate(torus.sizes):
        positions, signs = _continuation(torus, axis, left[axis], right[axis], X)
        shape = list(X.shape)
        shape[2 + axis] = size
        X = X.new_zeros(shape).index_add_(2 + axis, positions % size, X if signs is None else X * signs)
    return X


def _continuation(torus: Torus, axis: int, left: int, right: int, X: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the positions of an axis continued on both sides and, on a twisted one, their signs."""
    size = torus.sizes[axis]
    positions = torch.arange(-left, size + right, device=X.device)
    if not torus.twists[axis]:
        return positions, None
    signs = 1 - 2 * (torch.div(positions, size, rounding_mode="floor") % 2)
    return positions, signs.to(X.dtype).reshape(-1, *[1] * (X.ndim - 3 - axis))


#: Which positions of each axis belong to a window: a product of one set per axis.
Window = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Embedding:
    r"""A zero-padded convolution as the restriction of one on a torus to windows: :math:`T = P_{out} C P_{in}`."""

    form: Polyphase  #: the polyphase kernel, with at most as many rows as columns
    torus: Torus  #: the torus; functions change their sign across every seam
    rows: tuple[Window, ...]  #: the window of the rows, one per phase of that side
    columns: tuple[Window, ...]  #: the windows of the columns, one per phase

    @cached_property
    def numerators(self) -> np.ndarray:
        """Return one of each conjugate pair of frequencies."""
        return self.torus.numerators()

    @cached_property
    def multiplicities(self) -> np.ndarray:
        """Return how many frequencies each of them stands for: two, or one where it is its own conjugate."""
        return np.where(((2 * self.numerators) % (2 * np.array(self.torus.sizes)) == 0).all(1), 1, 2)

    def scaled(self, factor: float) -> Embedding:
        """Return the embedding of the convolution times a factor."""
        return replace(self, form=replace(self.form, taps=self.form.taps * factor))

    def outside(self, window: Window, origins: np.ndarray) -> np.ndarray:
        r"""Return the inner products of Fourier modes outside a window.

        :math:`\frac1m \sum_{p \notin W} e^{i (\theta_g - \theta_f) p}` for the frequencies f of the torus, one per row,
        and the given g, one per column.
        """
        inside = np.ones((len(self.numerators), len(origins)), dtype=np.complex128)
        for axis, (size, members) in enumerate(zip(self.torus.sizes, window, strict=True)):
            lags = (origins[None, :, axis] - self.numerators[:, None, axis]) % (2 * size)
            turns = np.outer(np.arange(2 * size), np.flatnonzero(members)) % (2 * size)
            inside *= (np.exp(1j * (np.pi / size) * turns).sum(1) / size)[lags]
        same = (self.numerators[:, None] == origins[None]).all(-1)
        return same - inside

    def within(self, modes: Tensor, windows: Sequence[Window]) -> Tensor:
        """Return the values, inside the windows of one side, of real functions given by their Fourier modes."""
        sizes, twists = self.torus.sizes, self.torus.twists
        channels, functions = modes.shape[1:]
        values = modes.new_zeros(*sizes, channels, functions)
        half = tuple(((self.numerators - twists) // 2).T)
        mirrored = tuple((((-self.numerators) % (2 * np.array(sizes)) - twists) // 2).T)
        values[mirrored] = modes.conj()
        values[half] = modes
        for axis, (size, twist) in enumerate(zip(sizes, twists, strict=True)):
            turns = np.outer(np.arange(size), np.arange(twist, 2 * size, 2)) % (2 * size)
            transform = torch.as_tensor(np.exp(1j * (np.pi * turns / size)) / math.sqrt(size), device=modes.device)
            values = torch.tensordot(transform, values, ([1], [axis])).movedim(0, axis)
        parts = []
        for window, part in zip(windows, values.real.chunk(len(windows), dim=-2), strict=True):
            mask = torch.ones(sizes, dtype=torch.bool)
            for axis, members in enumerate(window):
                mask &= torch.as_tensor(members).reshape([-1 if i == axis else 1 for i in range(len(sizes))])
            parts.append(part[mask.to(part.device)].reshape(-1, functions))
        return torch.cat(parts)


def zero_padding_embedding(weight: Tensor, axes: Sequence[Axis]) -> Embedding | None:
    """Return the embedding of a zero-padded convolution of one group; none where it is dilated.

    >>> found = zero_padding_embedding(torch.ones(1, 1, 3).double(), [Axis(4, 4, 3, 1, 1, 1)])
    >>> found.torus, found.rows[0][0].tolist(), found.columns[0][0].tolist()
    (Torus(sizes=(5,), twists=(1,)), [True, True, True, True, False], [False, True, True, True, True])
    """
    if any(a.dilation != 1 and a.reach > 0 for a in axes):
        return None
    form, torus = polyphase(weight, axes, 1), zero_padding_tori(axes)[-1]  # the last one has every twist
    outputs = (tuple(_outputs(a, m) for a, m in zip(axes, torus.sizes, strict=True)),)
    inputs = tuple(
        tuple(_inputs(a, m, r) for a, m, r in zip(axes, torus.sizes, phase, strict=True)) for phase in form.phases
    )
    if form.taps.shape[-2] <= form.taps.shape[-1]:
        return Embedding(form, torus, outputs, inputs)
    # The adjoint convolves with the transposed taps at opposite offsets: positions are mirrored instead.
    adjoint = Polyphase(form.offsets, form.taps.mT.contiguous(), form.phases)
    return Embedding(adjoint, torus, _mirrored(inputs), _mirrored(outputs))


def _outputs(axis: Axis, size: int) -> np.ndarray:
    """Return a mask of the outputs that read at least one input; the others are zero."""
    members = np.zeros(size, dtype=bool)
    first = max(0, -(-(axis.padding - axis.reach) // axis.stride))
    last = min(axis.output_size - 1, (axis.size - 1 + axis.padding) // axis.stride)
    members[np.arange(first, last + 1) % size] = True
    return members


def _inputs(axis: Axis, size: int, phase: int) -> np.ndarray:
    """Return a mask of the inputs of one phase."""
    members = np.zeros(size, dtype=bool)
    shifted = np.arange(axis.size) + axis.padding - phase
    members[shifted[shifted % axis.stride == 0] // axis.stride % size] = True
    return members


def _mirrored(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """Return the windows with position p moved to -p."""
    return tuple(tuple(np.roll(members[::-1], 1) for members in window) for window in windows)
