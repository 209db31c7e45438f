"""Search for multipliers of a system with uncertain slopes; the proof is in :mod:`.feedback`, rounding included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.linalg.lapack import spotrf
from torch import Tensor

#: An array of float32 or float64.
Array = np.ndarray[Any, Any]
#: Relative distance below the largest eigenvalue within which others count in a search, until its last third.
SMOOTH = 0.02
#: Most that the logarithms of multipliers lie apart: beyond it only rounding grows.
SPREAD = 18.0
#: How far steps by gradients move a logarithm at most, in a search and where its result is refined.
RATE, FINE_RATE = 0.25, 0.05
#: Overflow gives infinities, from which no bound follows.
quiet = np.errstate(all="ignore")
#: Relative weight below which an eigenvector is left out.
NOTHING = 1e-9


@dataclass(frozen=True)
class BindingPoint:
    """The bound that multipliers give, and the vectors at which it is attained."""

    value: float  #: the bound
    y: Array  #: outputs, one column for each eigenvalue that counts
    w: Array  #: what the units return there


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    r"""The form :math:`\sum_j T_j ((w_j - c_j q_j)^2 - \rho_j^2 q_j^2) - |p|^2` over (y, w), q = B y + N w.

    >>> one = np.ones((1, 1))
    >>> form = QuadraticForm(np.ones((2, 2)), 1, one, 0 * one, np.zeros(1), np.ones(1) / 2)
    >>> round(form.peak(np.array([2.0]), 0.02).value, 4)  # y + w with |w| <= |y| / 2
    1.5811
    """

    gram: Array  #: of the rows of p over (y, w)
    size: int  #: number of entries of y
    B: Array  #: (m, size)
    N: Array  #: (m, m), strictly upper triangular
    centre: Array  #: (m,), c
    radius: Array  #: (m,), :math:`\rho`

    @cached_property
    def _buffer(self) -> Array:
        return np.empty_like(self.N)

    @cached_property
    def _curved(self) -> Array | None:
        """Return the weights of the squares of q, or ``None`` for sectors [0, s], where they cancel."""
        found = self.centre**2 - self.radius**2
        return found if found.any() else None

    @quiet
    def blocks(self, T: Array, out: Array | None = None) -> tuple[Array, Array, Array]:
        """Return the blocks (ww, wy, yy); of the first only the upper triangle counts.

        Args:
            T: the multipliers.
            out: where to write the first.
        """
        c, TC = self.size, -(T * self.centre)[:, None]
        ww = np.multiply(TC, self.N, out=out)
        ww -= self.gram[c:, c:]
        ww.ravel()[:: len(T) + 1] += T
        wy, yy = TC * self.B - self.gram[c:, :c], -self.gram[:c, :c]
        if self._curved is not None:
            weight = (T * self._curved)[:, None]
            weighted = weight * self.N
            ww += self.N.T @ weighted
            wy += weighted.T @ self.B
            yy += self.B.T @ (weight * self.B)
        return ww, wy, yy

    @quiet
    def peak(self, T: Array, smooth: float) -> BindingPoint | None:
        """Return the bound at multipliers, or ``None`` where there is none.

        Args:
            T: the multipliers.
            smooth: distance from the largest eigenvalue within which others count, relative to it.
        """
        ww, wy, yy = self.blocks(T, self._buffer)
        factor = _factor(ww)
        if factor is None:
            return None
        half = torch.linalg.solve_triangular(factor, torch.from_numpy(wy), upper=False)
        S = half.T @ half - torch.from_numpy(yy)
        if not math.isfinite(float(S.sum())):
            return None
        found = torch.linalg.eigh(S)
        values, vectors = found[0].numpy(), found[1].numpy()
        top = float(values[-1])
        if top <= 1e-290:  # nothing reaches the output
            return BindingPoint(1e-145, np.zeros_like(vectors), np.zeros_like(wy))
        # Weights on the largest few eigenvalues instead of the first one: the search does not zigzag between them.
        weights = np.exp((values - top) / (smooth * top))
        kept = weights > NOTHING
        y = vectors[:, kept] * np.sqrt(weights[kept] / weights.sum())
        through = torch.linalg.solve_triangular(factor.T, half @ torch.from_numpy(y), upper=True)
        return BindingPoint(math.sqrt(top), y, -through.numpy())

    @quiet
    def step(self, T: Array, smooth: float) -> tuple[float, Array, Array] | None:
        r"""Return the bound at T and per unit the mean of :math:`(w - c q)^2` and of :math:`\rho^2 q^2` there."""
        peak = self.peak(T, smooth)
        if peak is None:
            return None
        q = self.B @ peak.y + (torch.from_numpy(self.N) @ torch.from_numpy(peak.w)).numpy()
        free = peak.w - self.centre[:, None] * q
        return peak.value, np.einsum("ij,ij->i", free, free), self.radius**2 * np.einsum("ij,ij->i", q, q)


def _factor(form: Array) -> Tensor | None:
    """Return the lower factor of a form given by its upper triangle, or ``None`` if it is not definite.

    In single precision by the routine of scipy, which writes over the form: it takes half the time on some processors.
    """
    if form.dtype == np.float32:
        found, failed = spotrf(form.T, lower=1, clean=0, overwrite_a=1)
        return None if failed else torch.from_numpy(found)
    factor, info = torch.linalg.cholesky_ex(torch.from_numpy(form).T)
    return None if int(info) else factor


@quiet
def search(form: QuadraticForm, first: Array, steps: int, *, refine: bool = False) -> tuple[Array, float] | None:
    """Return multipliers (one per unit) and the bound they give, not proved yet.

    Args:
        form: of the system.
        first: multipliers to start from.
        steps: most to try.
        refine: whether the first multipliers are good ones: small steps by gradients alone.
    """
    log = np.log(first)
    best: Array | None = None
    level, damping = math.inf, 0.9
    momentum, squares = np.zeros_like(log), np.zeros_like(log)
    fixed, rate = (0, FINE_RATE) if refine else (max(1, (2 * steps) // 5), RATE)
    adam = 0
    rise, tiny = 4 * np.linspace(0.0, 1.0, len(log), dtype=log.dtype), float(np.finfo(log.dtype).tiny)
    for step in range(steps):
        if step == fixed and best is not None:
            log = np.log(best)
        log = np.maximum(log, log.max() - SPREAD)
        T = np.exp(log)
        late = min(1.0, 3 * (1 - step / steps))  # falls to zero over the last third
        tangent = form.step(T, SMOOTH * max(late, 0.02))
        if tangent is None:  # not a bound: go back towards the best
            if best is None:
                if step == 8:
                    break
                log = log + rise
                continue
            log, damping = (log + np.log(best)) / 2, 0.8 * damping
            momentum[:] = 0.0
            continue
        value, free, bound = tangent
        if value < level:
            level, best = value, T
        free, bound = free * T, bound * T  # each in its own unit: its scale does not matter
        if step < fixed:
            floor = 1e-12 * (free.mean() + bound.mean()) + tiny
            log = log + 0.5 * damping * np.clip(np.log((free + floor) / (bound + floor)), -3, 3)
        else:
            adam += 1
            slope = (bound - free) / value**2
            momentum = 0.8 * momentum + 0.2 * slope
            squares = 0.95 * squares + 0.05 * slope**2
            moved = rate * damping * late**2
            log = log - moved * (momentum / (1 - 0.8**adam)) / (np.sqrt(squares / (1 - 0.95**adam)) + 1e-8)
    return None if best is None else (best, level)
