"""Binary losses: probabilities at a floor, logits far off."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from losses import generator
from normscope.core.errors import InputError
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.binary import bce, bce_with_logits
from normscope.lipschitz.loss.hinge import hinge
from normscope.lipschitz.loss.multilabel import multilabel_soft_margin, soft_margin


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


@pytest.mark.parametrize("shape", [(4, 1), (4, 3), (1, 3), (3,), (1,)], ids=str)
def test_weights_of_any_shape(shape: tuple[int, ...]) -> None:
    """Over samples, outputs or both: never below the gradient, and equal where they vary over outputs alone."""
    weight = 0.5 + torch.rand(shape, generator=generator(5), dtype=torch.float64)
    h = torch.full((4, 3), -40.0, dtype=torch.float64)
    found = loss_at(nn.BCEWithLogitsLoss(weight=weight), h, torch.ones_like(h)).value
    upper = loss_constant(nn.BCEWithLogitsLoss(weight=weight), 3, batch=4).value
    assert found <= upper * (1 + 1e-12)
    if shape[0] != 4:
        assert found == pytest.approx(upper, rel=1e-9)
