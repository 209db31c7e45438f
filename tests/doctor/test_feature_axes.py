"""Which axes hold features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from checking import noise
from networks import Lambda
from normscope.doctor.feature_axes import channel_axis, feature_axes, varying
from normscope.doctor.subject import examine


def _split(s: Lambda, x: Tensor) -> Tensor:
    return s.layer(x).view(*x.shape[:2], 2, 3).transpose(1, 2)


def _joined(s: Lambda, x: Tensor) -> Tensor:
    heads = _split(s, x)
    return (heads @ heads.transpose(-1, -2) @ heads).transpose(1, 2).reshape(*x.shape[:2], 6)


@pytest.mark.parametrize(
    ("forward", "layer", "shape", "axes"),
    [
        (lambda s, x: s.layer(x).relu(), nn.Conv1d(3, 4, 1), (5, 3, 7), {1}),
        (lambda s, x: s.layer(x).relu(), nn.Linear(3, 4), (5, 7, 3), {2}),
        (lambda s, x: s.layer(x).transpose(1, 2), nn.Linear(3, 4), (5, 7, 3), {1}),
        (lambda s, x: s.layer(x).permute(0, 2, 3, 1), nn.Conv2d(3, 4, 1), (5, 3, 6, 7), {3}),
        (lambda s, x: s.layer(x).mean((2, 3)), nn.Conv2d(3, 4, 1), (5, 3, 6, 7), {1}),
        (lambda s, x: s.layer(x).flatten(2).transpose(1, 2), nn.Conv2d(3, 4, 1), (5, 3, 6, 7), {2}),
        (_split, nn.Linear(3, 6), (5, 7, 3), {1, 3}),
        (_joined, nn.Linear(3, 6), (5, 7, 3), {2}),
    ],
)
def test_features_are_followed(forward: object, layer: nn.Module, shape: tuple[int, ...], axes: set[int]) -> None:
    """Through views, activations and averages."""
    captured = examine(Lambda(forward, layer=layer), noise(*shape)).captured
    last = next(n for n in captured.graph if n.op == "output").args[0].name
    assert feature_axes(captured)[last] == axes


def test_words_for_one_axis() -> None:
    """None where there are several, or none is known."""
    assert channel_axis(None) is None
    assert channel_axis(frozenset({2})) == 2
    assert varying(torch.zeros(2, 3)) == frozenset()
