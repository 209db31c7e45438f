"""NS201: batches too small for BatchNorm."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from checking import found, noise
from normscope.core.finding import Severity
from normscope.doctor import check


def _images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).eval()


def _vectors() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)).eval()


@pytest.mark.parametrize(("size", "told"), [(2, True), (7, True), (8, False), (64, False)])
def test_few_images(size: int, told: bool) -> None:
    """The values of one image are not independent."""
    assert bool(found("NS201", _images(), input_shape=(3, 8, 8), batch_size=size)) is told


def test_vectors_need_more_samples() -> None:
    """One value per sample and channel; the error told is that of a normal sample."""
    (one,) = found("NS201", _vectors(), input_shape=(3,), batch_size=12)
    assert one.evidence["values_per_channel"] == 12
    variances = noise(4000, 12, seed=1).var(1)
    assert float(variances.std() / variances.mean()) == pytest.approx(float(one.evidence["relative_error"]), rel=0.1)
    assert found("NS201", _vectors(), input_shape=(3,), batch_size=16) == []


def test_one_value_per_channel_cannot_be_trained_on() -> None:
    """As torch says itself."""
    (one,) = found("NS201", _vectors(), input_shape=(3,), batch_size=1)
    assert one.severity is Severity.ERROR
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        _vectors().train()(noise(1, 3))


def test_a_last_batch_of_one_is_told_from_the_loader() -> None:
    """33 samples in batches of 16."""

    def told(samples: int, *, drop: bool) -> list[str]:
        loader = DataLoader(TensorDataset(noise(samples, 3)), batch_size=16, drop_last=drop)
        return [f.message for f in found("NS201", _vectors(), loader)]

    assert len(told(33, drop=False)) == 1
    assert told(33, drop=True) == []
    assert told(32, drop=False) == []


def test_nothing_is_said_without_batch_norm_or_batch_size() -> None:
    """LayerNorm does not care, and a tensor of data is no training batch."""
    assert found("NS201", nn.LayerNorm(4), noise(2, 4), batch_size=2) == []
    assert "NS201" in check(_vectors(), torch.zeros(2, 3)).skipped
