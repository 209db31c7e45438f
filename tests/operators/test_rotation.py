"""Complex numbers as pairs of real ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normscope
from networks import Lambda, jacobian_norm, points
from normscope.testing.upper_bound import check_upper_bound

ANGLES = torch.tensor([0.3, 2.0, -1.0], dtype=torch.float64)


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def _flat(z: Tensor) -> Tensor:
    return torch.view_as_real(z).flatten(-2)


FACTORS = {
    "turned": torch.polar(torch.ones(3).double(), ANGLES),
    "turned and scaled": torch.polar(torch.tensor([0.5, 3.0, 0.0]).double(), ANGLES),
    "one for all": torch.tensor(2.0 - 1.0j, dtype=torch.complex128),
    "real": torch.tensor([1.0, -4.0, 2.0], dtype=torch.float64),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_product_with_constants_has_their_largest_modulus(name: str) -> None:
    """From both sides, and as the Jacobian has it."""
    model = Lambda(lambda s, x: _flat(s.c * _pairs(x)), c=FACTORS[name])
    found = normscope.analyze(model, points(2, 6)).end_to_end
    truth = jacobian_norm(model, points(1, 6))
    assert truth == pytest.approx(float(FACTORS[name].abs().max()), rel=1e-12)
    assert found["global"].value == pytest.approx(truth, rel=1e-9)  # type: ignore[union-attr]
    assert found["lower"].value == pytest.approx(truth, rel=1e-6)  # type: ignore[union-attr]


def test_a_turned_and_mapped_vector_keeps_its_norm() -> None:
    """Rotary positions behind a linear layer: the layer's norm, not a product of two."""
    linear = nn.Linear(6, 6, bias=False).double()
    model = Lambda(lambda s, x: _flat(_pairs(s.l(x)) * s.c), l=linear, c=FACTORS["turned"])
    found = normscope.analyze(model, points(2, 5, 6)).end_to_end["global"]
    assert found is not None
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(linear.weight.detach(), 2)), rel=1e-9)


def test_entries_of_turned_pairs_may_be_larger() -> None:
    """An entry of a turned pair is up to a root of two larger: a gate behind it must know."""
    eighth = torch.polar(torch.ones(3).double(), torch.full((3,), math.pi / 4).double())
    model = Lambda(lambda s, x: _flat(_pairs(torch.tanh(4 * x)) * s.c) * x.sin(), c=eighth)
    upper = normscope.analyze(model, points(2, 6)).end_to_end["global"]
    assert upper is not None
    largest = max(jacobian_norm(model, p[None]) for p in 3.0 * points(200, 6))
    checked = check_upper_bound(model, [points(4, 6)])
    assert checked.violations == []
    assert largest <= upper.value


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _flat(_pairs(x) * _pairs(x)),
        lambda x: _pairs(x).angle(),
        lambda x: _flat(_pairs(x).exp()),
        lambda x: _flat(_pairs(x) / (2.0 + _pairs(x))),
    ],
)
def test_anything_else_is_not_understood(function: Callable[[Tensor], Tensor]) -> None:
    """And listed."""
    result = normscope.analyze(Lambda(lambda s, x: function(x), p=nn.Parameter(torch.zeros(1))), points(2, 6))
    assert result.end_to_end["global"].log == math.inf  # type: ignore[union-attr]
    assert result.coverage.opaque
