"""NS204: batch statistics in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Certainty, Severity


def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())


def test_a_layer_left_in_train_mode() -> None:
    """Only where the model itself is in evaluation: a model that trains is as it should be."""
    model = _network().eval()
    model[1].train()
    (one,) = found("NS204", model, noise(4, 3, 6, 6))
    assert (one.place, one.severity) == ("1", Severity.ERROR)
    assert model[1].training
    assert not model.training
    assert found("NS204", _network().eval(), noise(4, 3, 6, 6)) == []
    assert found("NS204", _network().train(), noise(4, 3, 6, 6)) == []


def test_statistics_of_the_batch_without_running_ones() -> None:
    """A BatchNorm that keeps none, and one written out: another sample changes the output."""
    kept = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).eval()

    def standardized(s: Lambda, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()

    for model in (kept, Lambda(standardized)):
        (one,) = found("NS204", model, noise(4, 4))
        assert one.severity is Severity.WARNING
        x = noise(4, 4)
        y = x.clone()
        y[1:] *= 3
        assert not torch.allclose(model(x)[0], model(y)[0])
    assert found("NS204", nn.InstanceNorm2d(3), noise(4, 3, 5, 5)) == []


def test_averages_over_the_batch_that_scale_samples() -> None:
    """A mean of everything; not that of each sample, nor one that is only returned."""

    def scaled(s: nn.Module, x: Tensor) -> Tensor:
        return s.fc(x) / (s.fc(x).square().mean() + 1e-5)

    (one,) = found("NS204", nn.Sequential(Lambda(scaled, fc=nn.Linear(6, 4))).eval(), noise(8, 6))
    assert (one.place, one.severity) == ("0", Severity.WARNING)
    fc = nn.Linear(6, 4)
    alone = Lambda(lambda s, x: s.fc(x) / (s.fc(x).square().mean(1, keepdim=True) + 1e-5), fc=fc)
    beside = Lambda(lambda s, x: (s.fc(x), s.fc(x).square().mean()), fc=fc)
    assert found("NS204", alone.eval(), noise(8, 6)) == []
    assert found("NS204", beside.eval(), noise(8, 6)) == []


def test_samples_that_meet_in_any_other_way() -> None:
    """A softmax over samples, entries that change places; pairs of samples may be meant."""
    fc = nn.Linear(6, 3)
    softmax = nn.Sequential(fc, nn.Softmax(0)).eval()
    (one,) = found("NS204", softmax, noise(8, 6))
    assert (one.place, one.severity, one.certainty) == ("1", Severity.WARNING, Certainty.MEASURED)
    mixed = nn.Sequential(fc, Lambda(lambda s, x: x.reshape(3, -1).t())).eval()
    assert [f.place for f in found("NS204", mixed, noise(8, 6))] == ["1"]
    pairs = nn.Sequential(fc, Lambda(lambda s, x: (x @ x.t()).softmax(-1) @ x)).eval()
    assert [f.severity for f in found("NS204", pairs, noise(8, 6))] == [Severity.INFO]
    assert found("NS204", nn.Sequential(fc, nn.Softmax(1)).eval(), noise(8, 6)) == []
