r"""Zero-padded convolutions embedded in a cylinder: one axis is kept, the others are closed to a twisted torus.

A Fourier transform along the torus decomposes the map into one zero-padded convolution on a line per frequency, with
complex matrices as taps. Its Gram matrix is block banded, and a successful Cholesky factorisation bounds its norm. Only
the axes of the torus are relaxed, so the excess is about half that of the torus in all axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_factor, cholesky_margin
from normscope.linalg.convolution_geometry import CONVOLUTIONS, TRANSPOSED, Axis
from normscope.linalg.convolution_on_line import LineGram, LineSide
from normscope.linalg.convolution_on_torus import (
    CHUNK_NUMBERS,
    PHASE_ERROR,
    Polyphase,
    Torus,
    folded,
    frequencies,
    polyphase,
    symbol_angles,
    symbols,
    wrapped,
    zero_padding_tori,
)
from normscope.linalg.matrix_rounding import gamma
from normscope.operators.linear_map import LinearMap

#: How far above the guess a factorisation is tried, relative to the squared norm.
RAISES = (0.0, 6e-4, 2e-3, 6e-3)


@dataclass(frozen=True)
class Cylinder:
    """A convolution with one axis kept and the others closed to a torus."""

    axis: int  #: the number of the axis kept
    line: Axis  #: its geometry
    torus: Torus  #: the torus of the other axes, in their order
    #: the kernel, its taps along the line in the place of groups: ``(offsets, line taps, rows, columns)``
    form: Polyphase

    @cached_property
    def positions(self) -> LineSide:
        """Return the side of the line on which the Gram matrix is the smaller one."""
        rows, columns = self.form.taps.shape[-2:]
        return LineSide(self.line, bool(rows * self.line.output_size <= columns * self.line.size))

    @property
    def side(self) -> int:
        """Return the side of one block."""
        return int(self.form.taps.shape[-2 if self.positions.of_outputs else -1])

    @property
    def multiplications(self) -> float:
        """Estimate the number of real multiplications of the factorisations of all frequencies."""
        b = self.positions.reach
        each = self.positions.places * float(self.side) ** 3 * (1 / 6 + b / 2 + b * (b + 1) / 2)
        return 4.0 * each * (math.prod(self.torus.sizes) / 2 + 1)

    def gram(self, numerators: np.ndarray) -> LineGram:
        """Return the Gram matrix at one frequency of the torus."""
        (taps,) = symbols(self.form.taps, self.form.offsets, self.torus, numerators[None])
        return LineGram.of(taps, self.positions)


def zero_padding_cylinders(weight: Tensor, axes: Sequence[Axis]) -> list[Cylinder]:
    """Return the cylinders that hold a zero-padded convolution of one group: every axis kept, every choice of twists.

    Returns:
        The cylinders; none where there is but one axis, or nothing to relax.

    >>> axes = [Axis(8, 8, 3, 1, 1, 1), Axis(6, 6, 3, 1, 1, 1)]
    >>> [(c.axis, c.torus.sizes) for c in zero_padding_cylinders(torch.ones(1, 1, 3, 3), axes)]
    [(0, (7,)), (0, (7,)), (1, (9,)), (1, (9,))]
    """
    found = []
    for kept, line in enumerate(axes):
        others = [a for i, a in enumerate(axes) if i != kept]
        if all(a.reach == 0 for a in others):
            continue
        taps = weight.movedim(2 + kept, 0)
        form = polyphase(taps.flatten(0, 1), others, line.kernel)
        found += [Cylinder(kept, line, torus, form) for torus in zero_padding_tori(others)]
    return found


def closed_is_definite(gram: LineGram, tau: float) -> bool:
    r"""Return whether :math:`\tau I - G(\theta)` is definite at every frequency of the line closed to a circle, too.

    That is the torus in all axes, at one frequency of the others: looser than the line, and much cheaper. One twist is
    enough. It is not tried with a stride on the inputs or a dilation, where the Gram matrix does not have one symbol.
    """
    line, inner = gram.positions.line, gram.inner
    if line.dilation != 1 or (line.stride != 1 and not gram.positions.of_outputs):
        return False
    shifted = tau * torch.eye(gram.side, dtype=torch.complex128, device=inner[0].device) - inner[0]
    # Hermitian parts, each with a real factor: cos for the even ones, sin for the odd ones.
    parts = torch.stack([shifted, *(-(E + E.mH) for E in inner[1:]), *(-1j * (E - E.mH) for E in inner[1:])])
    size, lags = frequencies(line), np.arange(1, len(inner))[:, None]
    return any(_all_definite(parts, Torus((size,), (twist,)), lags) for twist in (0, 1))


def _all_definite(parts: Tensor, circle: Torus, lags: np.ndarray) -> bool:
    r"""Return whether Cholesky of :math:`\tau I - G(\theta)` succeeds at all frequencies of a circle."""
    (size,), (twist,) = circle.sizes, circle.twists
    every = np.arange(twist, 2 * size, 2)[:, None]
    side = parts.shape[-1]
    step = max(1, CHUNK_NUMBERS // side**2)
    for start in range(0, size, step):
        phase = symbol_angles(circle, every[start : start + step], lags)
        factors = np.concatenate([np.ones((len(phase), 1)), phase.real, phase.imag], axis=1)
        real = torch.as_tensor(factors, device=parts.device) @ torch.view_as_real(parts).flatten(1)
        if cholesky_factor(torch.view_as_complex(real.reshape(len(phase), side, side, 2))) is None:
            return False
    return True


def cylinder_error(cylinder: Cylinder) -> float:
    r"""Return a bound on the error in norm of the Gram matrix on the line, or on the circle.

    Every entry sums products of two weights and their phases: over the rows or columns, the taps along the torus and
    the pairs along the line. The matrix of absolute values has norm at most :math:`(\sum_a \|W_a\|_F)^2` over all taps.
    """
    taps = cylinder.form.taps
    count = taps.shape[0] * taps.shape[1]
    roundings = gamma(max(taps.shape[-2:]) + count * count + 2 * count + 8, complex_arithmetic=True)
    absolute = float(torch.linalg.matrix_norm(taps).sum()) ** 2 * (1.0 + 1e-9)
    return absolute * (2.0 * roundings + 4.0 * PHASE_ERROR)


@statement("normscope", "Cylinder", holds="zero padding, IEEE arithmetic, no underflow")
def cylinder_bound(cylinder: Cylinder, guess: float) -> float:
    r"""Return a certified upper bound on the **squared** norm of a zero-padded convolution, or infinity.

    :math:`\|T\|^2 \le \max_\omega \lambda_{\max}(G_\omega)`, :math:`G_\omega` the Gram matrix on the line at the
    frequency :math:`\omega` of the torus. A factorisation of :math:`\tau I - G_\omega` that succeeds proves
    :math:`\lambda_{\max}(G_\omega) \le \tau + c + e`, with its margin c and the error e of the Gram matrix.

    Args:
        cylinder: one of :func:`zero_padding_cylinders`.
        guess: where :math:`\tau` begins; the closer above the result, the tighter the bound.

    >>> kernel = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64).outer(torch.tensor([1.0, 1.0]).double())
    >>> axes = [Axis(7, 7, 3, 1, 1, 1), Axis(5, 4, 2, 1, 1, 0)]
    >>> exact = (2 + 2 * math.cos(math.pi / 8)) * 2 * math.cos(math.pi / 10)
    >>> bounds = [cylinder_bound(c, exact**2 * 1.05) for c in zero_padding_cylinders(kernel[None, None], axes)]
    >>> min(bounds) >= exact**2
    True
    """
    error, level, certified = cylinder_error(cylinder), 0, 0.0
    side, places, reach = cylinder.side, cylinder.positions.places, cylinder.positions.reach
    for numerators in cylinder.torus.numerators():
        gram = cylinder.gram(numerators)
        trace = gram.trace
        while level < len(RAISES):
            tau = guess * (1.0 + RAISES[level])
            if not tau > 0.0:
                return math.inf
            if closed_is_definite(gram, tau) or gram.is_definite(tau):
                break
            level += 1
        else:
            return math.inf
        # The margin of the line covers that of one frequency of the circle: fewer terms, a smaller trace.
        shifted = (max(0.0, tau * places * side - trace) + tau * side) * (1.0 + 1e-9)
        margin = cholesky_margin((reach + 1) * side + 2, shifted, complex_arithmetic=True)
        certified = max(certified, (tau + margin + error) * (1.0 + 2.0**-48))
    return certified


def cylinder_map(cylinder: Cylinder, dtype: torch.dtype = torch.float32) -> LinearMap:
    """Return the convolution on the cylinder as a linear map, for estimates.

    >>> axes = [Axis(2, 2, 1, 1, 1, 0), Axis(3, 3, 3, 1, 1, 1)]
    >>> kernel = torch.tensor([[[[1.0, 2.0, 1.0]]]])
    >>> cylinder_map(zero_padding_cylinders(kernel, axes)[1]).matrix()[3].tolist()
    [-2.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """
    line, kernel = cylinder.line, cylinder.form.kernel().to(dtype)
    reach = [size - 1 for size in kernel.shape[3:]]
    convolution, transposed = CONVOLUTIONS[1 + len(reach)], TRANSPOSED[1 + len(reach)]
    stride, dilation = (line.stride, *[1] * len(reach)), (line.dilation, *[1] * len(reach))
    pads = [0, 0] * len(reach) + [line.padding, line.right_padding]
    sizes, none = cylinder.torus.sizes, [0] * len(reach)

    def apply(X: Tensor) -> Tensor:
        # The line last for the wrapping, first for the convolution.
        closed = wrapped(X.movedim(2, -1), cylinder.torus, none, reach).movedim(-1, 2)
        return convolution(functional.pad(closed, pads), kernel, None, stride, 0, dilation)

    def adjoint(Y: Tensor) -> Tensor:
        closed = transposed(Y, kernel, None, stride, 0, 0, 1, dilation)
        inside = functional.pad(closed, [-p for p in pads]).movedim(2, -1)
        return folded(inside, cylinder.torus, none, reach).movedim(-1, 2)

    domain, image = (kernel.shape[1], line.size, *sizes), (len(kernel), line.output_size, *sizes)
    return LinearMap.of_batches(apply, adjoint, domain, image, kernel)
