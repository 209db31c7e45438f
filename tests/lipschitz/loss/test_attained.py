"""Each family at a point that attains its constant, and values that do not depend on what they should not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from losses import generator, largest_gradient, normal
from normscope.core.errors import InputError
from normscope.lipschitz.loss.absolute import l1
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.binary import bce, bce_with_logits
from normscope.lipschitz.loss.embedding import cosine_embedding, margin_ranking, triplet_margin
from normscope.lipschitz.loss.euclidean import l2
from normscope.lipschitz.loss.hinge import crammer_singer, hinge, weston_watkins
from normscope.lipschitz.loss.huber import huber, smooth_l1
from normscope.lipschitz.loss.likelihood import kl, nll
from normscope.lipschitz.loss.multi_margin import multi_margin
from normscope.lipschitz.loss.multilabel import multilabel_margin, multilabel_soft_margin, soft_margin
from normscope.lipschitz.loss.square import half_square, mse


class Formula(nn.Module):
    """A loss given by a function of outputs and targets."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return self.function(outputs, target)  # type: ignore[operator, no-any-return]


def _rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _rivals(outputs: Tensor, target: Tensor) -> Tensor:
    """Return ``1 + h_j - h_y`` of the other classes of one sample."""
    others = torch.ones(outputs.shape[1], dtype=torch.bool).index_fill(0, target, False)
    return 1 + outputs[0, others] - outputs[0, target]


@pytest.mark.parametrize("k", [2, 3, 7])
def test_losses_of_classes_that_torch_does_not_have(k: int) -> None:
    """Crammer-Singer and Weston-Watkins, written out, at zero outputs where every rival is active."""
    target, zero = torch.tensor([1]), torch.zeros(1, k, dtype=torch.float64)
    zero[0, 0] = 0.5  # one best rival
    single = Formula(lambda h, y: _rivals(h, y).max().clamp_min(0))
    every = Formula(lambda h, y: _rivals(h, y).clamp_min(0).sum())
    assert loss_at(single, zero, target).value == pytest.approx(crammer_singer(k).value, rel=1e-12)
    assert loss_at(every, zero, target).value == pytest.approx(weston_watkins(k).value, rel=1e-12)

    def draw(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
        return scale * normal(source, 1, k), target

    assert largest_gradient(single, draw, starts=2, steps=5) <= crammer_singer(k).value * (1 + 1e-12)
    assert largest_gradient(every, draw, starts=2, steps=5) <= weston_watkins(k).value * (1 + 1e-12)


def test_distance() -> None:
    """The Euclidean distance has slope one everywhere but at the target."""
    distance = Formula(lambda h, y: torch.linalg.vector_norm(h - y, dim=1).mean())
    h, y = normal(generator(), 4, 5), normal(generator(1), 4, 5)
    assert loss_at(distance, h, y).value == pytest.approx(l2(5, batch=4).value, rel=1e-12)


def test_regressions_away_from_their_targets() -> None:
    """At errors of ten every slope is the largest."""
    h, y = 10 + torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64)
    for loss, upper in (
        (nn.L1Loss(), l1(5, batch=3)),
        (nn.HuberLoss(delta=4.0), huber(5, batch=3, delta=4.0)),
        (nn.SmoothL1Loss(beta=4.0), smooth_l1(5, batch=3, beta=4.0)),
        (nn.SmoothL1Loss(beta=0.0), smooth_l1(5, batch=3, beta=0.0)),
        (nn.MSELoss(), mse(5, batch=3, radius=math.sqrt(500))),
        (nn.MSELoss(reduction="sum"), mse(5, batch=3, radius=math.sqrt(500), reduction="sum")),
    ):
        assert loss_at(loss, h, y).value == pytest.approx(upper.value, rel=1e-12)
    half = Formula(lambda h, y: (h - y).square().sum() / 2)
    assert loss_at(half, h[:1], y[:1]).value == pytest.approx(half_square(5, radius=math.sqrt(500)).value, rel=1e-12)


def test_squares_entry_by_entry() -> None:
    """Unreduced, one entry may hold the whole error of its sample."""
    h = _rows([7.0, 0.0, 0.0])
    assert loss_at(nn.MSELoss(reduction="none"), h, torch.zeros_like(h)).value == pytest.approx(14.0, rel=1e-12)
    assert mse(3, radius=7.0, reduction="none").value == pytest.approx(14.0, rel=1e-12)


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


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_labels_by_half(k: int) -> None:
    """At zero outputs every pair is active; half of the classes as labels is worst."""
    best = 0.0
    for a in range(1, k + 1):
        target = torch.full((1, k), -1)
        target[0, :a] = torch.arange(a)
        best = max(best, loss_at(nn.MultiLabelMarginLoss(), torch.zeros(1, k, dtype=torch.float64), target).value)
    assert best == pytest.approx(multilabel_margin(k).value, rel=1e-12)


