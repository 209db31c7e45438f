"""Pairs and triplets: cosines near zero, rankings, anchors between the others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from losses import generator, normal, rows
from normscope.core.errors import InputError
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.embedding import cosine_embedding, margin_ranking, triplet_margin


def test_cosines() -> None:
    """Near zero against a large orthogonal vector the slope is ``1/sqrt(eps)``; above a floor ``sqrt(2)/r``."""
    loss, one = nn.CosineEmbeddingLoss(), torch.ones(1, dtype=torch.float64)
    near = loss_at(loss, rows([1e-12, 0.0]), rows([0.0, 1e3]), one, inputs=2).value
    assert near == pytest.approx(cosine_embedding(2).value, rel=1e-6)
    floor = loss_at(loss, rows([2.0, 0.0]), rows([0.0, 2.0]), one, inputs=2).value
    assert floor == pytest.approx(cosine_embedding(2, floor=2.0).value, rel=1e-9)
    for seed in range(100):
        a, b = (10.0 ** (-3 + (seed + i) % 5 * 1.5) * normal(generator(2 * seed + i), 1, 3) for i in (0, 1))
        here = loss_at(loss, a, b, one, inputs=2).value
        least = min(float(torch.linalg.vector_norm(x)) for x in (a, b))
        assert here <= cosine_embedding(3, floor=least).value * (1 + 1e-12)
    with pytest.raises(InputError, match="eps is positive"):
        cosine_embedding(2, eps=0.0)


def test_pairs_and_triplets() -> None:
    """A ranking has ``sqrt(2)``; an anchor between positive and negative ``sqrt(6)``."""
    x, zero = rows([1.0, 2.0]), torch.zeros(1, 2, dtype=torch.float64)
    ranked = loss_at(nn.MarginRankingLoss(margin=9.0), x, zero, torch.ones(1, 2, dtype=torch.float64), inputs=2)
    assert ranked.value == pytest.approx(margin_ranking(2).value, rel=1e-12)
    triplet = loss_at(nn.TripletMarginLoss(margin=9.0, eps=0.0), zero, x, -x, inputs=3)
    assert triplet.value == pytest.approx(triplet_margin(2).value, rel=1e-12)
    with pytest.raises(InputError, match="norm 2"):
        triplet_margin(2, p=1.0)
