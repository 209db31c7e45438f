r"""Global response normalization: ``y = gamma x N(x) + beta + x``, ``N_c = G_c/(mean G + eps)``, ``G_c = ||x_c||``.

Write ``x_c = G_c u_c`` with unit ``u_c`` and ``a_c = N_c``. The map ``x -> x N(x)`` sends the radial coordinates to
``h_c = G_c^2/(mean G + eps)`` and keeps the directions, so its Jacobian is, in orthogonal coordinates,

    ``a_c`` across ``u_c`` in each channel, and ``K = 2 diag(a) - a^2 1^T / C`` between the radii.

Put ``p = a/C``: ``p >= 0`` and ``sum p < 1``. For a unit vector ``v`` with ``s = sum v``,

    ``||K v||^2 = C^2 sum_c p_c^2 (2 v_c - p_c s)^2``,   ``(2 v_c - p s)^2 <= ||2 e_c - p 1||^2 = 4 - 4p + C p^2``.

For ``C >= 2`` the function ``p (4 - 4p + C p^2)`` increases on [0, 1] and stays below ``C``: ``4p <= C(1 + p + p^2)``.
Hence ``||K||^2 <= C^2 q (4 - 4q + C q^2)`` for any ``q >= max p_c``, and ``||K|| <= C^{3/2}`` always: attained in the
limit of one dominant channel, ``p -> e_1``, where ``K -> C e_1 (1, -1, ..., -1)``. So the constant of ``x N(x)`` is
exactly ``C^{3/2}``. Where no channel dominates another bound is smaller: ``K = diag(a) (2 I - p 1^T)``, and with
``S = sum p``, ``tau = sqrt(C) ||p|| <= sqrt(C q)`` the bracket has norm ``max(2, (sqrt(16 - 8S + tau^2) + tau)/2)``.
Both exceed ``C q >= a_c``, so they cover the directions across the radii as well.
"""

import math

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import (
    UNIT,
    as_float64,
    down,
    matrix_norm_sandwich,
    quotient_up,
    require_nonnegative,
    sum_units,
    tree_sum,
    up,
)
from normscope.core.statement import statement
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import Recogniser, is_euclidean, name_of, operand_pairs
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Range, Stretch, product_above
from normscope.operators.normalizer import Constants, Normalizer, proved
from normscope.operators.normalizers.batch_norm import channel_scale
from normscope.operators.normalizers.moments import root_mean_square
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut, agrees, probe


@statement("normscope", "Theorem GRN-1")
def response_core_global(channels: int) -> float:
    """Return the Lipschitz constant of ``x -> x N(x)`` on all inputs: exactly ``C^{3/2}``, whatever ``eps``.

    >>> round(response_core_global(4), 9)
    8.0
    """
    if channels < 1:
        raise InputError(f"Global response normalization needs at least one channel, got {channels}.")
    return up(channels * math.sqrt(channels))


@statement("normscope", "Corollary GRN-2")
def response_norm_global(gamma: Tensor) -> float:
    """Return ``1 + max |gamma| C^{3/2}``, a bound of the constant of ``gamma x N(x) + beta + x`` on all inputs.

    >>> round(response_norm_global(torch.tensor([0.0, -0.5, 0.25, 0.0])), 9)
    5.0
    """
    scale = as_float64(gamma, "gamma").reshape(-1)
    top = float(scale.abs().max())
    return up(1.0 + up(top * response_core_global(scale.numel())))


@statement("normscope", "Proposition GRN-3")
def response_norm_at(x: Tensor, gamma: Tensor, eps: float = 1e-6, *, identity: bool = True) -> float:
    """Return the Jacobian norm at one sample: ``max(|1 + gamma_c a_c|, ||I + diag(gamma) K||)``.

    The first term needs two or more positions. A channel that is zero has no direction; there the map is differentiable
    only if the formula is, and the returned value bounds the derivative in every direction it has.

    >>> round(response_norm_at(torch.tensor([[3.0, 4.0]]), torch.ones(1), 0.0, identity=False), 9)
    1.0
    """
    share, units = _shares(x, require_nonnegative(eps, "eps"))
    if share is None:
        return math.inf
    channels = share.numel()
    scale = channel_scale(gamma, channels)
    one = 1.0 if identity else 0.0
    radial = scale[:, None] * (2.0 * torch.diag(share) - (share**2 / channels)[:, None])
    # entrywise rounding, in the Frobenius norm; relative to the sum of magnitudes in each entry
    size = scale.abs()[:, None] * (2.0 * torch.diag(share) + (share**2 / channels)[:, None])
    slack = 4.0 * units * UNIT * (float(torch.linalg.matrix_norm(size)) + one * math.sqrt(channels))
    norm = up(matrix_norm_sandwich(radial + one * torch.eye(channels, dtype=torch.float64))[1] + slack)
    if x.numel() == channels:
        return norm
    across = float((one + scale * share).abs().max()) + 4.0 * units * UNIT * float((one + (scale * share).abs()).max())
    return max(norm, up(across))


