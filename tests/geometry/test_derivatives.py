"""Exact derivatives of standardization, to second order, and of weight normalization against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.derivatives import (
    batch_norm_backward,
    batch_norm_hessian,
    batch_norm_hessian_spectrum,
    layer_norm_backward,
    standardization_core,
    standardized,
    weight_norm_gradients,
)

EPS = (0.0, 1e-5, 0.1, 3.0)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("m", [2, 3, 7])
def test_the_core_over_the_scale_is_the_jacobian(m: int, eps: float) -> None:
    z = _normal(m, m)
    jacobian = torch.autograd.functional.jacobian(lambda x: standardized(x, eps)[0], z)
    scale = standardized(z, eps)[1]
    assert torch.allclose(standardization_core(z, eps) / scale, jacobian, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("eps", EPS[1:])  # torch's batch norm refuses eps = 0
def test_standardized_values_are_those_of_torch(eps: float) -> None:
    x = _normal(1, 6, 4)
    assert torch.allclose(
        standardized(x, eps)[0], torch.nn.functional.batch_norm(x, None, None, training=True, eps=eps)
    )
    assert torch.allclose(standardized(x, eps, -1)[0], torch.nn.functional.layer_norm(x, (4,), eps=eps))


@pytest.mark.parametrize("eps", EPS[1:])
def test_batch_norm_backward_is_that_of_torch(eps: float) -> None:
    z, delta, gamma = _normal(2, 9, 3).requires_grad_(), _normal(3, 9, 3), _normal(4, 3)
    out = torch.nn.functional.batch_norm(z, None, None, gamma, training=True, eps=eps)
    (true,) = torch.autograd.grad(out, z, delta)
    ours = batch_norm_backward(delta, z, gamma, eps)
    assert torch.allclose(ours, true, rtol=1e-10, atol=1e-12)
    assert torch.allclose(ours.sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("eps", EPS)
def test_layer_norm_backward_is_that_of_torch(eps: float) -> None:
    z, delta, gamma = _normal(5, 4, 6).requires_grad_(), _normal(6, 4, 6), _normal(7, 6)
    (true,) = torch.autograd.grad(torch.nn.functional.layer_norm(z, (6,), gamma, eps=eps), z, delta)
    ours = layer_norm_backward(delta, z, gamma, eps)
    assert torch.allclose(ours, true, rtol=1e-10, atol=1e-12)
    assert torch.allclose(ours.sum(-1), torch.zeros(4, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("loss", ["square", "quartic"])
def test_the_second_derivative_is_that_of_double_backward(loss: str, eps: float) -> None:
    z, target, gamma = _normal(8, 6), _normal(9, 6), 1.7

    def error(x: Tensor) -> Tensor:
        difference = gamma * standardized(x, eps)[0] + 0.3 - target
        return (difference**2 / 2 if loss == "square" else difference**4 / 12).sum()

    true = torch.autograd.functional.hessian(error, z)
    difference = gamma * standardized(z, eps)[0] + 0.3 - target
    delta = difference if loss == "square" else difference**3 / 3
    curvature = torch.ones_like(z) if loss == "square" else difference**2
    assert torch.allclose(batch_norm_hessian(z, delta, curvature, gamma, eps), true, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("eps", EPS)
def test_the_spectrum_at_zero_residual(eps: float) -> None:
    z = _normal(10, 6)
    full = batch_norm_hessian(z, torch.zeros(6), torch.ones(6), 0.8, eps)
    spectrum = batch_norm_hessian_spectrum(z, 0.8, eps)
    assert torch.allclose(torch.linalg.eigvalsh(full), spectrum.sort().values, rtol=1e-10, atol=1e-12)


def test_what_is_not_defined_is_refused() -> None:
    with pytest.raises(InputError, match="undefined"):
        standardization_core(torch.ones(3), 0.0)
    with pytest.raises(InputError, match="one shape"):
        batch_norm_backward(torch.ones(3), torch.ones(4), 1.0, 1.0)
    with pytest.raises(InputError, match="one per sample"):
        batch_norm_hessian(torch.arange(3.0), torch.ones(3), torch.ones(2), 1.0, 1.0)
    with pytest.raises(InputError, match="at least two"):
        batch_norm_hessian_spectrum(torch.ones(1), 1.0, 1.0)
    with pytest.raises(InputError, match="eps"):
        standardization_core(torch.arange(3.0), -1.0)
    with pytest.raises(InputError, match="positions first"):
        batch_norm_backward(torch.ones(2, 3, 4), torch.ones(2, 3, 4), 1.0, 1.0)
    with pytest.raises(InputError, match="3 elements"):
        batch_norm_backward(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2), 1.0)
    with pytest.raises(InputError, match="3 elements"):
        layer_norm_backward(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2), 1.0)


def test_images_are_normalized_over_samples_and_positions() -> None:
    """As torch does it: channels last, everything else in front."""
    z, delta, gamma = _normal(11, 2, 3, 4, 5).requires_grad_(), _normal(12, 2, 3, 4, 5), _normal(13, 3)
    out = torch.nn.functional.batch_norm(z, None, None, gamma, training=True)
    (true,) = torch.autograd.grad(out, z, delta)
    flat = [t.detach().movedim(1, -1).reshape(-1, 3) for t in (delta, z, true)]
    assert torch.allclose(batch_norm_backward(flat[0], flat[1], gamma, 1e-5), flat[2], rtol=1e-10, atol=1e-12)


def test_gradients_of_weight_norm_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    g = torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_()
    back = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    weight = torch._weight_norm(v, g[:, None], 0)
    true_v, true_g = torch.autograd.grad(weight, (v, g), back)
    ours_v, ours_g = weight_norm_gradients(v, g, back)
    assert torch.allclose(ours_v, true_v, rtol=1e-12)
    assert torch.allclose(ours_g, true_g, rtol=1e-12)
    assert torch.allclose((ours_v * v).sum(1), torch.zeros(4, dtype=torch.float64), atol=1e-14)


def test_weight_norm_of_a_zero_vector_is_refused() -> None:
    with pytest.raises(InputError, match="nonzero"):
        weight_norm_gradients(torch.zeros(1, 2), torch.ones(1), torch.ones(1, 2))
    with pytest.raises(InputError, match="one entry per row"):
        weight_norm_gradients(torch.ones(1, 2), torch.ones(2), torch.ones(1, 2))
