r"""Upper bounds on zero-padded convolutions by inertia: singular values of a torus that the zero padding removes.

On a torus C the zero-padded convolution is :math:`T = P_{out} C P_{in}`, and :math:`\|T\| \le \tau` says that
:math:`H = \begin{pmatrix} \tau I & C \\ C^* & \tau I \end{pmatrix}` is non-negative on the window W, the pairs of
functions that vanish outside :math:`P_{out}` and :math:`P_{in}`. H itself has one negative eigenvalue for every
singular value of C above :math:`\tau`, k of them. Where k independent directions are found on which H is negative and
which H maps out of the window, no negative direction is left for the window.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_factor, cholesky_margin
from normscope.linalg.convolution_on_torus import PHASE_ERROR, Embedding, Window, gram_error, symbol_grams, symbols
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma

#: The most complex numbers the symbols may hold, and the most the directions may (each a quarter of a GiB).
MOST_NUMBERS = 2**24
#: Modes tried for every direction that is needed, and in addition, on the first and the second attempt: those just
#: below the level must be kept out of the directions.
TRIALS = ((2, 40), (4, 128))
#: Eigenvectors sought per frequency, on the first and the second attempt.
BREADTHS = (8, 24)
#: Eigenvalues below this part of the squared level are damped when eigenvectors are sought.
DAMPED_UP_TO = 0.88
#: Rounds of the filter that finds them, and its degree.
ROUNDS, DEGREE = 2, 10
#: Squared length, relative to the longest, below which a combination of modes is rounding.
SAME_DIRECTION = 1e-5
#: How far, relatively, the level may be moved into a gap between singular values.
GAP_WITHIN = 2e-4


@dataclass(frozen=True)
class SingularValuesAbove:
    r"""The symbols of a torus and what is known of their singular values above a level."""

    embedding: Embedding  #: the torus and its windows
    symbol: Tensor  #: :math:`S_f`, one per frequency
    level: float  #: :math:`\tau`; all other attributes are about it
    count: int  #: k, at most so many singular values of the torus are above the level: proved
    values: Tensor  #: squares of the largest singular values of each frequency, estimated, ascending
    vectors: Tensor  #: their left singular vectors, estimated
    factor: Tensor  #: Cholesky factors of :math:`\tau^2 I - S S^H + N N^H`
    deflation: Tensor  #: the N, which lift what is above the level


@statement("normscope", "Torus inertia", holds="zero padding, no dilation, IEEE arithmetic, no underflow")
def inertia_bound(embedding: Embedding, level: float, *, seed: int = 0) -> float:
    r"""Return a certified upper bound on the norm of a zero-padded convolution, close above a level, or infinity.

    Let k bound the number of singular values of C above :math:`\tau`, let the k columns of Z be such that
    :math:`A = -Z^* H Z` is positive definite, and let R be the part of HZ inside the window. Then

    .. math:: \|T\| \le \tau + \|R\|^2 / \lambda_{\min}(A).

    Nothing depends on how Z was found; here it is :math:`H^{-1} Y`, with Y the modes around the level, cut to what
    lies outside the window, and of their span the directions on which :math:`H^{-1}` is negative.

    Args:
        embedding: the torus and its windows.
        level: the positive number that the norm is to be proved not to exceed.
        seed: of the random vectors from which eigenvectors are sought.

    Returns:
        The bound, never a number below the norm; infinity where too few directions were found.

    >>> from normscope.linalg.convolution_geometry import Axis
    >>> from normscope.linalg.convolution_on_torus import zero_padding_embedding
    >>> kernel = torch.tensor([[[1.0, 3.0, 2.0]]], dtype=torch.float64)
    >>> embedding = zero_padding_embedding(kernel, [Axis(4, 4, 3, 1, 1, 1)])
    >>> matrix = torch.tensor([[3.0, 2, 0, 0], [1, 3, 2, 0], [0, 1, 3, 2], [0, 0, 1, 3]], dtype=torch.float64)
    >>> norm = float(torch.linalg.matrix_norm(matrix, 2))
    >>> norm <= inertia_bound(embedding, 1.001 * norm) < 1.0015 * norm, inertia_bound(embedding, 0.999 * norm)
    (True, inf)
    """
    numbers = len(embedding.numerators) * math.prod(embedding.form.taps.shape[-2:])
    if not 0.0 < level < math.inf or numbers > MOST_NUMBERS:
        return math.inf
    # The search is in single precision: an exact power of two brings every kernel to a suitable size.
    exponent = math.frexp(level)[1]
    if not -900 < exponent < 900:
        return math.inf
    try:
        found = _unit_bound(embedding.scaled(2.0**-exponent), level * 2.0**-exponent, seed)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # nothing has been claimed yet
        return math.inf
    return found * 2.0**exponent


def _unit_bound(embedding: Embedding, level: float, seed: int) -> float:
    """Return the bound for a level about one."""
    excess = count_above(embedding, level, seed)
    if excess is None:
        return math.inf
    rounding = symbol_error(embedding)
    if excess.count == 0:
        return (excess.level + rounding) * (1.0 + 4 * UNIT_ROUNDOFF)
    for each, more in TRIALS:
        directions = negative_directions(excess, each * excess.count + more)
        left = math.inf if directions is None else remainder(excess, *directions)
        if left < math.inf:
            return (excess.level + left + rounding) * (1.0 + 8 * UNIT_ROUNDOFF)
    return math.inf


def symbol_error(embedding: Embedding) -> float:
    """Return a bound on the error in norm, Frobenius norm too, of a computed symbol."""
    taps = len(embedding.form.offsets)
    return math.sqrt(float(embedding.form.absolute_sum)) * (gamma(taps + 8) + 2.0 * PHASE_ERROR)


def count_above(embedding: Embedding, level: float, seed: int) -> SingularValuesAbove | None:
    r"""Return how many singular values of the torus are above a level, proved from above; none where that fails.

    Estimated eigenvectors N of every :math:`S S^H` are lifted; a Cholesky factorisation of
    :math:`\tau^2 I - S S^H + N N^H` that succeeds proves that no more than the columns of N are above :math:`\tau`.
    The level is moved up a little, into a gap, and by what rounding takes.
    """
    form, torus = embedding.form, embedding.torus
    symbol = symbols(form.taps[:, 0], form.offsets, torus, embedding.numerators)
    grams = torch.cat([part[:, 0] for part in symbol_grams(form, torus)])
    own = torch.as_tensor(embedding.multiplicities == 1)
    for tensor in (symbol, grams):  # real there, up to the error of the phases
        tensor[own] = tensor[own].real.to(tensor.dtype)
    side = grams.shape[-1]
    for breadth in BREADTHS:
        values, vectors = leading_eigenpairs(grams, own, level**2, min(breadth, side), seed)
        square = _in_a_gap(values, level**2)
        above = values > square
        if breadth >= side or not bool(above.all(1).any()):
            break
    else:
        return None
    lifts = torch.where(above, values - (1.0 - 0.1) * square, torch.zeros_like(values))
    deflation = vectors * lifts.sqrt().unsqueeze(1)
    lifted = grams.baddbmm_(deflation, deflation.mH, beta=-1)
    lifted.diagonal(dim1=-2, dim2=-1).add_(square)
    factor = cholesky_factor(lifted)
    if factor is None:
        return None
    traces = lifted.diagonal(dim1=-2, dim2=-1).real.sum(-1).clamp_min(0.0)
    margin = cholesky_margin(side, float(traces.max()) * (1.0 + 1e-9), complex_arithmetic=True)
    absolute, error = float(form.absolute_sum), symbol_error(embedding)
    lifted_square = float(deflation.abs().square().sum((1, 2)).max())
    forming = gamma(above.shape[1] + 8, complex_arithmetic=True) * (lifted_square + absolute + square * side)
    grams_error = float(gram_error(form)) + 2.0 * math.sqrt(absolute) * error + error * error
    proved = math.sqrt(square + margin + forming + grams_error) * (1.0 + 4 * UNIT_ROUNDOFF)
    count = int((above.sum(1).cpu() * torch.as_tensor(embedding.multiplicities)).sum())
    return SingularValuesAbove(embedding, symbol, proved, count, values, vectors, factor, deflation)


def leading_eigenpairs(grams: Tensor, own: Tensor, square: float, breadth: int, seed: int) -> tuple[Tensor, Tensor]:
    r"""Return estimates of the largest eigenvalues, ascending, and eigenvectors of Hermitian matrices.

    A block of vectors per matrix, filtered by Chebyshev polynomials of the matrix that are small on
    :math:`[0, 0.88\,\tau^2]`, in single precision; then the best in their span, in double.
    """
    count, side = grams.shape[:2]
    single = grams.to(torch.complex64)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(count, side, breadth, generator=generator).to(grams.device)
    # Real vectors do for complex matrices too, and stay real where the matrix is.
    block = start.to(torch.complex64)
    middle = 0.5 * DAMPED_UP_TO * square
    for _ in range(ROUNDS):
        previous, block = block, torch.baddbmm(block, single, block, beta=-1, alpha=1 / middle)
        for _ in range(DEGREE - 1):
            following = torch.baddbmm(previous + 2 * block, single, block, beta=-1, alpha=2 / middle)
            scale = 1.0 / following.abs().amax().clamp_min(1e-30)
            previous, block = block * scale, following * scale
        block = torch.linalg.qr(block).Q
    basis = torch.linalg.qr(block.to(grams.dtype)).Q
    values, mixing = torch.linalg.eigh(basis.mH @ (grams @ basis))
    vectors = basis @ mixing
    vectors[own] = vectors[own].real.to(vectors.dtype)
    return values, vectors


def _in_a_gap(values: Tensor, square: float) -> float:
    """Return a number slightly above a square, in the middle of the widest gap between the values."""
    top = square * (1.0 + 2.0 * GAP_WITHIN)
    near = values[(values > square) & (values < top)].sort().values.cpu()
    edges = torch.cat([near.new_tensor([square]), near, near.new_tensor([top])])
    widths = edges.diff()
    best = int(widths.argmax())
    return float(edges[best] + 0.5 * widths[best])


def negative_directions(excess: SingularValuesAbove, trials: int) -> tuple[Tensor, Tensor] | None:
    r"""Return k directions on which H is negative and which it maps out of the window, in single precision.

    The modes around the level, cut to what lies outside the window, span a space Y; on it
    :math:`Y^* H^{-1} Y` has as many negative eigenvalues as are needed, or the search has failed.

    Returns:
        The Fourier modes of :math:`Z = H^{-1} Y`, on the rows and on the columns, ``(frequencies, channels, k)``.
    """
    embedding = excess.embedding
    frequency, rows, columns = _trial_modes(excess, trials)
    numbers = len(embedding.numerators) * (rows.shape[1] + columns.shape[1]) * 2 * len(frequency)
    if numbers > MOST_NUMBERS:
        return None
    origins = embedding.numerators[frequency]
    own = embedding.multiplicities[frequency] == 1
    upper = _cut(embedding, rows, embedding.rows, origins, own)
    lower = _cut(embedding, columns, embedding.columns, origins, own)
    solved_upper, solved_lower = _solved(excess, upper, lower)
    weights = torch.as_tensor(embedding.multiplicities, dtype=torch.float32, device=upper.device).sqrt()
    cut, solved = _stacked(weights, upper, lower), _stacked(weights, solved_upper, solved_lower)
    inverse, lengths = (cut.mT @ solved).double(), (cut.mT @ cut).double()
    squares, axes = torch.linalg.eigh(lengths)
    independent = squares > SAME_DIRECTION * squares[-1]
    basis = axes[:, independent] / squares[independent].sqrt()
    values, mixing = torch.linalg.eigh(basis.mT @ (0.5 * (inverse + inverse.mT)) @ basis)
    values, mixing = values[: excess.count], mixing[:, : excess.count]
    if len(values) < excess.count or not bool(values[-1] < 0.0):
        return None
    mixed = (basis @ (mixing / (-values).sqrt())).to(upper.dtype)
    real = torch.as_tensor(embedding.multiplicities == 1)
    directions = [(modes @ mixed).to(torch.complex128) for modes in (solved_upper, solved_lower)]
    for modes in directions:
        if not bool(torch.view_as_real(modes).isfinite().all()):
            return None
        modes[real] = modes[real].real.to(modes.dtype)
    return directions[0], directions[1]


def _trial_modes(excess: SingularValuesAbove, trials: int) -> tuple[np.ndarray, Tensor, Tensor]:
    """Return the largest singular triples of the torus: frequency, and both vectors in single precision."""
    weights = torch.as_tensor(excess.embedding.multiplicities).unsqueeze(1).expand(excess.values.shape)
    order = excess.values.cpu().flatten().argsort(descending=True)
    reached = weights.flatten()[order].cumsum(0)
    wanted = int((reached < trials).sum()) + 1
    chosen = order[:wanted].to(excess.values.device)
    frequency, place = chosen // excess.values.shape[1], chosen % excess.values.shape[1]
    left = excess.vectors[frequency, :, place]
    sigma = excess.values[frequency, place].clamp_min(1e-300).sqrt()
    right = torch.empty(len(chosen), excess.symbol.shape[-1], dtype=left.dtype, device=left.device)
    for f in frequency.unique():
        members = frequency == f
        right[members] = -(left[members] @ excess.symbol[f].conj()) / sigma[members].unsqueeze(1)
    return frequency.cpu().numpy(), left.to(torch.complex64), right.to(torch.complex64)


def _cut(
    embedding: Embedding, modes: Tensor, windows: tuple[Window, ...], origins: np.ndarray, own: np.ndarray
) -> Tensor:
    """Return real functions made of one mode and its conjugate, cut to what lies outside the windows of a side.

    Each mode gives two, with its real and its imaginary part; a mode that is its own conjugate gives one.
    """
    double = 2 * np.array(embedding.torus.sizes)
    parts = []
    for window, part in zip(windows, modes.chunk(len(windows), dim=1), strict=True):
        direct = torch.as_tensor(embedding.outside(window, origins)).to(modes)[:, None]
        mirrored = torch.as_tensor(embedding.outside(window, (-origins) % double)).to(modes)[:, None]
        along, against = part.mT * direct, part.mT.conj() * mirrored
        parts.append(torch.cat([along + against, 1j * (along - against)[..., torch.as_tensor(~own)]], dim=-1))
    return torch.cat(parts, dim=1)


def _solved(excess: SingularValuesAbove, upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`H^{-1}` applied to pairs of modes, in single precision.

    :math:`z_o = (\tau^2 - S S^H)^{-1} (\tau y_o - S y_i)` and :math:`z_i = (y_i - S^H z_o) / \tau`; the inverse comes
    from the lifted factor by the formula of Woodbury.
    """
    tau = excess.level
    symbol, factor = excess.symbol.to(upper.dtype), excess.factor.to(upper.dtype)
    lifts = excess.deflation.to(upper.dtype)
    solved = torch.cholesky_solve(torch.baddbmm(upper, symbol, lower, beta=tau, alpha=-1), factor)
    inverse_lifts = torch.cholesky_solve(lifts, factor)
    small = torch.eye(lifts.shape[-1], dtype=upper.dtype, device=upper.device) - lifts.mH @ inverse_lifts
    solved = torch.baddbmm(solved, inverse_lifts, torch.linalg.solve(small, lifts.mH @ solved))
    return solved, torch.baddbmm(lower, symbol.mH, solved, beta=1 / tau, alpha=-1 / tau)


