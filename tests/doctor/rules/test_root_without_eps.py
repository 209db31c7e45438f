"""NS306: roots without eps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def _outside(s: Lambda, x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-5)


def _nowhere(s: Lambda, x: Tensor) -> Tensor:
    return x / x.pow(2).sum(-1, keepdim=True).sqrt()


def _inside(s: Lambda, x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def _standard(s: Lambda, x: Tensor) -> Tensor:
    return x / (x.std(-1, keepdim=True) + 1e-5)


def _scaled_dot(s: Lambda, x: Tensor) -> Tensor:
    return x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5


@pytest.mark.parametrize(
    ("forward", "told"), [(_outside, 1), (_nowhere, 1), (_inside, 0), (_standard, 0), (_scaled_dot, 0)]
)
def test_the_gradient_at_zero_says_the_same(forward: object, told: int) -> None:
    """NaN where the rule speaks, a number where it does not."""
    model = Lambda(forward)
    assert len(found("NS306", model, noise(8, 3, 6))) == told
    x = torch.zeros(1, 1, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert bool(gradient.isnan().any()) is bool(told)


@pytest.mark.parametrize(("least", "severity"), [(1.0, Severity.INFO), (1e-6, Severity.WARNING)])
def test_data_far_from_zero_makes_it_a_remark(least: float, severity: Severity) -> None:
    """As long as no sample comes near."""
    x = torch.ones(8, 6)
    x[3] = least
    assert [f.severity for f in found("NS306", Lambda(_nowhere), x)] == [severity]
    assert [f.severity for f in found("NS306", Lambda(_nowhere), input_shape=(6,))] == [Severity.WARNING]
