"""The norm of one channel group of a convolution, by the tightest method that its size allows.

Small maps: the whole Gram matrix, dense or banded. Larger ones: a cylinder, the inertia of a torus, or the torus.
Where none of these certificates is tight enough, Lanczos gives a bound that holds with high probability.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.linalg.bounds import NormBounds
from normscope.linalg.convolution_geometry import Axis, dimensions, extended, extension_multiplicity, padded_map
from normscope.linalg.convolution_on_cylinder import Cylinder, cylinder_bound, cylinder_map, zero_padding_cylinders
from normscope.linalg.convolution_on_line import banded_certificate, factorisation_cost
from normscope.linalg.convolution_on_torus import (
    Polyphase,
    Torus,
    polyphase,
    torus_bound,
    torus_map,
    zero_padding_embedding,
    zero_padding_tori,
)
from normscope.linalg.dense import attained, gram_matrix, gram_norm
from normscope.linalg.inertia import GAP_WITHIN, inertia_bound
from normscope.linalg.lanczos import lanczos_norm
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma
from normscope.linalg.sparse import convolution_matrix, sparse_gram
from normscope.operators.linear_map import LinearMap

#: Dimensions up to which the Gram matrix is always built, and up to which it is built when the torus is too loose.
ALWAYS_DENSE_UP_TO = 1024
DENSE_UP_TO = 3200
#: Multiplications up to which the banded Gram matrix is factorised where the torus is too loose (about a second).
BANDED_UP_TO = 3e10
#: The torus bound of a kernel on n positions is too large by about this over n squared; it decides the order of work.
TYPICAL_TORUS_EXCESS = 1.2
#: Multiplications up to which cylinders are factorised (about three seconds).
CYLINDER_UP_TO = 7e10
#: Typical excess of the torus beyond which hardly any frequency of a cylinder passes when closed to a torus.
LOOSE_TORUS = 1e-2
#: How far above an estimate from below to look for a certificate.
ABOVE_ESTIMATE = 1e-4
#: The width that is enough for a cylinder that cannot reach the tolerance.
CYLINDER_WIDTH = 5e-3
#: The width to which small maps are certified by inertia; beyond it a probabilistic bound is sought, which reaches it.
PROBABLE_WIDTH = 9e-3
#: Kernels with up to this many weights per output go to their Gram matrix through a sparse matrix.
SPARSE_UP_TO = 128
#: Symbols up to this side are solved by eigenvalues; larger ones are estimated first on the torus itself.
SMALL_SIDE = 32


@dataclass(frozen=True)
class Relaxation:
    """A convolution on tori whose norm, times a factor, is an upper bound on that of the original convolution."""

    form: Polyphase  #: the polyphase kernel, all groups
    tori: tuple[Torus, ...]  #: the tori, each of which gives a bound, smallest first
    log_factor: float  #: the logarithm of the factor

    @property
    def smallest_tori(self) -> tuple[Torus, ...]:
        """Return the tori of the smallest size; larger ones are tried only where these are nearly tight enough."""
        return tuple(torus for torus in self.tori if torus.sizes == self.tori[0].sizes)


def relaxation(weight: Tensor, axes: Sequence[Axis], groups: int, padding_mode: str) -> Relaxation:
    r"""Return the tori that bound a convolution.

    Zero padding: embedded without loss of norm. Circular padding whose stride divides the size: the torus is the map
    itself, up to outputs that occur more than once. Any other padding: written out first (norm at most the square
    root of how often one entry is copied), then a convolution without padding.

    >>> relaxation(torch.ones(1, 1, 3), [Axis(4, 4, 3, 1, 1, 1)], 1, "circular").tori
    (Torus(sizes=(4,), twists=(0,)),)
    """
    if padding_mode == "zeros":
        tori = (*zero_padding_tori(axes), *zero_padding_tori(axes, extra=1))
        return Relaxation(polyphase(weight, axes, groups), tori, 0.0)
    if padding_mode == "circular" and all(a.size % a.stride == 0 for a in axes):
        sizes = tuple(a.size // a.stride for a in axes)
        repeats = math.prod(-(-a.output_size // m) for a, m in zip(axes, sizes, strict=True))
        form = polyphase(weight, axes, groups, sublattices=False)
        return Relaxation(form, (Torus(sizes, (0,) * len(axes)),), 0.5 * math.log(repeats))
    copies = math.prod(extension_multiplicity(a, padding_mode) for a in axes)
    longer = [extended(a) for a in axes]
    return Relaxation(polyphase(weight, longer, groups), tuple(zero_padding_tori(longer)), 0.5 * math.log(copies))


@dataclass(frozen=True)
class ConvolutionBlock:
    """One channel group of a convolution, in float64."""

    weight: Tensor  #: the kernel ``(Cout, Cin, *k)``, largest entry about one
    axes: tuple[Axis, ...]  #: the geometry
    padding_mode: str  #: ``zeros``, ``circular``, ``reflect`` or ``replicate``
    entry_error: float = 0.0  #: the relative error every weight may carry (from folding scales into it)

    def map(self, dtype: torch.dtype = torch.float64) -> LinearMap:
        """Return the convolution as a linear map whose domain is the smaller of its two spaces."""
        whole = padded_map(self.weight.to(dtype), self.axes, 1, self.padding_mode)
        return whole.transpose if self.of_outputs else whole

    @property
    def smaller_dimension(self) -> int:
        """Return the dimension of the smaller space."""
        return min(dimensions(self.weight, self.axes))

    @cached_property
    def relaxation(self) -> Relaxation:
        """Return the tori that bound this group."""
        return relaxation(self.weight, self.axes, 1, self.padding_mode)

    @cached_property
    def absolute_norm(self) -> float:
        """Return an upper bound on the norm of the same convolution with the absolute values of the weights."""
        per_tap = torch.linalg.vector_norm(self.weight.flatten(2), dim=(0, 1))
        return float(per_tap.sum()) * math.sqrt(self.copies) * (1.0 + 1e-9)

    @property
    def copies(self) -> int:
        """Return how often the padding copies one input, at most."""
        return math.prod(extension_multiplicity(a, self.padding_mode) for a in self.axes)

    @property
    def entry_slack(self) -> float:
        """Return a bound on the change of the norm by the errors of the entries."""
        return self.entry_error * self.absolute_norm if self.entry_error else 0.0

    @property
    def of_outputs(self) -> bool:
        """Return whether the outputs are the smaller space."""
        domain, range_ = dimensions(self.weight, self.axes)
        return domain > range_

    @property
    def gram_error(self) -> float:
        """Return a bound on the error in norm of the Gram matrix, formed by one application and one adjoint."""
        return 2.0 * self.apply_error * self.absolute_norm + self.apply_error**2

    @property
    def apply_error(self) -> float:
        """Return a bound on the error of one application or one adjoint to a unit vector, entry errors included."""
        taps = math.prod(self.weight.shape[2:])
        terms = max(self.weight.shape[:2]) * taps + self.copies + 4
        return (gamma(terms) + self.entry_error) * self.absolute_norm


def block_norm(
    block: ConvolutionBlock, *, tolerance: float, delta: float, seed: int, log_upper: float | None = None
) -> NormBounds:
    """Return bounds on the norm of one channel group; the settings are those of ``convolution_norm``.

    A certificate that is already known, from a batch over all groups, is ``log_upper``.

    >>> kernel = torch.tensor([[[1.0, 2.0, 1.0]]], dtype=torch.float64)
    >>> block = ConvolutionBlock(kernel, (Axis(7, 7, 3, 1, 1, 1),), "zeros")
    >>> bounds = block_norm(block, tolerance=1e-3, delta=1e-9, seed=0)
    >>> bounds.lower <= 2 + 2 * math.cos(math.pi / 8) <= bounds.upper, bounds.width < 1e-9
    (True, True)
    """
    if block.smaller_dimension <= ALWAYS_DENSE_UP_TO:
        return dense_bounds(block, seed)
    loose = log_upper is None and _typical_excess(block) > 2.5 * tolerance
    if loose and (exact := _exact_bounds(block, tolerance, seed)) is not None:
        return exact
    goal = max(tolerance, PROBABLE_WIDTH)
    cylinders = _cylinders(block) if log_upper is None else []
    if loose and not cylinders:
        bounds = _inertia_bounds(block, goal, seed)
        if bounds.width <= goal:
            return bounds
        run, vector = _krylov_bounds(block, goal, delta, seed)
        run = run.with_lower(bounds.log_lower).with_upper(bounds.log_upper, "inertia+lanczos")
        return run.with_upper(_torus_log_upper(block, run.lower, 0.0, vector), "torus+lanczos")
    within = min(goal, max(tolerance, CYLINDER_WIDTH)) if loose else tolerance
    bounds = _relaxed_bounds(block, cylinders, within, seed, log_upper)
    if bounds.width <= tolerance:
        return bounds
    if not loose and (exact := _exact_bounds(block, tolerance, seed)) is not None:
        return exact
    if bounds.width <= goal:
        return bounds
    inertia = bounds.with_upper(_inertia_log_upper(block, bounds.lower, goal, seed), "inertia")
    if inertia.width <= goal:
        return inertia
    run, _ = _krylov_bounds(block, goal, delta, seed)
    bounds = bounds.with_lower(run.log_lower)
    return bounds.with_probable(run.log_probable, run.delta, f"{bounds.method}+lanczos")


def _exact_bounds(block: ConvolutionBlock, tolerance: float, seed: int) -> NormBounds | None:
    """Return bounds, tight up to rounding, from the whole Gram matrix, or ``None`` if that is too expensive."""
    of_outputs = block.of_outputs
    cost = factorisation_cost(block.axes, block.weight.shape[0 if of_outputs else 1], of_outputs=of_outputs)
    if block.padding_mode == "zeros" and cost <= BANDED_UP_TO:
        bounds = _banded_bounds(block, tolerance, seed)
        if bounds.width <= tolerance:
            return bounds
    return dense_bounds(block, seed) if block.smaller_dimension <= DENSE_UP_TO else None


def dense_bounds(block: ConvolutionBlock, seed: int) -> NormBounds:
    """Return the bounds from the Gram matrix of the group on its smaller side."""
    map = block.map()
    if math.prod(block.weight.shape[1:]) <= SPARSE_UP_TO:
        gram = sparse_gram(convolution_matrix(block.weight, block.axes, block.padding_mode)).to(map.device)
    else:
        gram = gram_matrix(map)
    return gram_norm(map, gram, block.gram_error, block.apply_error, seed=seed, good_width=1e-7)


def _banded_bounds(block: ConvolutionBlock, tolerance: float, seed: int) -> NormBounds:
    """Return the bounds from the banded Gram matrix; the upper one is infinite if the attained value is too low."""
    map = block.map()
    run = lanczos_norm(map, tolerance=1e-6, max_steps=200, seed=seed, reorthogonalise=False)
    lower = attained(map, run.vector, block.apply_error)
    weight, of_outputs, error = block.weight.cpu(), block.of_outputs, block.gram_error
    upper = banded_certificate(weight, block.axes, lower, of_outputs=of_outputs, gram_error=error, widest=tolerance)
    return NormBounds.certified(log_of(lower), certificate_log(upper), "banded cholesky")


def _relaxed_bounds(
    block: ConvolutionBlock, cylinders: Sequence[Cylinder], goal: float, seed: int, log_upper: float | None
) -> NormBounds:
    """Return the certificate of a cylinder or torus, and an attained value."""
    lower, vector = _attained(block, seed, None, math.inf)
    bounds = NormBounds.certified(log_of(lower), math.inf, "lanczos")
    if cylinders:
        bounds = bounds.with_upper(_cylinder_log_upper(block, cylinders, lower, goal, vector), "cylinder")
    if bounds.log_upper == math.inf:
        log_upper = _torus_log_upper(block, lower, goal, vector) if log_upper is None else log_upper
        bounds = bounds.with_upper(log_upper, "torus")
    if bounds.width > goal:
        # Noise restores directions that the first vector has lost.
        lower, _ = _attained(block, seed, with_noise(vector, seed + 1), bounds.upper / (1.0 + 0.9 * goal), max_steps=64)
        bounds = bounds.with_lower(log_of(lower))
    return bounds


def _typical_excess(block: ConvolutionBlock) -> float:
    """Estimate the relative excess of the torus bound; it decides the order of work, never a bound."""
    if block.padding_mode == "circular" and all(a.size % a.stride == 0 for a in block.axes):
        return 0.0
    if block.padding_mode != "zeros":
        return 1.0
    smallest = min((a.size for a in block.axes if a.kernel > 1), default=1)
    return TYPICAL_TORUS_EXCESS / smallest**2


def _attained(
    block: ConvolutionBlock, seed: int, start: Tensor | None, target: float, max_steps: int = 48
) -> tuple[float, Tensor]:
    """Return an attained value and its vector: iterated in float32, the value recomputed in float64."""
    run = lanczos_norm(
        block.map(torch.float32),
        tolerance=1e-4,
        max_steps=max_steps,
        seed=seed,
        start=start,
        target=target,
        reorthogonalise=False,
    )
    vector = run.vector.to(torch.float64)
    return attained(block.map(), vector, block.apply_error), vector


def _krylov_bounds(block: ConvolutionBlock, tolerance: float, delta: float, seed: int) -> tuple[NormBounds, Tensor]:
    """Return attained value and probabilistic upper bound of a float64 Lanczos run, and the vector."""
    map, error = block.map(), block.apply_error
    run = lanczos_norm(map, tolerance=tolerance, delta=delta, seed=seed, reorthogonalise=False)
    lower = attained(map, run.vector, error)
    bounds = NormBounds.certified(log_of(lower), math.inf, "lanczos")
    return bounds.with_probable(log_of(run.probable + error), delta, "lanczos"), run.vector


def _cylinders(block: ConvolutionBlock) -> list[Cylinder]:
    """Return the cylinders that are cheap enough to bound a block, perhaps none."""
    if block.padding_mode != "zeros" or min(block.weight.shape[:2]) <= SMALL_SIDE:
        return []
    every = zero_padding_cylinders(block.weight, block.axes)
    # Closed to a torus most frequencies pass at once, except on small maps, where the torus is too loose for any.
    few = 2.0 if _typical_excess(block) < LOOSE_TORUS else math.inf
    return [c for c in every if c.multiplications * min(1.0, few / math.prod(c.torus.sizes)) <= CYLINDER_UP_TO]


def _cylinder_log_upper(
    block: ConvolutionBlock, cylinders: Sequence[Cylinder], lower: float, goal: float, vector: Tensor
) -> float:
    """Return the certificate of the best cylinder, or infinity; estimates decide only which cylinder is used."""
    enough = lower * (1.0 + 0.5 * goal)
    laid = vector.reshape(block.map().domain_shape)
    # The line axis goes first in the maps of cylinders.
    contestants = ((cylinder_map(c), laid.movedim(1 + c.axis, 1)) for c in cylinders)
    estimate, best = least_norm(contestants, enough=enough)
    # A factorisation that fails costs more than the little room above the estimate.
    square = cylinder_bound(cylinders[best], max(estimate * (1.0 + 3 * ABOVE_ESTIMATE), enough) ** 2)
    return certificate_log(math.sqrt(square), slack=block.entry_slack)


def _inertia_bounds(block: ConvolutionBlock, width: float, seed: int) -> NormBounds:
    """Return an attained value and the certificate by inertia, infinite if there is none."""
    if block.padding_mode != "zeros":
        return NormBounds.certified(-math.inf, math.inf, "none")
    lower, _ = _attained(block, seed, None, math.inf, max_steps=32)
    return NormBounds.certified(log_of(lower), _inertia_log_upper(block, lower, width, seed), "inertia")


def _inertia_log_upper(block: ConvolutionBlock, lower: float, width: float, seed: int) -> float:
    """Return a certificate by inertia at the given relative width above an attained value, or infinity.

    On small maps, where the zero padding matters most, only this certificate is tight enough.
    """
    embedding = zero_padding_embedding(block.weight, block.axes) if block.padding_mode == "zeros" else None
    if embedding is None or width <= 2 * GAP_WITHIN:
        return math.inf
    upper = inertia_bound(embedding, lower * (1.0 + width) * (1.0 - 2 * GAP_WITHIN), seed=seed)
    return certificate_log(upper, slack=block.entry_slack)


def _torus_log_upper(block: ConvolutionBlock, lower: float, tolerance: float, vector: Tensor) -> float:
    """Return the certificate of the best torus; estimates decide only which torus is used."""
    relaxed = block.relaxation
    if relaxed.form.side <= SMALL_SIDE:
        squares = [float(torus_bound(relaxed.form, torus)) for torus in relaxed.smallest_tori]
        return certificate_log(math.sqrt(min(squares)), relaxed.log_factor, block.entry_slack)
    enough = lower * math.exp(-relaxed.log_factor) * (1.0 + 0.5 * tolerance)
    tori = relaxed.tori if tolerance > 0 else relaxed.smallest_tori
    laid = vector.reshape(block.map().domain_shape)
    single = Polyphase(relaxed.form.offsets, relaxed.form.taps.to(torch.float32))
    contestants = ((torus_map(single, torus), laid) for torus in tori)
    # Where the torus is far from the norm anyway, a rough choice will do.
    steps, above = (20, ABOVE_ESTIMATE) if tolerance > 0 else (8, 10 * ABOVE_ESTIMATE)
    estimate, winner = least_norm(contestants, enough=enough, max_steps=steps)
    # The estimate comes from below: a little above it most frequencies pass at once, the rest get eigenvalues.
    guess = torch.tensor([(estimate * (1.0 + above)) ** 2], dtype=torch.float64)
    square = float(torus_bound(relaxed.form, tori[winner], guess))
    return certificate_log(math.sqrt(square), relaxed.log_factor, block.entry_slack)


def certificate_log(norm: float, log_factor: float = 0.0, slack: float = 0.0) -> float:
    """Return the logarithm of a certificate times a factor, entry errors and roundings included."""
    log = log_of(norm + slack)
    if math.isinf(log):  # a filter of zeros, or no certificate
        return log
    return log + log_factor + 16 * UNIT_ROUNDOFF * (1.0 + abs(log) + log_factor)


def least_norm(
    contestants: Iterable[tuple[LinearMap, Tensor]], *, enough: float = 0.0, max_steps: int = 20
) -> tuple[float, int]:
    """Return the least estimated norm among several maps and the index of its map; estimates are from below.

    A vector that nearly attains the norm of a map they all extend is a good start: it needs far fewer steps than a
    random one. Ritz values only increase, so a map is dropped as soon as it exceeds the best one so far.

    Args:
        contestants: the maps, each with a start vector, which is cropped or zero-padded to its smaller space.
        enough: stop at the first map whose estimate is at most this.
        max_steps: the most Lanczos steps for each.

    >>> maps = [LinearMap.from_matrix(torch.diag(torch.tensor([1.0, d]))) for d in (3.0, 2.0, 4.0)]
    >>> estimate, winner = least_norm((map, torch.ones(2)) for map in maps)
    >>> round(estimate, 6), winner
    (2.0, 1)
    """
    best, winner = math.inf, 0
    for number, (map, vector) in enumerate(contestants):
        small = map if map.domain_dimension <= map.range_dimension else map.transpose
        run = lanczos_norm(
            small,
            tolerance=1e-3,
            max_steps=max_steps,
            start=with_noise(_laid(vector, small.domain_shape), 0),
            target=best,
            reorthogonalise=False,
        )
        if run.ritz < best:
            best, winner = run.ritz, number
        if run.ritz <= enough:
            break
    return best, winner


def with_noise(vector: Tensor, seed: int) -> Tensor:
    """Return a flat unit vector plus a random one of half its length, a start with a component in every direction."""
    noise = torch.randn(vector.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return vector.flatten() + noise.to(vector.device) * (0.5 / math.sqrt(vector.numel()))


def _laid(vector: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the vector cropped or zero-padded to a shape."""
    laid = torch.zeros(shape, dtype=torch.float64, device=vector.device)
    part = tuple(slice(0, min(a, b)) for a, b in zip(shape, vector.shape, strict=True))
    laid[part] = vector[part].to(torch.float64)
    return laid