def test_probabilities_above_a_floor() -> None:
    """At the floor, with the other label, the slope is one over it; without a floor there is none."""
    p = torch.full((2, 3), 0.05, dtype=torch.float64)
    assert loss_at(nn.BCELoss(), p, torch.ones_like(p)).value == pytest.approx(
        bce(3, batch=2, floor=0.05).value, rel=1e-12
    )
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    assert loss_at(nn.BCELoss(weight=weight), p, torch.ones_like(p)).value == pytest.approx(
        bce(3, batch=2, floor=0.05, weight=weight.tolist()).value, rel=1e-12
    )
    for floor in (0.0, 0.6, -1.0):
        with pytest.raises(InputError, match=r"at most 0\.5"):
            bce(3, floor=floor)


def test_logits_far_off() -> None:
    """Wrong by forty, every slope is one, or the weight of positives."""
    h = torch.full((2, 3), -40.0, dtype=torch.float64)
    positive = torch.tensor([3.0, 0.5, 2.0], dtype=torch.float64)
    upper = bce_with_logits(3, batch=2, pos_weight=positive.tolist())
    target = torch.ones_like(h)
    h[:, 1], target[:, 1] = 40.0, 0.0  # where positives count half, the negative is worse
    assert loss_at(nn.BCEWithLogitsLoss(pos_weight=positive), h, target).value == pytest.approx(upper.value, rel=1e-9)
    assert loss_at(nn.SoftMarginLoss(), h, -torch.sign(h)).value == pytest.approx(
        soft_margin(3, batch=2).value, rel=1e-9
    )
    assert loss_at(nn.MultiLabelSoftMarginLoss(), h, (h < 0).double()).value == pytest.approx(
        multilabel_soft_margin(3, batch=2).value, rel=1e-9
    )
    assert loss_at(nn.HingeEmbeddingLoss(margin=50.0), h, torch.sign(h) * -1).value == pytest.approx(
        hinge(3, batch=2).value, rel=1e-9
    )


def test_linear_losses() -> None:
    """Given log-probabilities, the likelihood and the divergence are linear: their gradient is their target."""
    h = normal(generator(), 2, 3)
    assert loss_at(nn.NLLLoss(), h, torch.tensor([0, 2])).value == pytest.approx(nll(3, batch=2).value, rel=1e-12)
    one_hot = _rows([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    for reduction in ("batchmean", "sum", "none"):
        assert loss_at(nn.KLDivLoss(reduction=reduction), h, one_hot).value == pytest.approx(
            kl(3, batch=2, reduction=reduction).value, rel=1e-12
        )
    with pytest.raises(InputError, match="batchmean, mean, sum, none; got 'max'"):
        kl(3, reduction="max")


def test_cosines() -> None:
    """Near zero against a large orthogonal vector the slope is ``1/sqrt(eps)``; above a floor ``sqrt(2)/r``."""
    loss, one = nn.CosineEmbeddingLoss(), torch.ones(1, dtype=torch.float64)
    near = loss_at(loss, _rows([1e-12, 0.0]), _rows([0.0, 1e3]), one, inputs=2).value
    assert near == pytest.approx(cosine_embedding(2).value, rel=1e-6)
    floor = loss_at(loss, _rows([2.0, 0.0]), _rows([0.0, 2.0]), one, inputs=2).value
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
    x, zero = _rows([1.0, 2.0]), torch.zeros(1, 2, dtype=torch.float64)
    ranked = loss_at(nn.MarginRankingLoss(margin=9.0), x, zero, torch.ones(1, 2, dtype=torch.float64), inputs=2)
    assert ranked.value == pytest.approx(margin_ranking(2).value, rel=1e-12)
    triplet = loss_at(nn.TripletMarginLoss(margin=9.0, eps=0.0), zero, x, -x, inputs=3)
    assert triplet.value == pytest.approx(triplet_margin(2).value, rel=1e-12)
    with pytest.raises(InputError, match="norm 2"):
        triplet_margin(2, p=1.0)


def test_power_of_margins() -> None:
    """One or two."""
    with pytest.raises(InputError, match="1 or 2, got 3"):
        multi_margin(4, p=3)
