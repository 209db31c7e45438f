r"""Compressed root-mean-square normalization: a vector over a root of ``a ||x||^2 + b (sum x)^2 + eps``, ``a, b > 0``.

CRMSNorm keeps n - 1 entries of a vector that sums to zero; the missing one is ``-sum x``, so that the mean square of
the whole vector is that form with ``a = b = 1/n``. With ``A = a I + b 11^T``, ``r^2 = x^T A x + eps`` the Jacobian is
``(I - t Q)/r``, ``Q = x (Ax)^T / x^T A x`` a projection and ``t = x^T A x / r^2``. It is not symmetric, and longer than
that of RMSNorm: see Proposition CRMS-1.
"""

import math

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import require_nonnegative, up
from normscope.core.statement import statement
from normscope.operators.expression import Expr
from normscope.operators.layout import scaled
from normscope.operators.nonlinear import INF, Context, Range, Stretch
from normscope.operators.normalizer import Constants, Normalizer, Symmetry, no_bound, proved
from normscope.operators.quadratic_form import QuadraticForm, RootQuotient
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut


@statement("normscope", "Proposition CRMS-1")
def crms_norm_on_floor(size: int, ratio: float, eps: float, s: float = 0.0) -> float:
    r"""Return the Lipschitz constant of ``x / sqrt(||x||_A^2 + eps)`` where ``||x||_A >= s``, ``A = a I + b 11^T``.

    ``sup_{t0 <= t < 1} sqrt((1 - t)/eps) ||I - t Q||``, ``t0 = s^2/(s^2 + eps)``, with the longest projection Q:
    ``||Q|| = (k + 1)/(2 sqrt(k))`` for ``k = 1 + n b/a``, the condition number of A (Kantorovich). Attained.

    >>> round(crms_norm_on_floor(4, 0.0, 0.25), 6), round(crms_norm_on_floor(767, 1.0, 1.0), 3)
    (2.0, 5.361)
    """
    eps, s = require_nonnegative(eps, "eps"), require_nonnegative(s, "s")
    if size < 2 or ratio < 0:
        raise InputError(f"Compressed normalization needs two entries and a ratio >= 0, got {size} and {ratio}.")
    condition = 1.0 + size * ratio
    length = (condition + 1.0) / (2.0 * math.sqrt(condition)) * (1.0 + 1e-14)
    if eps == 0:
        return math.inf if s == 0 else up(length / s, 64.0)
    start = s * s / (s * s + eps) * (1.0 - 1e-15)
    return up(math.sqrt(_largest(length, start) / eps), 1024.0)


def _largest(length: float, start: float) -> float:
    """Return an upper bound, within 1e-10, of ``(1 - t) ||I - t Q||^2`` over ``start <= t <= 1``, ``||Q|| = length``.

    ``||I - t Q||^2 = (F + t p sqrt(4 (1 - t) + t^2 p^2))/2`` with ``F = 2 (1 - t) + t^2 p^2``, each part monotone in t:
    cells that cannot hold the maximum are dropped, the others divided.
    """
    edges = torch.linspace(start, 1.0, 257, dtype=torch.float64)
    low, high = edges[:-1], edges[1:]
    bound = 0.0
    for _ in range(12):
        least = _product(low, low, length)
        most = _product(low, high, length)
        bound = float(most.max())
        if bound <= float(least.max()) * (1.0 + 1e-10):
            break
        keep = most >= least.max()
        low, high = low[keep], high[keep]
        steps = torch.linspace(0.0, 1.0, 17, dtype=torch.float64)
        edges = low[:, None] + (high - low)[:, None] * steps
        low, high = edges[:, :-1].flatten(), edges[:, 1:].flatten()
    return bound * (1.0 + 1e-13)


def _product(low: Tensor, high: Tensor, p: float) -> Tensor:
    """Return a bound of ``(1 - t) ||I - t Q||^2`` for t between low and high; its value where they are equal."""
    left = 1.0 - low
    inside = (high * p * (4.0 * left + (high * p).square()).sqrt() + 2.0 * left + (high * p).square()) / 2.0
    return left * inside


class CompressedDivision(Stretch):
    """Each group of a tensor over the root of ``a ||x||^2 + b (sum x)^2 + eps``."""

    def __init__(self, x: Expr, form: QuadraticForm) -> None:
        # the fitted ratio is taken a little larger
        super().__init__(x, crms_norm_on_floor(form.size, form.total / form.squares * (1 + 1e-8), form.least_eps))
        self.form = form

    def image(self, context: Context) -> Range:
        """Return the range: a group has norm at most ``1/sqrt(a)``."""
        shape = self.inputs[0].shape
        group = up(1.0 / math.sqrt(self.form.squares * (1 - 1e-9)), 16.0)
        groups = math.prod(shape) // self.form.size
        row = group if self.form.axes == (len(shape) - 1,) else INF
        return Range(-group, group, row, up(group * math.sqrt(groups), 16.0))


def _fits(candidate: NormalizerCandidate, quotient: RootQuotient, source: Expr) -> WrittenOut | None:
    """Take a tensor that is not centred, over a form that grows with the sum."""
    form, gain = quotient.form, quotient.gain
    if quotient.centered or form.is_square or form.total < 0 or form.least:
        return None
    details = {"ratio": form.total / form.squares, "size": float(form.size)}

    def result() -> Expr:
        core = candidate.call.atom(CompressedDivision(source, form), source.shape)
        return scaled(candidate.call, core, gain, quotient.shift)

    name, eps = quotient.source, form.least_eps
    return candidate.written("crms_norm", source, name, result, gain=gain, eps=eps, details=details)


def _constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    if "ratio" not in site.details:
        return no_bound()
    top = 1.0 if site.gamma is None else float(site.gamma.abs().max())
    core = crms_norm_on_floor(int(site.details["size"]), site.details["ratio"] * (1 + 1e-8), site.eps)
    return proved(0.0 if top == 0 else up(top * core), "normscope Proposition CRMS-1")


NORMALIZER = Normalizer(
    kind="crms_norm",
    formula=(
        "gamma x/sqrt((sum(x^2) + sum(x)^2)/n + eps), RMSNorm of n entries that sum to zero, the last one not stored"
    ),
    constants=_constants,
    symmetry=Symmetry("layer"),
    fits=_fits,
)
