"""NS214: padding."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from normscope.doctor.rules.padding_in_statistics import padded_share


def _padded(value: float = 0.0) -> torch.Tensor:
    x = noise(32, 3, 10)
    for i, row in enumerate(x):
        row[:, 3 + i % 7 :] = value
    return x


def test_padding_of_unequal_length_is_told() -> None:
    """At every BatchNorm and InstanceNorm over places, not at one of single vectors, nor at other normalizers."""
    conv = nn.Conv1d(3, 4, 3, padding=1, bias=False)
    (one,) = found("NS214", nn.Sequential(conv, nn.BatchNorm1d(4)), _padded())
    assert one.place == "1"
    (one,) = found("NS214", nn.Sequential(conv, nn.InstanceNorm1d(4)), _padded())
    assert "instance_norm" in one.message
    assert found("NS214", nn.Sequential(conv, nn.BatchNorm1d(4)), noise(32, 3, 10)) == []
    assert found("NS214", nn.Sequential(conv, nn.GroupNorm(2, 4)), _padded()) == []


def test_what_is_padding() -> None:
    """A constant tail of different lengths; ids too; pictures with blank borders all around are not padded."""
    assert 0.3 < padded_share(_padded()) < 0.5
    assert padded_share(noise(32, 3, 10)) == 0.0
    ids = torch.arange(1, 41).reshape(4, 10)
    ids[0, 4:], ids[1, 7:] = 0, 0
    ids[2, 2:] = 0
    assert padded_share(ids.repeat(4, 1)) > 0.2
    framed = torch.zeros(16, 1, 12, 12)
    for i, picture in enumerate(framed):
        picture[:, 2:-2, 2 : 6 + i % 4] = 1.0
    assert padded_share(framed) == 0.0


def test_places_that_are_rows() -> None:
    """Sequences flattened to rows before BatchNorm; vectors are no sequences."""
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    (one,) = found("NS214", model, _padded().transpose(1, 2).contiguous())
    assert one.place == "2"
