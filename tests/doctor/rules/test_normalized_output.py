"""NS106: normalized outputs."""

from __future__ import annotations

from torch import nn

from checking import found, noise
from networks import Lambda
from normscope import check


def test_small_outputs_only() -> None:
    """A classifier's logits, also behind a softmax; not an embedding, not tokens, not a layer in the middle."""
    for layers, told in (
        ((nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3)), 1),
        ((nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3)), 0),
        ((nn.Linear(6, 6), nn.Linear(6, 3), nn.LayerNorm(3), nn.Softmax(-1)), 1),
        ((nn.Linear(6, 6), nn.Linear(6, 128, bias=False), nn.BatchNorm1d(128)), 0),
        ((nn.Linear(6, 3), nn.LayerNorm(3), nn.Linear(3, 3)), 0),
    ):
        assert len(found("NS106", nn.Sequential(*layers), noise(8, 6))) == told
    assert found("NS106", nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6)), noise(8, 4, 6)) == []
    assert "NS106" not in check(nn.BatchNorm1d(3), noise(8, 3), purpose="contrastive").ran


def test_pooled_features_are_no_head() -> None:
    """A normalizer of means over tokens is one of features."""
    parts = {"a": nn.Linear(6, 8), "b": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}
    model = Lambda(lambda s, x: s.norm(s.b(s.a(x).relu()).mean(1)), **parts)
    assert found("NS106", model, noise(4, 5, 6)) == []
