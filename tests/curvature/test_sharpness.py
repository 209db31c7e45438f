"""Sharpness against what is known of small losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curved import classifier, labelled
from normscope.core.errors import InputError
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.sharpness import (
    METRICS,
    accuracy,
    average_rise,
    fisher_rao,
    metric,
    noise_accuracy,
    stability_threshold,
    worst_rise,
)


def _quadratic() -> Problem:
    """Return L(w) = mean over samples of (x.w)^2 with Hessian diag(2, 8) at the minimum w = 0."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]) * 2**0.5
    return Problem(model, (x, torch.zeros(4, 1)), dtype=torch.float64)


def test_worst_and_average_rise_of_a_quadratic_loss() -> None:
    with _quadratic() as problem:
        torch.testing.assert_close(Products(problem).dense(), torch.diag(torch.tensor([2.0, 8.0])).double())
        start = torch.tensor([0.1, 0.1], dtype=torch.float64)
        problem._values["weight"] = start.view(1, 2)
        worst = worst_rise(problem, 0.5, steps=60)
        grid = torch.linspace(0, 2 * torch.pi, 2000, dtype=torch.float64)
        circle = start + 0.5 * torch.stack([grid.cos(), grid.sin()], 1)
        truth = float((circle.square() @ torch.tensor([1.0, 4.0]).double()).max()) - problem.value()
        assert worst == pytest.approx(truth, rel=1e-3)
        assert worst <= truth * (1 + 1e-9)
        assert worst <= 0.5 * float(problem.gradient()[1].norm()) + 0.5 * 0.5**2 * 8.0
        mean = average_rise(problem, 0.3, samples=400)
        assert mean.low <= 0.5 * 0.3**2 * 10.0 <= mean.high


def test_the_worst_rise_is_the_largest_on_the_ellipsoid_of_the_metric() -> None:
    """Relative steps of each weight: w + |w| u with u in a disc."""
    with _quadratic() as problem:
        start = torch.tensor([0.6, 0.2], dtype=torch.float64)
        problem._values["weight"] = start.view(1, 2)
        worst = worst_rise(problem, 0.5, kind="elementwise", steps=60)
        angle = torch.linspace(0, 2 * torch.pi, 2000, dtype=torch.float64)
        edge = start + 0.5 * start * torch.stack([angle.cos(), angle.sin()], 1)
        truth = float((edge.square() @ torch.tensor([1.0, 4.0]).double()).max()) - problem.value()
        assert worst == pytest.approx(truth, rel=1e-5)


def test_filter_noise_does_not_see_the_scale_of_normalized_weights() -> None:
    data, found = labelled(60), []
    for factor in (1.0, 10.0):
        model = classifier(eps=1e-30)
        with torch.no_grad():
            for layer in (0, 3):
                model[layer].weight.mul_(factor)
                model[layer].bias.mul_(factor)
        with Problem(model, data, dtype=torch.float64) as problem:
            plain, relative = (noise_accuracy(problem, [0.0, 0.5], kind=k, samples=4) for k in ("plain", "filter"))
            assert plain[0] == accuracy(problem)
            found.append((plain[1], relative[1]))
    assert found[0][0] != found[1][0]
    assert found[0][1] == pytest.approx(found[1][1])


def test_metrics_and_fisher_rao() -> None:
    with Problem(classifier(eps=1e-30), labelled(), dtype=torch.float64) as problem:
        point, weight = problem.point(), problem.split(problem.point())["0.weight"]
        scales = {kind: problem.split(metric(problem, kind))["0.weight"] for kind in METRICS}
        torch.testing.assert_close(scales["elementwise"], weight.abs())
        torch.testing.assert_close(scales["filter"], weight.norm(dim=1, keepdim=True).expand_as(weight))
        torch.testing.assert_close(scales["tensor"].norm(), weight.norm())
        gauss = Products(problem, "ggn").dense()
        assert fisher_rao(gauss @ point, point) == pytest.approx(float(point @ gauss @ point))
        with pytest.raises(InputError, match="Unknown metric"):
            metric(problem, "other")


def test_steps_diverge_exactly_above_the_threshold() -> None:
    for momentum in (0.0, 0.9):
        limit = stability_threshold(0.1, momentum=momentum)
        for factor, bounded in ((0.98, True), (1.02, False)):
            w, velocity = 1.0, 0.0
            for _ in range(3000):
                velocity = momentum * velocity + factor * limit * w
                w -= 0.1 * velocity
            assert (abs(w) < 10.0) == bounded
    with pytest.raises(InputError, match="positive learning rate"):
        stability_threshold(0.0)


def test_accuracy_needs_classes() -> None:
    with Problem(nn.Linear(2, 1), (torch.ones(3, 2), torch.ones(3, 1))) as problem, pytest.raises(InputError):
        accuracy(problem)
