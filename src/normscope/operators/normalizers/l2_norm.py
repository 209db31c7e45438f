r"""Normalization of vectors to length one, with the three stabilizers in use.

Each is radial, ``f(x) = phi(r) x/r`` with ``r = ||x||``. Its Jacobian has the eigenvalue ``phi'(r)`` along ``x`` and
``phi(r)/r`` across it, and on ``{r >= s}`` its Lipschitz constant is the larger supremum of the two, for every pair of
points: ``||f_1 - f_2||^2 = (phi_1 - phi_2)^2 + 4 phi_1 phi_2 sin^2(theta/2)``, and the same holds for
``||x_1 - x_2||^2`` with ``r`` in place of ``phi``.

    ``"max"``    ``x / max(||x||, eps)``       ``phi/r = 1/max(r, eps)``     (``torch.nn.functional.normalize``)
    ``"add"``    ``x / (||x|| + eps)``         ``phi/r = 1/(r + eps)``
    ``"square"`` ``x / sqrt(||x||^2 + eps)``   ``phi/r = 1/sqrt(r^2 + eps)``
"""

import math
from typing import Literal

from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT, as_float64, down, quotient_up, require_nonnegative, up
from normscope.core.statement import statement
from normscope.operators.normalizer import Normalizer, Symmetry, spread_constants
from normscope.operators.normalizers.moments import root_mean_square

Form = Literal["max", "add", "square"]


@statement("normscope", "Proposition L2-1")
def l2_norm_at(x: Tensor, eps: float, form: Form = "max") -> float:
    """Return the largest of the local Lipschitz constants at the vectors along the last axis.

    For two or more elements it is ``phi(r)/r`` of the module's table. One element moves radially only: 0 for ``"max"``
    beyond ``eps`` (at the kink, the larger of both sides), ``eps/(r + eps)^2`` for ``"add"``, and
    ``eps/(r^2 + eps)^{3/2}`` for ``"square"``.

    >>> import torch
    >>> round(l2_norm_at(torch.tensor([3.0, 4.0]), 1e-12), 9)
    0.2
    """
    eps = require_nonnegative(eps, "eps")
    length = _lengths(x)
    if x.shape[-1] > 1:
        return l2_norm_on_floor(eps, float(length.min()), form)
    return max(_radial(float(r), eps, form) for r in length)


@statement("normscope", "Proposition L2-2")
def l2_norm_global(eps: float, form: Form = "max") -> float:
    """Return the Lipschitz constant on all inputs.

    It is ``1/eps`` for ``"max"`` and ``"add"``, and ``1/sqrt(eps)`` for ``"square"``.

    >>> round(l2_norm_global(1e-6, "square"), 6)
    1000.0
    """
    return l2_norm_on_floor(eps, 0.0, form)


@statement("normscope", "Proposition L2-3")
def l2_norm_on_floor(eps: float, s: float, form: Form = "max") -> float:
    """Return the Lipschitz constant on ``{x : ||x|| >= s}``: ``phi(s)/s``, attained by antipodal pairs.

    >>> round(l2_norm_on_floor(1e-12, 4.0), 9), round(l2_norm_on_floor(1.0, 4.0, "add"), 9)
    (0.25, 0.2)
    """
    eps, s = require_nonnegative(eps, "eps"), require_nonnegative(s, "s")
    return quotient_up(1.0, _denominator(s, eps, form))


@statement("normscope", "Proposition L2-4")
def l2_norm_on_ball(x: Tensor, radius: float, eps: float, form: Form = "max") -> float:
    """Return a bound of the Lipschitz constant on the ball of ``radius`` around each vector along the last axis.

    >>> import torch
    >>> round(l2_norm_on_ball(torch.tensor([3.0, 4.0]), 1.0, 1e-12), 9)
    0.25
    """
    shortest = float(_lengths(x).min())
    return l2_norm_on_floor(eps, max(0.0, down(shortest - up(require_nonnegative(radius, "radius")))), form)


def _denominator(r: float, eps: float, form: Form) -> float:
    """Return ``r / phi(r)``."""
    if form == "max":
        return max(r, eps)
    if form == "add":
        return r + eps
    if form == "square":
        return math.hypot(r, math.sqrt(eps))
    raise InputError(f"Expected the form of an l2 normalization to be 'max', 'add' or 'square', got {form!r}.")


def _radial(r: float, eps: float, form: Form) -> float:
    """Return ``phi'(r)`` rounded up; for ``"max"`` the larger one-sided derivative."""
    root = _denominator(r, eps, form)
    if root == 0:
        return math.inf
    if form == "max":
        return quotient_up(1.0, eps) if r <= eps else 0.0
    share = eps / root if form == "add" else (math.sqrt(eps) / root) ** 2
    return up(quotient_up(share, root), 32.0)


def _lengths(x: Tensor) -> Tensor:
    """Return lower bounds of the lengths of the vectors along the last axis."""
    points = as_float64(x, "x")
    n = points.shape[-1]
    return root_mean_square(points.reshape(-1, n)).low * math.sqrt(n) * (1.0 - 8.0 * UNIT)


NORMALIZER = Normalizer(
    kind="l2_norm",
    formula="x/max(||x||, eps), or with eps added to the norm or its square",
    constants=spread_constants("normscope F3"),
    symmetry=Symmetry("layer"),
    claims=lambda match, spread: not match.centered and match.root_of == "sum",
    takes_any_axes=True,
)