@statement("normscope", "Theorem GRN-4")
def response_norm_on_ball(
    x: Tensor, radius: float, gamma: Tensor, eps: float = 1e-6, *, identity: bool = True
) -> float:
    """Return a bound of the constant on the ball of ``radius`` around one sample.

    On the ball ``G_c <= G_c(x) + radius`` and ``mean G >= m = (mean G(x) - radius/sqrt(C))_+``, so ``p_c <= q`` with
    ``q = min(1, max_c (G_c + radius)/(C (m + eps)))``, and ``S >= m/(m + eps)``; with these ``||K||`` is at most the
    smaller of ``C sqrt(q (4 - 4q + C q^2))`` and ``C q max(2, (sqrt(16 - 8S + C q) + sqrt(C q))/2)``.

    >>> round(response_norm_on_ball(torch.ones(4, 2), 0.0, torch.ones(4), 0.0, identity=False), 6)
    2.0
    """
    eps, radius = require_nonnegative(eps, "eps"), require_nonnegative(radius, "radius")
    length, units = _lengths(x)
    channels = length.numel()
    top = float(channel_scale(gamma, channels).abs().max())
    mean = float(tree_sum(length)) / channels * (1.0 - 2.0 * units * UNIT) - up(radius / math.sqrt(channels))
    mean = max(0.0, mean)
    largest = up(float(length.max()), units) + radius
    q = min(1.0, quotient_up(up(largest), channels * (mean + eps)))
    core = response_core_global(channels)
    if channels > 1 and mean + eps > 0:
        tau = math.sqrt(channels * q)
        bracket = max(2.0, (math.sqrt(16.0 - 8.0 * down(mean / (mean + eps)) + tau * tau) + tau) / 2)
        core = min(core, up(channels * math.sqrt(q * (4.0 - 4.0 * q + tau * tau * q)), 32.0))
        core = min(core, up(channels * q * bracket, 32.0))
    return up((1.0 if identity else 0.0) + up(top * core))


def _lengths(x: Tensor) -> tuple[Tensor, float]:
    """Return ``G_c`` of each channel and the number of unit roundoffs in it."""
    rows = as_float64(x, "x").flatten(1) if x.ndim > 1 else as_float64(x, "x").reshape(-1, 1)
    n = rows.shape[1]
    return root_mean_square(rows).value * math.sqrt(n), sum_units(n) + 4.0


def _shares(x: Tensor, eps: float) -> tuple[Tensor | None, float]:
    """Return ``a_c = G_c/(mean G + eps)`` and the number of unit roundoffs in it; ``None`` where it is not defined."""
    length, units = _lengths(x)
    below = tree_sum(length) / length.numel() + eps
    return (None if below == 0 else length / below), 2.0 * units + sum_units(length.numel())


class GlobalResponse(Stretch):
    """The nonlinear part of global response normalization over C channels, with its global constant."""

    def __init__(self, x: Expr, channels: int) -> None:
        super().__init__(x, response_core_global(channels))
        self.channels = channels

    def image(self, context: Context) -> Range:
        """Return the range of the input times C, the most an entry can grow."""
        inside = context.range(self.inputs[0])
        entry, row, norm = (product_above(float(self.channels), size) for size in (inside.sup, inside.row, inside.norm))
        return Range(-entry, entry, row, norm)


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Find ``x * (G/(mean_c G + eps))``, checked on numbers."""
    pairs = operand_pairs(candidate.node) if name_of(candidate.node) == "mul" else []
    found = (_pattern(candidate.around.recogniser, *pair) for pair in pairs)
    pattern = next((match for match in found if match is not None), None)
    source = None if pattern is None else candidate.source(pattern[0])
    if pattern is None or source is None:
        return None
    name, axes, channel, eps = pattern

    def response(x: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
        return x * (norms / (norms.mean(channel, keepdim=True) + eps))

    points = (probe(source.shape, 0), probe(source.shape, 1, eps or 1.0))
    if channel in axes or not agrees(candidate.around.run(candidate.node, name), response, points):
        return None
    channels = source.shape[channel]
    gamma = candidate.around.affine_after(candidate.node)[0]
    if gamma is None or gamma.numel() != channels:
        gamma = torch.ones(channels)
    result = lambda: candidate.call.atom(GlobalResponse(source, channels), source.shape)  # noqa: E731
    return candidate.written("global_response_norm", source, name, result, gamma=gamma, beta=None, eps=eps)


def _pattern(find: Recogniser, numerator: Ref, other: Ref) -> tuple[str, tuple[int, ...], int, float] | None:
    """Match the ratio of a norm to the mean of that norm, both of the numerator.

    Returns:
        What is normalized, the axes of the norm, the axis of the mean, and eps.
    """
    ratio, top = find.through(other), find.through(numerator)
    if ratio is None or top is None or name_of(ratio) != "div":
        return None
    norm, below = find.through(ratio.args[0]), find.through(ratio.args[1])
    if norm is None or below is None or name_of(norm) not in ("linalg_vector_norm", "norm"):
        return None
    eps = find.stabilizer(below.args[1]) if name_of(below) == "add" else 0.0
    mean: Node | None = find.through(below.args[0]) if name_of(below) == "add" else below
    if eps is None or mean is None or not find.same(find.mean_of(mean), norm):
        return None
    if not find.same(find.through(norm.args[0]), top):
        return None
    channel = find.reduced_axes(mean)
    if len(channel) != 1 or not is_euclidean(norm):
        return None
    return numerator.name, find.reduced_axes(norm), channel[0], eps


def _constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    gamma = torch.ones(site.shape[-1]) if site.gamma is None else site.gamma
    return proved(response_norm_global(gamma), "normscope GRN")


NORMALIZER = Normalizer(
    kind="global_response_norm",
    formula="gamma x G/(mean_c G + eps) + beta + x, G the norm of each channel of one sample",
    constants=_constants,
    written_out=_written_out,
)
