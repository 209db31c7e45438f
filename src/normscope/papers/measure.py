"""Tools of the checks: dense float64 derivatives by autograd, and tests of corrected statements."""

from collections.abc import Callable

import torch
from torch import Tensor

from normscope.papers.claim import close

Function = Callable[[Tensor], Tensor]

#: Relative rounding error of a number that a check measures.
RELATIVE = 1e-9


class CorrectionError(Exception):
    """The statement given in place of a claim does not hold either; the audit shows it as an error."""


def norm(matrix: Tensor) -> float:
    """Return the spectral norm of a matrix by its singular values.

    >>> norm(torch.eye(2) * 3)
    3.0
    """
    return float(torch.linalg.matrix_norm(matrix.detach(), 2))


def jacobian(function: Function, x: Tensor) -> Tensor:
    """Return the dense Jacobian at a point by autograd, as a matrix.

    >>> jacobian(lambda x: 2 * x, torch.ones(2)).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    with torch.enable_grad():
        derivative = torch.autograd.functional.jacobian(function, x.detach())
    return derivative.reshape(-1, x.numel())


def jacobian_norm(function: Function, x: Tensor) -> float:
    """Return the spectral norm of the Jacobian at a point.

    >>> jacobian_norm(torch.relu, torch.tensor([1.0, -1.0]))
    1.0
    """
    return norm(jacobian(function, x))


def gradient(function: Function, x: Tensor) -> Tensor:
    """Return the gradient of a scalar function by autograd.

    >>> gradient(lambda x: (x**2).sum(), torch.tensor([3.0])).tolist()
    [6.0]
    """
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(function(point), point)
    return found


def quotient(function: Function, a: Tensor, b: Tensor) -> float:
    """Return ``||f(a) - f(b)|| / ||a - b||``.

    >>> quotient(lambda x: 3 * x, torch.ones(1), torch.zeros(1))
    3.0
    """
    return float((function(a) - function(b)).detach().norm() / (a - b).norm())


def confirm(what: str, ours: float, measured: float, relative: float = RELATIVE) -> None:
    """Raise an error unless the corrected statement agrees with the measurement.

    >>> confirm("one", 1.0, 1.0)
    """
    if not close(ours, measured, relative):
        raise CorrectionError(f"{what}: we state {ours!r}, measured is {measured!r}")


def confirm_bound(what: str, ours: float, measured: float, relative: float = RELATIVE) -> None:
    """Raise an error unless the corrected bound is at least the measurement.

    >>> confirm_bound("two", 2.0, 1.0)
    """
    if not measured <= ours * (1 + relative) + relative**2:
        raise CorrectionError(f"{what}: we state at most {ours!r}, measured is {measured!r}")
