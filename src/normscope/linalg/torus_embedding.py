r"""A zero-padded convolution as what a window sees of a convolution on a torus: :math:`T = P_{out} C P_{in}`.

The smallest torus of :mod:`normscope.linalg.torus`, with the positions that count on either side kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from normscope.linalg.convolution_geometry import Axis
from normscope.linalg.torus import Polyphase, Torus, frequencies, polyphase

#: Which positions of each axis belong to a window: a product of one set per axis.
Window = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Embedding:
    """A convolution on a torus with the windows between which it is a zero-padded one."""

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
        r"""Return what the Fourier modes at some frequencies have in common outside a window.

        :math:`\frac1m \sum_{p \notin W} e^{i (\theta_g - \theta_f) p}` for the frequencies f of the torus, one a row,
        and the given g, one a column.
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
    form = polyphase(weight, axes, 1)
    # A one-tap axis has a constant symbol: one place of it stands for all.
    flat = [a.reach == 0 for a in axes]
    sizes = tuple(1 if f else frequencies(a) for f, a in zip(flat, axes, strict=True))
    outputs = (tuple(_outputs(a, m) for a, m in zip(axes, sizes, strict=True)),)
    inputs = tuple(tuple(_inputs(a, m, r) for a, m, r in zip(axes, sizes, phase, strict=True)) for phase in form.phases)
    torus = Torus(sizes, tuple(int(not f) for f in flat))
    if form.taps.shape[-2] <= form.taps.shape[-1]:
        return Embedding(form, torus, outputs, inputs)
    # The adjoint convolves with the transposed taps at opposite offsets: positions are mirrored instead.
    adjoint = Polyphase(form.offsets, form.taps.mT.contiguous(), form.phases)
    return Embedding(adjoint, torus, _mirrored(inputs), _mirrored(outputs))


def _outputs(axis: Axis, size: int) -> np.ndarray:
    """Return the positions of the outputs that read an input at all, the others being zero."""
    members = np.zeros(size, dtype=bool)
    first = max(0, -(-(axis.padding - axis.reach) // axis.stride))
    last = min(axis.output_size - 1, (axis.size - 1 + axis.padding) // axis.stride)
    members[np.arange(first, last + 1) % size] = True
    return members


def _inputs(axis: Axis, size: int, phase: int) -> np.ndarray:
    """Return the positions of the inputs of one phase."""
    members = np.zeros(size, dtype=bool)
    shifted = np.arange(axis.size) + axis.padding - phase
    members[shifted[shifted % axis.stride == 0] // axis.stride % size] = True
    return members


def _mirrored(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """Return the windows with position p moved to -p."""
    return tuple(tuple(np.roll(members[::-1], 1) for members in window) for window in windows)
