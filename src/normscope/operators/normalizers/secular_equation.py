"""The norm of a diagonal scaling after one or two directions are shrunk: a secular equation, solved with proof."""

import math

import torch
from torch import Tensor

from normscope.core.rounding import UNIT, as_float64, sum_units, tree_sum
from normscope.core.statement import statement

#: Bits of the bracket to resolve; it is at most one wide and float64 resolves 2^-53 of it.
_BITS = 56
#: Below this many entries several points of the bracket are tested at once, as the work is all overhead.
_SMALL = 20_000


def shrunk_scale_norm(scale: Tensor, directions: tuple[Tensor, ...], error: Tensor | None = None) -> Tensor:
    r"""Return ``||diag(scale) B^{1/2}||_2``, ``B = I - sum_k w_k w_k^T``, for each row, rounded up.

    With ``d_i = scale_i^2`` and ``u_k = scale * w_k`` the square of the norm is the largest eigenvalue of
    ``D - U U^T``. Let ``N`` be the ``K`` largest ``d_i`` (``K`` directions) and ``R`` the rest. For ``lam > max d_R``,

        ``lam >= lambda_max(D - U U^T)   <=>   diag(lam - d_N) + U_N T^{-1} U_N^T  is positive semidefinite``,
        ``T = I + sum_{i in R} u_i u_i^T / (lam - d_i)``

    (Schur complement of ``lam - D + U U^T`` on ``R``, and Woodbury). ``T`` is a sum of positive terms, so it is
    computed without cancellation; it is enlarged by its rounding error, which only weakens the test. By interlacing
    the eigenvalue is at least the ``(K+1)``-th largest ``d_i``. Bisection on the test gives a proved upper bound.

    Args:
        scale: float64, shape (rows, n).
        directions: one or two float64 tensors of shape (rows, n), orthogonal to each other, of norm at most one.
        error: per row, a bound on ``||B computed - B||_2`` due to the rounding of the directions.

    Returns:
        Upper bounds of shape (rows,), within about ``1e-14 max |scale|^2 / norm`` of the truth.

    >>> w = torch.full((1, 4), 0.5, dtype=torch.float64)
    >>> round(shrunk_scale_norm(torch.tensor([[3.0, 2.0, 1.0, 0.5]], dtype=torch.float64), (w,)).item(), 6)
    2.707666
    """
    rows, n = scale.shape
    count = len(directions)
    scale = scale.abs()
    top = scale.amax(dim=-1)
    if error is None:
        error = torch.zeros_like(top)
    gap = (top[:, None] - scale) / top[:, None] * (1.0 + scale / top[:, None])
    gap = torch.where(top[:, None] > 0, gap, torch.zeros_like(gap))
    kept = min(n, count)
    near, index = torch.topk(gap, kept, dim=-1, largest=False)
    limit = torch.ones_like(top)
    if n > count:
        limit = torch.topk(gap, count + 1, dim=-1, largest=False).values[:, -1]
    drop = torch.zeros_like(top)
    todo = torch.nonzero((limit > 0) & (top > 0)).flatten()
    if todo.numel():
        relative = scale[todo] / top[todo, None]
        u = torch.stack([relative * w.expand(rows, n)[todo] for w in directions], dim=1)
        drop[todo] = _largest_drop(gap[todo], u, near[todo], index[todo], limit[todo])
    eigenvalue = ((1.0 - drop) + 16.0 * UNIT + error).clamp(max=1.0)
    return top * eigenvalue.sqrt() * (1.0 + 8.0 * UNIT)


@statement("normscope", "Proposition LN-1")
def centered_scale_norm(gamma: Tensor) -> float:
    """Return ``||diag(gamma) P||_2`` with ``P = I - 11^T/n``: what a scale can do to centred vectors.

    Its square is the largest root of ``sum_i 1/(gamma_i^2 - lam) = 0``, which lies between the second largest and the
    largest ``gamma_i^2``; it is ``max gamma_i^2`` when the largest is attained twice, and zero for ``n = 1``.

    >>> round(centered_scale_norm(torch.tensor([3.0, 2.0, 1.0, 0.5])), 6)
    2.707666
    >>> centered_scale_norm(torch.tensor([7.0]))
    0.0
    """
    scale = as_float64(gamma, "gamma").reshape(1, -1)
    n = scale.shape[1]
    if n == 1:
        return 0.0
    return float(shrunk_scale_norm(scale, (torch.full_like(scale, 1.0 / math.sqrt(n)),))[0])


