"""NS507: logits on the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda


def _fused(s: Lambda, x: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(s.q(x), s.k(x), x)


def _written(s: Lambda, x: Tensor) -> Tensor:
    scores = s.q(x) @ s.k(x).transpose(-1, -2) / 4
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, s.never).softmax(-1) @ x


def test_fused_and_written_out() -> None:
    """As large as computed by hand; masked entries are no logits; small ones say nothing."""
    for forward, never in ((_fused, 0.0), (_written, -torch.inf), (_written, torch.finfo(torch.float32).min)):
        model = Lambda(forward, q=nn.Linear(16, 16), k=nn.Linear(16, 16))
        model.never = never
        assert found("NS507", model, noise(8, 5, 16)) == []
        with torch.no_grad():
            model.q.weight.mul_(60)
            model.k.weight.mul_(60)
        (one,) = found("NS507", model, noise(8, 5, 16))
        assert 100 < one.evidence["distance"] < 1e6
