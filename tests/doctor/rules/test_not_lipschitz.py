"""NS504: jumps and unbounded slopes."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def test_a_jump_is_told() -> None:
    """The sign."""
    (one,) = found("NS504", Lambda(lambda s, x: torch.sign(s.a(x)), a=nn.Linear(4, 4)), noise(3, 4))
    assert one.severity is Severity.INFO
    assert one.message.startswith("aten.sign.default in forward() is not Lipschitz: ")


def test_a_product_of_unbounded_things_is_a_remark() -> None:
    """A gate without a normalizer; with one it has a constant."""
    gate = Lambda(lambda s, x: s.a(x) * s.b(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    (one,) = found("NS504", gate, noise(3, 4))
    assert one.severity is Severity.INFO
    bounded = Lambda(lambda s, x: s.a(s.n(x)) * s.b(s.n(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4), n=nn.LayerNorm(4))
    assert found("NS504", bounded, noise(3, 4)) == []


def test_ordinary_networks_are_lipschitz() -> None:
    """ReLU, GELU, softmax, pooling."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.GELU(), nn.Linear(4, 3), nn.Softmax(-1))
    assert found("NS504", model, noise(3, 4)) == []