def _stacked(weights: Tensor, *modes: Tensor) -> Tensor:
    """Return modes as real columns with the same inner products as the functions they represent."""
    every = torch.cat([m * weights.to(m.device)[:, None, None] for m in modes], dim=1)
    return torch.cat([every.real, every.imag]).flatten(0, 1)


def smallest_eigenvalue(matrix: Tensor) -> float:
    """Return a certified lower bound, about half, of a positive smallest eigenvalue; minus infinity if not positive.

    >>> 1.0 < smallest_eigenvalue(torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))) < 3.0
    True
    """
    shift = 0.5 * float(torch.linalg.eigvalsh(matrix)[0])
    shifted = matrix - shift * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    if shift <= 0.0 or cholesky_factor(shifted) is None:
        return -math.inf
    return shift - cholesky_margin(len(matrix), float(shifted.diagonal().sum()) * (1.0 + 1e-9))


def remainder(excess: SingularValuesAbove, upper: Tensor, lower: Tensor) -> float:
    r"""Return :math:`\|R\|_F^2 / \lambda_{\min}(A)` from above, rounding included; infinity where A is not definite."""
    embedding, tau, symbol = excess.embedding, excess.level, excess.symbol
    if upper.shape[-1] < excess.count:
        return math.inf
    image_upper = torch.baddbmm(upper, symbol, lower, beta=tau)
    image_lower = torch.baddbmm(lower, symbol.mH, upper, beta=tau)
    weights = torch.as_tensor(embedding.multiplicities, dtype=torch.float64, device=upper.device).sqrt()
    directions, images = _stacked(weights, upper, lower), _stacked(weights, image_upper, image_lower)
    energy = -(directions.mT @ images)
    length = float(torch.linalg.matrix_norm(directions)) * (1.0 + 1e-9)
    image_length = float(torch.linalg.matrix_norm(images)) * (1.0 + 1e-9)
    # Of one application: the matrix of absolute values has norm at most tau plus the Frobenius norm of a symbol.
    absolute = tau + math.sqrt(float(embedding.form.absolute_sum))
    applied = gamma(sum(symbol.shape[1:]) + 8, complex_arithmetic=True) * absolute * length
    # Only one triangle is read: the matrix meant has its errors twice off the diagonal.
    energy_error = math.sqrt(2.0) * (gamma(len(directions) + 8) * length * image_length + length * applied)
    smallest = smallest_eigenvalue(energy) - energy_error
    if not smallest > 0.0:
        return math.inf
    inside = [
        embedding.within(image, windows)
        for image, windows in ((image_upper, embedding.rows), (image_lower, embedding.columns))
    ]
    left = math.sqrt(sum(float(part.square().sum()) for part in inside)) * (1.0 + 1e-9)
    sizes = embedding.torus.sizes
    # The transform sums along each axis; with absolute values its norm is at most the root of the positions.
    transform = gamma(sum(sizes) + 8 * len(sizes), complex_arithmetic=True) + 2.0 * len(sizes) * PHASE_ERROR
    left += math.sqrt(math.prod(sizes)) * transform * image_length + applied
    return left * left / smallest * (1.0 + 1e-9)
