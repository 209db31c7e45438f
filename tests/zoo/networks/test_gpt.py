"""GPT: published size, causality, tied weights."""

from __future__ import annotations

import torch

from normscope.zoo.networks.gpt import GPT


def test_gpt2_has_its_published_size() -> None:
    """12 layers of width 768 with the embedding used twice."""
    with torch.device("meta"):
        model = GPT(vocabulary=50257, context=1024, width=768, layers=12, heads=12)
        model.head.weight = model.tokens.weight
    assert len(model.blocks) == 12
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_later_tokens_do_not_change_earlier_logits() -> None:
    """And the last token does change the last."""
    torch.manual_seed(0)
    model = GPT(width=16, layers=2).double().eval()
    ids = torch.randint(256, (1, 8), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % 256
    first, second = model(ids), model(other)
    torch.testing.assert_close(first[:, :-1], second[:, :-1], atol=1e-12, rtol=0)
    assert (first[:, -1] - second[:, -1]).abs().max() > 1e-6


def test_tying_shares_one_tensor() -> None:
    """The output layer is the embedding, or has its own weight."""
    tied, loose = GPT(tied=True), GPT(tied=False)
    assert tied.head.weight is tied.tokens.weight
    assert loose.head.weight is not loose.tokens.weight
