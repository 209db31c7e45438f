"""Hinges: the best rival and all rivals, written out, at points where they attain their constants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from losses import Formula, generator, largest_gradient, normal, rivals, rows
from normscope.core.errors import InputError
from normscope.lipschitz.loss.constants import loss_at
from normscope.lipschitz.loss.margins import (
    cosine_embedding,
    crammer_singer,
    margin_ranking,
    multi_margin,
    multilabel_margin,
    triplet_margin,
    weston_watkins,
)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_losses_of_classes_that_torch_does_not_have(k: int) -> None:
    """Crammer-Singer and Weston-Watkins, written out, at zero outputs where every rival is active."""
    target, zero = torch.tensor([1]), torch.zeros(1, k, dtype=torch.float64)
    zero[0, 0] = 0.5  # one best rival
    single = Formula(lambda h, y: rivals(h, y).max().clamp_min(0))
    every = Formula(lambda h, y: rivals(h, y).clamp_min(0).sum())
    assert loss_at(single, zero, target).value == pytest.approx(crammer_singer(k).value, rel=1e-12)
    assert loss_at(every, zero, target).value == pytest.approx(weston_watkins(k).value, rel=1e-12)

    def draw(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
        return scale * normal(source, 1, k), target

    assert largest_gradient(single, draw, starts=2, steps=5) <= crammer_singer(k).value * (1 + 1e-12)
    assert largest_gradient(every, draw, starts=2, steps=5) <= weston_watkins(k).value * (1 + 1e-12)


@pytest.mark.parametrize(("k", "margin", "radius"), [(2, 1.0, 3.0), (5, 0.5, 2.0), (6, 0.0, 1.0)])
def test_squared_margins_on_a_ball(k: int, margin: float, radius: float) -> None:
    """Attained along ``(1, ..., 1, -(k - 1))``, and by nothing else on the ball exceeded."""
    loss = nn.MultiMarginLoss(p=2, margin=margin)
    upper = multi_margin(k, p=2, margin=margin, radius=radius).value
    direction = torch.ones(1, k, dtype=torch.float64)
    direction[0, 0] = 1 - k
    worst = radius * direction / torch.linalg.vector_norm(direction)
    assert loss_at(loss, worst, torch.tensor([0])).value == pytest.approx(upper, rel=1e-12)
    for seed in range(50):
        h = normal(generator(seed), 1, k)
        h = radius * h / torch.linalg.vector_norm(h)
        assert loss_at(loss, h, torch.tensor([0])).value <= upper


def test_power_of_margins() -> None:
    """One or two."""
    with pytest.raises(InputError, match="1 or 2, got 3"):
        multi_margin(4, p=3)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_labels_by_half(k: int) -> None:
    """At zero outputs every pair is active; half of the classes as labels is worst."""
    best = 0.0
    for a in range(1, k + 1):
        target = torch.full((1, k), -1)
        target[0, :a] = torch.arange(a)
        best = max(best, loss_at(nn.MultiLabelMarginLoss(), torch.zeros(1, k, dtype=torch.float64), target).value)
    assert best == pytest.approx(multilabel_margin(k).value, rel=1e-12)


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
    with pytest.raises(InputError, match="positive eps"):
        cosine_embedding(2, eps=0.0)


def test_pairs_and_triplets() -> None:
    """A ranking has ``sqrt(2)``; an anchor between positive and negative ``sqrt(6)``."""
    x, zero = rows([1.0, 2.0]), torch.zeros(1, 2, dtype=torch.float64)
    ranked = loss_at(nn.MarginRankingLoss(margin=9.0), x, zero, torch.ones(1, 2, dtype=torch.float64), inputs=2)
    assert ranked.value == pytest.approx(margin_ranking(2).value, rel=1e-12)
    triplet = loss_at(nn.TripletMarginLoss(margin=9.0, eps=0.0), zero, x, -x, inputs=3)
    assert triplet.value == pytest.approx(triplet_margin(2).value, rel=1e-12)
    with pytest.raises(InputError, match="p = 2"):
        triplet_margin(2, p=1.0)
