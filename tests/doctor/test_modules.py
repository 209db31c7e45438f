"""What modules tell."""

from __future__ import annotations

from torch import nn

from normscope.doctor.modules import batch_norms, is_normalizer, listed_channels, role


class MyRMSNorm(nn.Module):
    """A class that is called so."""


def test_normalizers_by_class() -> None:
    """torch's, and others by name."""
    model = nn.Sequential(nn.BatchNorm2d(2), MyRMSNorm(), nn.GroupNorm(1, 2), nn.Linear(2, 2))
    assert [is_normalizer(m) for m in model] == [True, True, True, False]
    assert [path for path, _ in batch_norms(model)] == ["0"]


def test_words() -> None:
    """Numbers of paths, and of channels."""
    assert role("a.0.b1.22") == "a.*.b1.*"
    assert listed_channels(range(20)).endswith("11 and 8 more")
