"""BatchNorm folded into the layer before it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from checking import initialized, noise
from networks import Lambda
from normscope.doctor.fixes import fix
from normscope.doctor.fixes.fold import KIND


def _statistics(model: nn.Module) -> nn.Module:
    """Return the model with running statistics, scales and shifts of its own."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.1)
                if module.affine:
                    module.weight.copy_(torch.randn(module.num_features, generator=generator))
                    module.bias.copy_(torch.randn(module.num_features, generator=generator))
    return model.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_it_is_what_torch_makes_of_it(bias: bool, affine: bool) -> None:
    """The weight of torch's own fusion; and the outputs stay."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4, affine=affine), nn.ReLU())
    model = _statistics(initialized(model))
    x = noise(8, 3, 6, 6)
    result = fix(model, x, only=[KIND])
    other = copy.deepcopy(model)
    other.load_state_dict(result.state)
    if affine:
        fused = fuse_conv_bn_eval(model[0], model[1])
        assert torch.allclose(other[0].weight, fused.weight, atol=1e-6)
        shift = other[0].bias if bias else other[1].bias
        assert torch.allclose(shift, fused.bias, atol=1e-5)
    assert torch.allclose(other(x), model(x), atol=1e-5)
    (change,) = result.changes
    assert "nn.Identity()" in change.code


@pytest.mark.parametrize(
    "layer",
    [nn.ConvTranspose2d(3, 4, 2), nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 3, groups=3)],
    ids=["transposed", "1x1", "groups"],
)
def test_other_layers(layer: nn.Module) -> None:
    """Transposed, pointwise and grouped convolutions."""
    model = _statistics(initialized(nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels))))
    result = fix(model, noise(4, 3, 6, 6), only=[KIND])
    assert len(result.changes) == 1
    other = copy.deepcopy(model)
    other.load_state_dict(result.state)
    x = noise(4, 3, 6, 6, seed=9)
    assert torch.allclose(other(x), model(x), atol=1e-4)


def test_linear_layers() -> None:
    """On vectors."""
    model = _statistics(initialized(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))))
    assert len(fix(model, noise(4, 5), only=[KIND]).changes) == 1


def test_what_cannot_be_folded_is_refused_with_the_reason() -> None:
    """Read elsewhere, no layer before it, used twice, a parametrization."""
    conv = nn.Conv2d(3, 4, 1)
    cases = {
        "something else reads": Lambda(lambda s, x: (lambda y: s.n(y) + y)(s.a(x)), a=conv, n=nn.BatchNorm2d(4)),
        "no linear layer": nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)),
        "used in several places": Lambda(
            lambda s, x: s.n(s.a(x)).relu() + s.m(s.a(x)), a=conv, n=nn.BatchNorm2d(4), m=nn.BatchNorm2d(4)
        ),
        "parametrization": nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1, bias=False)), nn.BatchNorm2d(4)
        ),
    }
    for reason, model in cases.items():
        result = fix(_statistics(model), noise(4, 3, 5, 5), only=[KIND])
        assert result.changes == ()
        assert all(reason in r.reason for r in result.refusals), result.refusals
        assert result.refusals
