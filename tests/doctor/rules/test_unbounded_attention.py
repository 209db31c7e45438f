"""NS503: attention with and without normalizers before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import initialized, noise, places
from networks import Lambda


def _fused(s: Lambda, x: Tensor) -> Tensor:
    x = s.norm(x)
    return nn.functional.scaled_dot_product_attention(s.q(x), s.k(x), s.v(x))


def _by_hand(s: Lambda, x: Tensor) -> Tensor:
    x = s.norm(x)
    return torch.softmax(s.q(x) @ s.k(x).mT / 8**0.5, -1) @ s.v(x)


def _qk_norm(s: Lambda, x: Tensor) -> Tensor:
    q, k = nn.functional.normalize(s.q(x), dim=-1), nn.functional.normalize(s.k(x), dim=-1)
    return nn.functional.scaled_dot_product_attention(q, k, s.v(x))


def _of(function: object, norm: nn.Module) -> nn.Module:
    parts = {name: nn.Linear(8, 8) for name in "qkv"}
    return initialized(Lambda(function, norm=norm, **parts))  # type: ignore[arg-type]


def test_a_normalizer_before_bounds_the_logits() -> None:
    """Fused and written out, with LayerNorm and RMSNorm; without one they are told."""
    for function in (_fused, _by_hand):
        assert places("NS503", _of(function, nn.Identity()), noise(2, 5, 8)) == [""]
        for norm in (nn.LayerNorm(8), nn.RMSNorm(8)):
            assert places("NS503", _of(function, norm), noise(2, 5, 8)) == []


def test_normalized_queries_and_keys_are_enough() -> None:
    """QK-norm."""
    assert places("NS503", _of(_qk_norm, nn.Identity()), noise(2, 5, 8)) == []


def test_a_softmax_of_a_linear_layer_is_no_attention() -> None:
    """A classifier."""
    assert places("NS503", nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1)), noise(3, 8)) == []
