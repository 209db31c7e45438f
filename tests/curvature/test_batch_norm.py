"""The three modes of BatchNorm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.curvature.batch_norm import BatchNormMode, batch_statistics


@pytest.mark.parametrize("training", [True, False])
def test_each_mode_is_that_function_whatever_the_module_is_in(training: bool) -> None:
    norm = nn.BatchNorm2d(3).train(training)
    norm.running_mean += 1.0
    norm.running_var *= 4.0
    x = torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    before = norm.running_mean.clone()
    with BatchNormMode("batch"):
        batch = norm(x)
    with BatchNormMode("running"):
        running = norm(x)
    with BatchNormMode("frozen-batch"):
        frozen = norm(x)
    assert torch.equal(norm.running_mean, before)
    torch.testing.assert_close(running, (x - 1) / (4 + norm.eps) ** 0.5)
    torch.testing.assert_close(batch, frozen)
    torch.testing.assert_close(batch, nn.functional.batch_norm(x, None, None, training=True))
    _, variance = batch_statistics(x)
    slope = torch.autograd.grad(frozen.sum(), x)[0]  # statistics are constants: the gradient is 1/s
    torch.testing.assert_close(slope, (1 / (variance + norm.eps).sqrt()).view(1, 3, 1, 1).expand_as(x))
    assert float(torch.autograd.grad(batch.sum(), x)[0].abs().max()) < 1e-5


def test_without_running_statistics_there_are_those_of_the_batch() -> None:
    norm = nn.BatchNorm1d(2, track_running_stats=False).eval()
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    with BatchNormMode("running"):
        torch.testing.assert_close(norm(x), nn.functional.batch_norm(x, None, None, training=True))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InputError, match="Unknown mode 'train'"):
        BatchNormMode("train")


@pytest.mark.parametrize("mode", ["batch", "frozen-batch"])
def test_one_value_per_channel_is_refused_with_advice(mode: str) -> None:
    with pytest.raises(InputError, match="drop_last"), BatchNormMode(mode):
        nn.BatchNorm1d(3)(torch.ones(1, 3))
    with BatchNormMode("running"):
        assert nn.BatchNorm1d(3)(torch.ones(1, 3)).shape == (1, 3)


@pytest.mark.parametrize("mode", ["batch", "running", "frozen-batch"])
def test_scale_shift_and_eps_are_those_of_the_call(mode: str) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    scale, shift, mean, variance = (torch.tensor(v) for v in ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [1.0] * 3, [1.0] * 3))
    with BatchNormMode(mode):
        found = nn.functional.batch_norm(x, mean, 4 * variance, weight=scale, bias=shift, training=True, eps=0.5)
    centre, spread = (mean, 4 * variance) if mode == "running" else (x.mean(0), x.var(0, correction=0))
    torch.testing.assert_close(found, (x - centre) / (spread + 0.5).sqrt() * scale + shift)
