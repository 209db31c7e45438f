"""Normalizers in unusual states; the model given stays as it is."""

from __future__ import annotations

from torch import nn

from fingerprints import fingerprint
from normscope.testing.normalizer_states import with_random_normalizers, with_zero_normalizers


def test_only_the_normalizers_of_a_copy_change() -> None:
    """Random ones have scales of both signs, zero ones none."""
    model = nn.Sequential(nn.Linear(4, 40), nn.BatchNorm1d(40), nn.LayerNorm(40))
    before = fingerprint(model)
    changed = with_random_normalizers(model, 1)
    zero, half = with_zero_normalizers(model), with_zero_normalizers(model, 1)
    assert fingerprint(model) == before
    assert bool((changed[0].weight == model[0].weight).all())
    for norm in changed[1:]:
        assert bool((norm.weight < 0).any())
        assert bool((norm.weight > 0).any())
    assert bool((changed[1].running_var != 1).all())
    assert all(float(norm.weight.detach().abs().max()) == 0 for norm in zero[1:])
    assert {float(norm.weight.detach().abs().max()) for norm in half[1:]} <= {0.0, 1.0}
