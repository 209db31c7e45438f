"""NS303: doubling a weight before a normalizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from checking import found, initialized, noise
from normscope.core.finding import Certainty, Severity


def _scaled(factor: float) -> nn.Module:
    """Return a convolution scaled by a factor before BatchNorm, the running statistics following."""
    model = initialized(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, momentum=None), nn.ReLU()))
    with torch.no_grad():
        model[0].weight.mul_(factor)
        model.train()(noise(64, 3, 6, 6))
    return model.eval()


def test_a_small_weight_is_told_and_an_ordinary_one_is_not() -> None:
    """At 1e-3 the variances are about 1e-6, below eps = 1e-5."""
    assert found("NS303", _scaled(1.0), noise(64, 3, 6, 6)) == []
    (one,) = found("NS303", _scaled(1e-3), noise(64, 3, 6, 6))
    assert (one.place, one.certainty, one.severity) == ("0", Certainty.PROVED, Severity.WARNING)


def test_the_effect_of_doubling_is_the_one_told() -> None:
    """Measured in train mode on the channel of median variance."""
    model = _scaled(1e-3)
    (one,) = found("NS303", model, noise(64, 3, 6, 6))
    variance = model[1].running_var.double()
    channel = int((variance - variance.median()).abs().argmin())
    x = noise(64, 3, 6, 6)
    with torch.no_grad():
        model = model.double().train()
        before = model[1](model[0](x.double()))[:, channel].std()
        model[0].weight.mul_(2)
        after = model[1](model[0](x.double()))[:, channel].std()
    assert float(after / before) == pytest.approx(float(one.evidence["doubling"]), rel=1e-2)


def test_layer_norm_on_data() -> None:
    """A remark, from the least spread seen."""
    model = initialized(nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8), nn.ReLU()))
    assert found("NS303", model, noise(16, 6)) == []
    (one,) = found("NS303", model, 1e-3 * noise(16, 6))
    assert (one.certainty, one.severity) == (Certainty.MEASURED, Severity.INFO)
