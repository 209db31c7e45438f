"""Matrix-free maps: the adjoint identity, batches, dense form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.core.errors import InputError
from normscope.operators.linear_map import LinearMap

KERNEL = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FUNCTIONS = {
    "convolution": (lambda x: functional.conv2d(x[None], KERNEL, padding=1, stride=2)[0], (3, 6, 5)),
    "gradient": (lambda x: x[1:] - x[:-1], (9,)),
    "mean": (lambda x: x.mean((1, 2)), (2, 3, 4)),
    "fourier": (lambda x: torch.fft.rfft(x).real, (8,)),
    "constant": (lambda x: torch.zeros(2, dtype=x.dtype), (3,)),
}


def check_adjoint(A: LinearMap, seed: int = 0) -> None:
    """Check <Ax, y> = <x, A^T y> on random vectors, singly and in batches."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(3, *A.domain_shape, generator=generator, dtype=A.dtype)
    Y = torch.randn(3, *A.range_shape, generator=generator, dtype=A.dtype)
    forward, backward = A.apply_batch(X), A.adjoint_batch(Y)
    for x, y, Ax, ATy in zip(X, Y, forward, backward, strict=True):
        torch.testing.assert_close(A.apply(x), Ax)
        torch.testing.assert_close(A.adjoint(y), ATy)
        torch.testing.assert_close((Ax * y).sum(), (x * ATy).sum())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_adjoint_identity(name: str) -> None:
    """Every function's adjoint, found by autograd, is its adjoint; so is the transpose's."""
    function, shape = FUNCTIONS[name]
    A = LinearMap.from_function(function, shape)
    check_adjoint(A)
    check_adjoint(A.transpose)
    assert A.transpose.domain_shape == A.range_shape


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dense_matrix_in_both_directions(name: str) -> None:
    """The matrix acts like the map, whether built from columns or from rows."""
    function, shape = FUNCTIONS[name]
    A = LinearMap.from_function(function, shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(A.matrix() @ x.flatten(), function(x).flatten())
    torch.testing.assert_close(A.transpose.matrix(), A.matrix().mT)


def test_functions_vmap_cannot_follow_fall_back_to_a_loop() -> None:
    """Code that looks at values has no batching rule; a loop gives the same batch."""

    def function(x: Tensor) -> Tensor:
        return x.flip(0) if float(x.detach().abs().sum()) >= 0 else x

    A = LinearMap(function, lambda y: y.flip(0), (4,), (4,))
    check_adjoint(A)


def test_from_matrix() -> None:
    """A matrix is its own map."""
    M = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    A = LinearMap.from_matrix(M)
    check_adjoint(A)
    assert (A.domain_dimension, A.range_dimension) == (5, 3)
    torch.testing.assert_close(A.matrix(), M)


def test_nothing_of_the_function_is_changed_or_kept_for_autograd() -> None:
    """Weights get no gradient, and results carry no graph."""
    weight = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    A = LinearMap.from_function(lambda x: weight @ x, (2,))
    y = A.adjoint(A.apply(torch.ones(2, dtype=torch.float64)))
    assert weight.grad is None
    assert not y.requires_grad
    with torch.no_grad():
        check_adjoint(LinearMap.from_function(lambda x: weight @ x, (2,)))


def test_wrong_functions_are_refused() -> None:
    """An affine function, a wrong range and a tensor that is no matrix are errors."""
    with pytest.raises(InputError, match="zero at zero"):
        LinearMap.from_function(lambda x: x + 1, (2,))
    with pytest.raises(InputError, match="range_shape"):
        LinearMap.from_function(lambda x: x, (2,), (3,))
    with pytest.raises(InputError, match="Expected a matrix"):
        LinearMap.from_matrix(torch.ones(3))
