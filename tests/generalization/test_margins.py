"""Margins: by sorting, and the ramp between the error and the margin loss."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.generalization.margins import margin_loss, margins, ramp_loss


def test_margin_by_sorting() -> None:
    """The right score minus the best of the others."""
    source = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(50, 4, generator=source), torch.randint(4, (50,), generator=source)
    for row, label, found in zip(scores.tolist(), labels.tolist(), margins(scores, labels).tolist(), strict=True):
        others = [v for i, v in enumerate(row) if i != label]
        assert found == pytest.approx(row[label] - max(others))


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_ramp_lies_between(gamma: float) -> None:
    """Error <= mean ramp <= margin loss, and its slope in the scores is at most sqrt(2)/gamma."""
    source = torch.Generator().manual_seed(1)
    scores = torch.randn(400, 5, generator=source, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (400,), generator=source)
    margin = margins(scores, labels)
    ramp = ramp_loss(margin, gamma)
    mean = float(ramp.detach().mean())
    assert float((margin <= 0).double().mean()) <= mean <= margin_loss(margin, gamma)
    (slopes,) = torch.autograd.grad(ramp.sum(), scores)
    assert float(slopes.norm(dim=1).max()) == pytest.approx(math.sqrt(2) / gamma)
