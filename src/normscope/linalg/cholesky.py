"""Certified upper bounds on largest eigenvalues, by a successful Cholesky factorisation."""

import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.statement import statement
from normscope.linalg.matrix_rounding import gamma


@statement("rump2006", "Corollary 2.4", holds="IEEE arithmetic, no underflow, factorisation by inner products")
def cholesky_margin(dimension: int, trace: float, *, complex_arithmetic: bool = False) -> float:
    r"""Return ``c`` such that a successful floating-point Cholesky of ``A`` proves :math:`\lambda_{\min}(A) \ge -c`.

    :math:`c = \frac{\gamma_{n+1}}{1 - \gamma_{n+1}} \operatorname{tr} A`: the computed factor satisfies
    :math:`R^H R = A + E`, :math:`|E_{ij}| \le \gamma_{n+1} (1-\gamma_{n+1})^{-1} \sqrt{a_{ii} a_{jj}}`, and
    :math:`\|E\|_2 \le` that factor times :math:`\operatorname{tr} A`. The count is three times as high in complex
    arithmetic, and for both kinds the rounding of the shifted diagonal is included.

    >>> 0 < cholesky_margin(10, 10.0) < 1e-13
    True
    """
    count = 3 * dimension + 12 if complex_arithmetic else dimension + 3
    factor = gamma(count)
    return factor / (1.0 - factor) * trace


def cholesky_factor(matrices: Tensor) -> Tensor | None:
    """Return the lower Cholesky factors of Hermitian matrices, or ``None`` if one is not positive definite.

    >>> cholesky_factor(torch.diag(torch.tensor([4.0, 9.0]))).diagonal().tolist(), cholesky_factor(-torch.eye(2))
    ([2.0, 3.0], None)
    """
    factor, info = torch.linalg.cholesky_ex(matrices)
    finite = factor.diagonal(dim1=-2, dim2=-1).real.isfinite().all()
    return factor if bool(finite) and not bool(info.any()) else None


def certify_largest_eigenvalue(
    gram: Tensor, guess: float | Tensor, *, gram_error: float | Tensor = 0.0, slack: float = 1e-11, raises: int = 4
) -> Tensor:
    r"""Return certified upper bounds on the largest eigenvalues of Hermitian matrices.

    For every matrix ``G`` a :math:`\tau` near the guess is sought at which the Cholesky factorisation of
    :math:`\tau I - G` succeeds; then :math:`\lambda_{\max} \le \tau + c + e` with the margin ``c`` of
    :func:`cholesky_margin` and the error ``e`` made in forming ``G``.

    Args:
        gram: one or a batch of Hermitian matrices ``(..., n, n)``, float64 or complex128. Only the lower triangle is
            read.
        guess: where to begin, one number or one per matrix; a good guess makes the bound tight at once, a bad
            one costs an eigenvalue computation.
        gram_error: a bound on :math:`\|G - G_0\|_2` where :math:`G_0` is the matrix meant.
        slack: the first relative distance between guess and :math:`\tau`.
        raises: how often that distance is multiplied by 16 before exact eigenvalues are computed.

    >>> bound = certify_largest_eigenvalue(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)), 4.0)
    >>> 4.0 <= bound.item() < 4.0 + 1e-9
    True
    """
    if gram.ndim < 2 or gram.shape[-1] != gram.shape[-2]:
        raise InputError(f"Expected square matrices, got shape {tuple(gram.shape)}.")
    if gram.dtype not in (torch.float64, torch.complex128):
        raise InputError(f"Expected float64 or complex128, got {gram.dtype}. Convert the matrix first.")
    batch_shape, n = gram.shape[:-2], gram.shape[-1]
    if gram.numel() == 0:
        return torch.zeros(batch_shape, dtype=torch.float64, device=gram.device)
    G = gram.reshape(-1, n, n)
    error = torch.as_tensor(gram_error, dtype=torch.float64, device=G.device).expand(batch_shape).reshape(-1)
    start = torch.as_tensor(guess, dtype=torch.float64, device=G.device).expand(batch_shape).reshape(-1)
    tau, margin = _raise_until_definite(G, start, slack, raises)
    bound = (tau + margin) * (1.0 + 2.0**-50) + error * (1.0 + 2.0**-50)
    return bound.reshape(batch_shape)


def _raise_until_definite(G: Tensor, guess: Tensor, slack: float, raises: int) -> tuple[Tensor, Tensor]:
    r"""Return per matrix a :math:`\tau` at which Cholesky succeeded, and its margin."""
    diagonal = G.diagonal(dim1=-2, dim2=-1).real
    if not bool(diagonal.isfinite().all()):
        raise NonFiniteError("Expected finite entries, got NaN or infinity. Check the weights.")
    # Below the largest diagonal entry no shift can work.
    start = torch.maximum(guess, diagonal.amax(-1)).clamp_min(torch.finfo(torch.float64).tiny)
    tau = start * (1.0 + slack)
    margin = torch.zeros_like(tau)
    open_ = torch.arange(len(G), device=G.device)
    step = slack
    attempt = 0
    while len(open_):
        success, margins = _is_definite(G if len(open_) == len(G) else G[open_], tau[open_])
        margin[open_] = margins
        open_ = open_[~success]
        if not len(open_):
            break
        attempt += 1
        step = 16.0 * max(step, 2.0**-50)
        if attempt == max(raises, 1):
            start[open_] = torch.maximum(start[open_], torch.linalg.eigvalsh(G[open_])[:, -1])
            step = slack
        tau[open_] = start[open_] * (1.0 + step)
    return tau, margin


def _is_definite(G: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return whether Cholesky of each :math:`\tau I - G` succeeds, and the margins."""
    n = G.shape[-1]
    shifted = -G
    diagonal = shifted.diagonal(dim1=-2, dim2=-1)
    diagonal += tau.unsqueeze(-1)
    trace = diagonal.real.sum(-1) * (1.0 + 2 * n * 2.0**-53)
    factor, info = torch.linalg.cholesky_ex(shifted)
    finite = factor.diagonal(dim1=-2, dim2=-1).real.isfinite().all(-1)
    unit = cholesky_margin(n, 1.0, complex_arithmetic=G.is_complex())
    # A negative trace belongs to a failure: its margin is never used.
    return info.eq(0) & finite, unit * trace