def _largest_drop(gap: Tensor, u: Tensor, near: Tensor, index: Tensor, limit: Tensor) -> Tensor:
    """Return per row the largest proved ``t <= limit`` with ``lambda_max(D - U U^T) <= 1 - t`` (``d`` scaled to 1)."""
    rows, count, n = u.shape
    chosen = torch.gather(u, 2, index[:, None, :].expand(rows, count, index.shape[1]))
    rest = torch.ones(rows, n, dtype=torch.bool).scatter_(1, index, False)
    keep = n - index.shape[1]
    gap_rest = gap[rest].reshape(rows, keep)
    u_rest = u[rest[:, None, :].expand(rows, count, n)].reshape(rows, count, keep)
    products = u_rest[:, :, None, :] * u_rest[:, None, :, :]
    bits = 5 if rows * n < _SMALL else 1
    cuts = 2**bits
    share = torch.arange(1, cuts, dtype=limit.dtype) / cuts
    repeated = [v.repeat_interleave(cuts - 1, dim=0) for v in (near, chosen, gap_rest, products)] if bits > 1 else []
    low, high = torch.zeros_like(limit), limit.clone()
    for _ in range(-(-_BITS // bits)):
        t = low[:, None] + (high - low)[:, None] * share
        proved = _is_above(t.flatten(), *(repeated or (near, chosen, gap_rest, products))).reshape(t.shape)
        proved = proved & (t < limit[:, None])
        # every proved point is a bound; the search continues between the largest one and the next cut
        last = torch.where(proved, torch.arange(1, cuts), 0).amax(dim=1, keepdim=True)
        edges = torch.cat([low[:, None], t, high[:, None]], dim=1)
        low, high = edges.gather(1, last)[:, 0], edges.gather(1, last + 1)[:, 0]
    return low


def _is_above(t: Tensor, near: Tensor, chosen: Tensor, gap_rest: Tensor, products: Tensor) -> Tensor:
    """Return per row whether ``1 - t`` is proved to be at least the largest eigenvalue."""
    rows, count, _ = chosen.shape
    keep = gap_rest.shape[1]
    T = torch.eye(count, dtype=t.dtype).expand(rows, count, count)
    if keep:
        T = T + tree_sum(products / (gap_rest - t[:, None])[:, None, None, :])
    units = sum_units(keep) * UNIT
    # |error of T_kl| <= units sqrt(T_kk T_ll), hence error <= 2 units diag(T) as a quadratic form
    T = T + 4.0 * units * torch.diag_embed(torch.diagonal(T, dim1=1, dim2=2))
    if count == 1:
        lift = chosen[:, 0] ** 2 / T[:, 0]
        return ((near - t[:, None]) + lift * (1.0 - 16.0 * UNIT) >= 2.0 * UNIT * t[:, None]).all(dim=-1)
    a, b, c = T[:, 0, 0], T[:, 0, 1], T[:, 1, 1]
    determinant = (a * c - b * b) + 8.0 * UNIT * a * c
    first, second = chosen[:, 0], chosen[:, 1]
    weight = (c / determinant, b / determinant, a / determinant)
    square = [w[:, None] * v for w, v in zip(weight, (first**2, 2 * first * second, second**2), strict=True)]
    slack = 32.0 * UNIT * (square[0] + square[1].abs() + square[2]) + 4.0 * UNIT * (near + t[:, None])
    diagonal = (near - t[:, None]) + (square[0] - square[1] + square[2]) - slack
    inside = (diagonal >= 0).all(dim=-1)
    if near.shape[1] == 1:
        return inside
    f, s = (first[:, 0], first[:, 1]), (second[:, 0], second[:, 1])
    mixed = weight[0] * f[0] * f[1] - weight[1] * (f[0] * s[1] + f[1] * s[0]) + weight[2] * s[0] * s[1]
    mixed_slack = (
        32.0
        * UNIT
        * (
            (weight[0] * f[0] * f[1]).abs()
            + (weight[1] * f[0] * s[1]).abs()
            + (weight[1] * f[1] * s[0]).abs()
            + (weight[2] * s[0] * s[1]).abs()
        )
    )
    wanted = (mixed.abs() + mixed_slack) ** 2
    return inside & (diagonal[:, 0] * diagonal[:, 1] * (1.0 - 8.0 * UNIT) >= wanted)
