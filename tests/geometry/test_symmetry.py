"""What normalizers leave unchanged: functions, gradients, flows and the rank of the Jacobian."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.geometry.symmetry import (
    Kind,
    batch_norm_orbit,
    layer_norm_orbit,
    radial_derivative,
    scale_deviation,
    symmetry_dimension,
)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _normalized(kind: str, z: Tensor, eps: float = 0.0, groups: int = 1) -> Tensor:
    if kind == "batch":
        centred = z - z.mean(0)
        return centred / (centred.square().mean(0) + eps).sqrt()
    if kind == "rms":
        return z / (z.square().mean(1, keepdim=True) + eps).sqrt()
    return F.group_norm(z, groups, eps=eps) if kind in ("layer", "group") else z


def test_orbits_leave_the_normalized_values() -> None:
    x, weight, bias = _normal(0, 20, 3), _normal(1, 6, 3), _normal(2, 6)
    before = _normalized("batch", x @ weight.mT + bias)
    w, b = batch_norm_orbit(weight, _normal(3, 6).exp(), _normal(4, 6))
    assert torch.allclose(_normalized("batch", x @ w.mT + b), before, atol=1e-12)
    for groups in (1, 2):
        before = _normalized("group", x @ weight.mT + bias, groups=groups)
        w, b = layer_norm_orbit(weight, bias, _normal(5, groups).exp(), _normal(6, groups, 3), _normal(7, groups))
        after = _normalized("group", x @ w.mT + b, groups=groups)
        assert torch.allclose(after, before, atol=1e-11)
    other = layer_norm_orbit(weight, bias, torch.tensor([1.0, 2.0]), torch.zeros(2, 3), torch.zeros(2))
    assert not torch.allclose(
        _normalized("layer", x @ other[0].mT + other[1]), _normalized("layer", x @ weight.mT + bias)
    )


@pytest.mark.parametrize("c", [0.01, 0.5, 1.0, 3.0, 100.0])
def test_the_stabilizer_scales_the_output_as_said(c: float) -> None:
    z = _normal(8, 9)
    sigma = float(z.std(correction=0))
    ratio = F.layer_norm(c * z, (9,), eps=0.1) / F.layer_norm(z, (9,), eps=0.1)
    assert torch.allclose(ratio, torch.full((9,), scale_deviation(c, sigma, 0.1), dtype=torch.float64), rtol=1e-11)


@pytest.mark.parametrize("eps", [0.0, 0.1, 2.0])
def test_the_radial_derivative_is_that_of_autograd(eps: float) -> None:
    x, target = _normal(9, 15, 3), _normal(10, 15, 4)
    weight, bias, gamma = (_normal(s, *shape).requires_grad_() for s, shape in ((11, (4, 3)), (12, (4,)), (13, (4,))))
    z = x @ weight.mT + bias
    loss = (torch.tanh(_normalized("batch", z, eps) * gamma) - target).square().sum()
    to_weight, to_bias, to_gamma = torch.autograd.grad(loss, (weight, bias, gamma))
    said = radial_derivative(z.detach().var(0, correction=0), gamma, to_gamma, eps)
    assert torch.allclose((to_weight * weight).sum(1), said, rtol=1e-10, atol=1e-12)
    assert torch.allclose(to_bias, torch.zeros(4, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "groups", "affine", "activation"),
    [
        ("none", 1, True, "relu"), ("none", 1, True, "tanh"), ("batch", 1, False, "relu"), ("batch", 1, True, "relu"),
        ("batch", 1, True, "tanh"), ("layer", 1, True, "relu"), ("layer", 1, True, "tanh"), ("layer", 1, False, "relu"),
        ("group", 2, True, "tanh"), ("rms", 1, True, "tanh"), ("rms", 1, True, "relu"),
    ],
)  # fmt: skip
def test_the_dimension_is_what_the_rank_of_the_jacobian_lacks(
    kind: Kind, groups: int, affine: bool, activation: str
) -> None:
    neurons, inputs = 8, 3
    x = _normal(18, 120, inputs)
    shapes = [(neurons, inputs), (neurons,), (2, neurons), (2,)] + ([(neurons,), (neurons,)] if affine else [])
    if kind == "none":
        shapes = shapes[:4]
    theta = [_normal(20 + i, *shape) for i, shape in enumerate(shapes)]
    if len(theta) > 4:  # every unit is on for some samples and off for others
        theta[4], theta[5] = 1.0 + 0.1 * theta[4], 0.1 * theta[5]

    def network(*p: Tensor) -> Tensor:
        hidden = _normalized(kind, x @ p[0].mT + p[1], groups=groups)
        if len(p) > 4:
            hidden = hidden * p[4] + p[5]
        return getattr(torch, activation)(hidden) @ p[2].mT + p[3]

    jacobian = torch.autograd.functional.jacobian(network, tuple(theta))
    matrix = torch.cat([j.reshape(240, -1) for j in jacobian], 1)
    values = torch.linalg.svdvals(matrix)
    lacking = matrix.shape[1] - int((values > 1e-9 * values[0]).sum())
    said = symmetry_dimension(
        kind, neurons, inputs, groups=groups, affine=affine and kind != "none", homogeneous=activation == "relu"
    )
    assert lacking == said


def test_what_is_not_undone_is_refused() -> None:
    with pytest.raises(InputError, match="positive"):
        batch_norm_orbit(torch.ones(2, 1), torch.tensor([1.0, -1.0]), torch.zeros(2))
    with pytest.raises(InputError, match="Expected 2 scales"):
        batch_norm_orbit(torch.ones(2, 1), torch.ones(1), torch.zeros(2))
    with pytest.raises(InputError, match="positive"):
        layer_norm_orbit(torch.ones(2, 1), torch.ones(2), -torch.ones(1), torch.ones(1, 1), torch.ones(1))
    with pytest.raises(InputError, match="divide"):
        layer_norm_orbit(torch.ones(3, 1), torch.ones(3), torch.ones(2), torch.ones(2, 1), torch.ones(2))
    with pytest.raises(InputError, match="one of"):
        symmetry_dimension("cosine", 1, 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a sign"):
        symmetry_dimension("layer", 2, 3)
    with pytest.raises(InputError, match="groups dividing neurons"):
        symmetry_dimension("group", 8, 3, groups=3)
    with pytest.raises(InputError, match="positive"):
        scale_deviation(0.0, 1.0, 0.0)
