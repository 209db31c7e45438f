"""Cross-entropy: the supremum is approached for every smoothing and weight; the gradient at given logits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from losses import generator, normal, rows
from normscope.core.errors import InputError
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.loss.constants import loss_at
from normscope.lipschitz.loss.likelihoods import (
    bce,
    bce_with_logits,
    cross_entropy,
    cross_entropy_at,
    gaussian_nll,
    kl,
    nll,
    poisson_nll,
)
from normscope.lipschitz.loss.margins import hinge, multilabel_soft_margin, soft_margin

WEIGHTS = [0.5, 2.0, 1.0, 3.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("weight", [None, WEIGHTS, [0.0, 1.0, 2.0, 0.0], [0.25, 1.0, 1.0, 1.0]], ids=str)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_worst_targets_and_logits_come_close(smoothing: float, weight: list[float] | None, batch: int) -> None:
    """Over all targets and all corners of the simplex (logits of size 1e3) the largest gradient is the constant."""
    loss = nn.CrossEntropyLoss(
        weight=None if weight is None else torch.tensor(weight, dtype=torch.float64), label_smoothing=smoothing
    )
    upper = cross_entropy(4, batch=batch, label_smoothing=smoothing, weight=weight).value
    alone = nn.CrossEntropyLoss(weight=loss.weight, label_smoothing=smoothing, reduction="sum")
    corners = 1e3 * torch.eye(4, dtype=torch.float64)
    worst = [max(corners, key=lambda c, t=t: loss_at(alone, c[None], torch.tensor([t])).value) for t in range(4)]
    found = 0.0
    for target in itertools.combinations_with_replacement(range(4), batch):
        if weight is not None and sum(weight[t] for t in target) == 0:
            continue
        logits = torch.stack([worst[t] for t in target])
        found = max(found, loss_at(loss, logits, torch.tensor(target)).value)
    assert found <= upper * (1 + 1e-12)
    # Only a class that alone has the least weight, smoothed, leaves a gap, and only in batches.
    gap = batch > 1 and weight is not None and weight.count(min(weight)) == 1 and smoothing > 0
    assert found >= upper * (0.8 if gap else 1 - 1e-9)


def test_soft_targets_are_divided_by_samples() -> None:
    """The mean of PyTorch over probabilities ignores the weights of the classes."""
    upper = cross_entropy(4, batch=2, weight=WEIGHTS, soft_targets=True).value
    target = torch.tensor([[0.0, 0, 0, 1], [0, 0, 0, 1]], dtype=torch.float64)
    logits = torch.tensor([[1e3, 0, 0, 0], [0, 1e3, 0, 0]], dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS))
    assert loss_at(loss, logits, target).value == pytest.approx(upper, rel=1e-9)
    assert upper == pytest.approx(3 * math.sqrt(2) / math.sqrt(2), rel=1e-12)


def test_temperature_divides() -> None:
    """By itself."""
    assert cross_entropy(7, temperature=4.0).value == pytest.approx(math.sqrt(2) / 4, rel=1e-12)


def test_one_class_has_no_gradient() -> None:
    """Its probability is one, whatever the logit."""
    assert cross_entropy(1).value == 0.0
    assert cross_entropy_at(torch.tensor([3.0]), 0).value == 0.0


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
def test_gradient_at_logits(scale: float) -> None:
    """Equal to float64 differentiation, and between its two bounds in ``1 - p_y``."""
    for seed in range(5):
        logits = scale * normal(generator(seed), 6)
        for target in range(6):
            here = cross_entropy_at(logits, target).value
            exact = loss_at(nn.CrossEntropyLoss(), logits[None], torch.tensor([target])).value
            assert here == pytest.approx(exact, rel=1e-6, abs=1e-15)
            others = torch.cat([logits[:target], logits[target + 1 :]])
            missed = float(torch.sigmoid(torch.logsumexp(others, 0) - logits[target]))
            assert math.sqrt(6 / 5) * missed * (1 - 1e-9) <= here <= math.sqrt(2) * missed * (1 + 1e-9)


def test_gradient_of_a_sure_network_does_not_cancel() -> None:
    """At ``p_y = 1 - 4e-44`` the gradient is small, not zero; and never below the truth."""
    here = cross_entropy_at(torch.tensor([100.0, 0.0], dtype=torch.float64), 0).value
    assert here == pytest.approx(math.sqrt(2) * math.exp(-100), rel=1e-11)
    assert cross_entropy_at(torch.tensor([2000.0, 0.0], dtype=torch.float64), 0).value > 0


def test_wrong_arguments() -> None:
    """Smoothing above one, no temperature, a class that is none."""
    with pytest.raises(InputError, match="between 0 and 1"):
        cross_entropy(3, label_smoothing=1.5)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="positive temperature"):
            cross_entropy(3, temperature=temperature)
    with pytest.raises(InputError, match="among the 3 classes, got 3"):
        cross_entropy_at(torch.zeros(3), 3)
    with pytest.raises(InputError, match="Expected weight to be a finite number"):
        cross_entropy(2, weight=[1.0, -1.0])


def test_large_vocabularies_are_quick() -> None:
    """Fifty thousand classes with weights of their own: between the bounds of the extreme weights."""
    weight = (0.5 + torch.rand(50_257, generator=generator(3))).double()
    upper = cross_entropy(50_257, label_smoothing=0.1, weight=weight.tolist(), reduction="sum").value
    alone = cross_entropy(50_257, label_smoothing=0.1, reduction="sum").value
    assert float(weight.min()) * alone <= upper <= float(weight.max()) * alone


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
        with pytest.raises(InputError, match=r"\(0, 0\.5\]"):
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


def test_linear_losses() -> None:
    """Given log-probabilities, the likelihood and the divergence are linear: their gradient is their target."""
    h = normal(generator(), 2, 3)
    assert loss_at(nn.NLLLoss(), h, torch.tensor([0, 2])).value == pytest.approx(nll(3, batch=2).value, rel=1e-12)
    one_hot = rows([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    for reduction in ("batchmean", "sum", "none"):
        assert loss_at(nn.KLDivLoss(reduction=reduction), h, one_hot).value == pytest.approx(
            kl(3, batch=2, reduction=reduction).value, rel=1e-12
        )
    with pytest.raises(InputError, match=r"batchmean, mean, sum, none\), got 'max'"):
        kl(3, reduction="max")


def test_gradients_grow() -> None:
    """By ten orders of magnitude within reach of floats."""
    one = rows([1.0])
    assert loss_at(nn.PoissonNLLLoss(), rows([30.0]), one).value > 1e12
    assert loss_at(nn.PoissonNLLLoss(log_input=False), rows([1e-7]), one).value > 1e6
    assert loss_at(nn.GaussianNLLLoss(), rows([1e3]), one, torch.full((1, 1), 1e-3).double()).value > 1e5


@pytest.mark.parametrize("loss", [nn.PoissonNLLLoss(), nn.GaussianNLLLoss(), "poisson-nll", "gaussian-nll"], ids=str)
def test_they_say_so(loss: nn.Module | str) -> None:
    """No bound, with a reason."""
    assert loss_constant(loss, 3).log == poisson_nll(3).log == gaussian_nll(3).log == math.inf
    assert "grows" in loss_constant(loss, 3).assumptions[0]
