"""NS307: numbers that the precision does not hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, initialized, noise
from networks import Lambda
from normscope.core.finding import Certainty, Severity


def _network() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return initialized(model)


def test_a_running_variance_beyond_half_precision() -> None:
    """Named with its layer; the channel is zero in half precision, as torch computes it."""
    model, x = _network(), noise(32, 8)
    assert found("NS307", model, x, dtype=torch.float16) == []
    model[1].running_var[3] = 1e5
    assert found("NS307", model, x) == []
    assert found("NS307", model, x, dtype=torch.bfloat16) == []
    (one,) = found("NS307", model, x, dtype=torch.float16)
    assert (one.place, one.severity, one.certainty) == ("1", Severity.ERROR, Certainty.PROVED)
    assert "1 of 8 entries of running_var" in one.message
    with torch.no_grad():
        half = model.half()[:2](x.half())
    assert half[:, 3].tolist() == [model[1].bias[3].item()] * 32  # its shift alone


def test_activations_that_overflow() -> None:
    """All weights fit, their products do not; the output of the model in half precision is no number."""
    model, x = nn.Sequential(*_network(), nn.LayerNorm(2)).eval(), noise(32, 8)
    with torch.no_grad():
        model[3].weight[0], model[3].weight[1] = 3e4, -3e4
    assert found("NS307", model, x) == []
    (one,) = found("NS307", model, x, dtype=torch.float16)
    assert (one.place, one.severity) == ("3", Severity.ERROR)
    assert "overflows float16" in one.message
    with torch.no_grad():
        assert not bool(torch.isfinite(model.half()(x.half())).all())


def test_a_layer_that_widens_is_kept_wide() -> None:
    """The same sum of squares overflows in half precision and not in float32."""

    def rms(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-3)

    narrow = nn.Sequential(nn.Linear(8, 8), Lambda(lambda s, x: rms(x)), nn.Linear(8, 2))
    wide = nn.Sequential(nn.Linear(8, 8), Lambda(lambda s, x: rms(x.float()).to(x.dtype)), nn.Linear(8, 2))
    x = 300 * noise(32, 8)
    assert [f.place for f in found("NS307", initialized(narrow), x, dtype=torch.float16)] == ["1"]
    assert found("NS307", initialized(wide), x, dtype=torch.float16) == []
    assert [f.place for f in found("NS307", initialized(narrow).half(), x.half())] == ["1"]


def test_without_data_only_weights_and_random_inputs_speak() -> None:
    """Nothing is lost in a plain network."""
    assert found("NS307", _network(), input_shape=(8,)) == []
    assert found("NS307", _network(), input_shape=(8,), dtype=torch.float16) == []
