"""NS203: running statistics and the data."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, initialized, noise
from normscope import check
from normscope.core.finding import Severity
from normscope.doctor.probe import channel_statistics
from normscope.doctor.rules.drifted_statistics import drift


def _trained(x: torch.Tensor) -> nn.Module:
    """Return a network whose running statistics are those of some data."""
    model = initialized(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.ReLU(), nn.Linear(5, 2)))
    model.train()
    with torch.no_grad():
        for part in x.split(64):
            model(part)
    return model.eval()


def test_other_data_is_told_and_the_same_is_not() -> None:
    """Shifted, scaled, and another sample of the same."""
    x = noise(512, 6)
    model = _trained(x)
    assert found("NS203", model, noise(256, 6, seed=1)) == []
    assert found("NS203", model, noise(24, 6, seed=2)) == []  # a small sample is given room
    for other in (x * 255, x + 5, x * 0.01):
        (one,) = found("NS203", model, other)
        assert (one.place, one.severity) == ("1", Severity.WARNING)


def test_a_few_images_are_enough_for_what_is_far_off() -> None:
    """As of a network so large that no more are looked at; fewer than four are said to be too few."""
    model = initialized(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.ReLU()))
    x = noise(64, 3, 10, 10)
    model.train()
    with torch.no_grad():
        model(x)
    model.eval()
    for seed in range(1, 9):
        assert found("NS203", model, noise(4, 3, 10, 10, seed=seed), limit=4) == []
    (one,) = found("NS203", model, 255 * x, limit=4)
    assert one.place == "1"
    few = check(model, x, limit=3)
    assert "NS203" not in few.ran
    assert few.skipped["NS203"] == "needs at least 4 samples of a network this large (--limit 4)"
    assert check(model, input_shape=(3, 10, 10)).skipped["NS203"] == "needs data (--data)"


def test_the_numbers_are_those_of_the_data() -> None:
    """Shift and factor by hand."""
    x = noise(4096, 6)
    model = _trained(x)
    before = model[0](3 * x).detach().double()
    mean, variance = before.mean(0), before.var(0, correction=0)
    seen = channel_statistics(before, 1)
    assert torch.allclose(seen.mean, mean)
    assert torch.allclose(seen.variance, variance)
    found_drift = drift(seen, (model[1].running_mean, model[1].running_var), 1e-5, 4096)
    factor = (variance + 1e-5) / (model[1].running_var.double() + 1e-5)
    assert found_drift.channels == (0, 1, 2, 3, 4)
    assert abs(found_drift.factor - float(factor.max())) < 1e-9 * found_drift.factor
    assert 8.5 < found_drift.factor < 9.5


def _deep() -> nn.Sequential:
    """Return a network with three normalizers, and statistics of its own data."""
    layers = [m for _ in range(3) for m in (nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6, momentum=None), nn.Tanh())]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for part in noise(512, 6).split(64):
            model(part)
    return model.eval()


def test_the_layer_and_the_channel_concerned_are_told() -> None:
    """Not one before or after it, nor another with another number of samples."""
    model = _deep()
    assert found("NS203", model, noise(256, 6, seed=1)) == []
    model[4].running_var.mul_(100)
    for limit in (None, 64, 32):
        assert [f.place for f in found("NS203", model, noise(256, 6, seed=1), limit=limit)] == ["4"]
    model = _deep()
    model[7].running_var[2] *= 100
    (one,) = found("NS203", model, noise(256, 6, seed=1))
    assert (one.place, one.evidence["first_channel"], one.evidence["channels"]) == ("7", 2, 1)


def test_a_baseline_of_one_layer_hides_no_other() -> None:
    """The fingerprint is that of the layer."""
    model = _deep()
    model[1].running_var.mul_(100)
    known = {f.key for f in found("NS203", model, noise(256, 6, seed=1))}
    model[7].running_var.mul_(100)
    now = {f.key for f in found("NS203", model, noise(256, 6, seed=1))}
    assert now - known == {("NS203", "7")}


def test_factors_of_two_and_a_half_in_every_channel() -> None:
    """All channels together are evidence that one alone is not; what counted few batches has not settled."""
    x = noise(512, 6)
    for factor, told in ((2.6, ["1"]), (1.6, [])):
        model = _trained(x)
        model[1].running_var.div_(factor)
        assert [f.place for f in found("NS203", model, noise(256, 6, seed=1))] == told
    model = _trained(x)
    model[1].running_var[2] /= 2.6
    assert found("NS203", model, noise(256, 6, seed=1)) == []
    model[1].running_var.div_(2.6)
    model[1].momentum = 0.01  # after eight batches nine tenths of the first values are left
    assert found("NS203", model, noise(64, 6, seed=1)) == []


def test_a_channel_that_is_closed_does_not_count() -> None:
    """Its statistics have no effect."""
    model = _trained(noise(512, 6))
    model[1].running_var[2] *= 1e4
    assert found("NS203", model, noise(256, 6, seed=1))
    with torch.no_grad():
        model[1].weight[2] = 0
    assert found("NS203", model, noise(256, 6, seed=1)) == []


class _Own(nn.Module):
    """A normalizer of vectors with statistics of its own, or a standardization of the data."""

    def __init__(self, mean: torch.Tensor, var: torch.Tensor, *, deviation: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.register_buffer("running_mean", mean)
        self.register_buffer("std" if deviation else "running_var", var.sqrt() if deviation else var)
        self.deviation = deviation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.deviation:
            return (x - self.running_mean) / self.std
        return (x - self.running_mean) / torch.sqrt(self.running_var + 1e-5) * self.weight + 0.3


def test_statistics_of_ones_own() -> None:
    """Written out, by variances or deviations; what is wrong with one is not told at the next."""
    x = 3 + 2 * noise(256, 6)
    right = x.mean(0), x.var(0)
    for deviation in (False, True):
        for statistics, told in ((right, []), ((right[0] - 5, right[1]), ["0"]), ((right[0], 9 * right[1]), ["0"])):
            first = _Own(*statistics, deviation=deviation)
            model = nn.Sequential(first, nn.Linear(6, 6), nn.Tanh())
            assert [f.place for f in found("NS203", model.eval(), x)] == told
    linear = initialized(nn.Linear(6, 6))
    clean = linear((x - right[0]) / (right[1] + 1e-5).sqrt() * torch.linspace(0.5, 1.5, 6) + 0.3).detach()
    second = _Own(clean.mean(0), clean.var(0), deviation=False)
    for factor, told in ((1, []), (25, ["0"])):
        model = nn.Sequential(_Own(right[0], factor * right[1], deviation=False), linear, second)
        assert [f.place for f in found("NS203", model.eval(), x)] == told


def test_a_new_model_is_another_matter() -> None:
    """Mean zero and variance one in every channel."""
    assert found("NS203", nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).eval(), noise(64, 6)) == []


def test_statistics_of_channels_whose_scale_is_zero_have_no_effect() -> None:
    """Pruned on purpose; with a scale they count."""
    x = noise(512, 6)
    model = _trained(x)
    model[1].running_var[:2] = 1e4
    (one,) = found("NS203", model, x)
    assert one.evidence["channels"] == 2
    with torch.no_grad():
        model[1].weight[:2] = 0.0
    assert found("NS203", model, x) == []


def test_one_channel_that_the_data_leaves_constant() -> None:
    """Is a dead unit, or a feature without spread, and its statistics are as good as any."""
    x = noise(256, 6)
    x[:, 3] = 0.0
    mean, variance = x.mean(0), x.var(0)
    variance[3] = 1.0
    assert found("NS203", nn.Sequential(_Own(mean, variance, deviation=True), nn.Linear(6, 2)), x) == []
