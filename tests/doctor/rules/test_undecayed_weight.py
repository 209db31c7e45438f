"""NS402 against gradients: scale-invariant weights are those with orthogonal gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, gradients, initialized, noise
from networks import Lambda
from normscope.doctor.rules.undecayed_weight import invariant_weights
from normscope.doctor.subject import examine


def test_invariant_weights_have_gradients_orthogonal_to_them() -> None:
    """Convolution and BatchNorm, linear and LayerNorm with and without bias, a last layer, a residual branch."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        main = s.n2(s.free(s.n1(s.conv(x)).relu().mean((2, 3)))).relu()
        return s.last(main + s.n3(s.biased(x.mean((2, 3)))))

    parts = {
        "conv": nn.Conv2d(3, 4, 3, bias=False),
        "n1": nn.BatchNorm2d(4),
        "free": nn.Linear(4, 6, bias=False),
        "n2": nn.LayerNorm(6),
        "biased": nn.Linear(3, 6),
        "n3": nn.LayerNorm(6),
        "last": nn.Linear(6, 2),
    }
    model = initialized(Lambda(forward, **parts))
    x = noise(8, 3, 6, 6)
    found_weights = set(invariant_weights(examine(model, x)))
    assert found_weights == {"conv.weight", "free.weight"}
    grads = gradients(model, x)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            weight = parameter.detach()
            cosine = float((grads[name] * weight).sum() / (grads[name].norm() * weight.norm()))
            assert (abs(cosine) < 1e-3) == (name in found_weights), name


def test_without_decay_they_are_told() -> None:
    """And with it they are not."""
    model = initialized(nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)))
    free = torch.optim.SGD(model.parameters(), lr=0.1)
    (one,) = found("NS402", model, noise(4, 4), optimizer=free)
    assert one.evidence["first"] == "0.weight"
    decayed = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    assert found("NS402", model, noise(4, 4), optimizer=decayed) == []


def test_a_weight_used_twice_must_be_invariant_twice() -> None:
    """Before a normalizer, and at the end."""
    model = Lambda(lambda s, x: s.a(s.n(s.a(x))), a=nn.Linear(4, 4, bias=False), n=nn.LayerNorm(4))
    assert invariant_weights(examine(initialized(model), noise(4, 4))) == {}
