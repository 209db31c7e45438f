"""NS215: dropout before BatchNorm."""

from __future__ import annotations

from torch import nn

from checking import found, noise


def test_only_right_before_it_and_only_if_it_drops() -> None:
    """Activations may lie between; a layer may not; the rate is told."""
    bn = nn.BatchNorm1d(6)
    for layers, told in (
        ((nn.Linear(6, 6), nn.Dropout(0.5), bn), 1),
        ((nn.Linear(6, 6), nn.Dropout(0.25), nn.ReLU(), bn), 1),
        ((nn.Linear(6, 6), nn.Dropout(0.0), bn), 0),
        ((nn.Dropout(0.5), nn.Linear(6, 6), bn), 0),
        ((nn.Linear(6, 6), nn.Dropout(0.5), nn.LayerNorm(6)), 0),
    ):
        assert len(found("NS215", nn.Sequential(*layers), noise(8, 6))) == told
    assert found("NS215", nn.Sequential(nn.Dropout(0.2), bn), noise(8, 6))[0].evidence["factor"] == 1.25
