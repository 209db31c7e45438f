"""Losses for Theorem 20: between 0 and 1, with the constants they are said to have, and none that is unbounded."""

from __future__ import annotations

import pytest
import torch

from normscope.analysis.bounds.cells import bounded_losses
from normscope.analysis.bounds.chain import RefusedError
from normscope.core.errors import InputError


@pytest.mark.parametrize(("name", "clip"), [("ramp", None), ("probability", None), ("cross-entropy", 0.01)])
def test_range_and_slope(name: str, clip: float | None) -> None:
    """At random scores of all sizes, and attained to 90 % somewhere."""
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(20_000, 2, generator=source, dtype=torch.float64)
    scores = (scores * torch.logspace(-1, 1, 20_000, dtype=torch.float64)[:, None]).requires_grad_(True)
    labels = torch.randint(2, (20_000,), generator=source)
    (loss,) = bounded_losses(name, [0.7], clip)
    values = loss.values(scores, labels)
    assert 0 <= float(values.detach().min()) <= float(values.detach().max()) <= 1
    (slopes,) = torch.autograd.grad(values.sum(), scores)
    largest = float(slopes.norm(dim=1).max())
    assert 0.9 * loss.constant <= largest <= loss.constant * (1 + 1e-9)


def test_refused() -> None:
    """Cross-entropy without a clip has no largest value; other names are unknown."""
    with pytest.raises(RefusedError, match="unbounded"):
        bounded_losses("cross-entropy", [], None)
    with pytest.raises(InputError, match="ramp, probability"):
        bounded_losses("hinge", [], None)
