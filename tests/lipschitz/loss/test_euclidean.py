"""The Euclidean distance: slope one everywhere but at the target."""

from __future__ import annotations

import pytest
import torch

from losses import Formula, generator, normal
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.euclidean import l2


def test_distance() -> None:
    """The Euclidean distance has slope one everywhere but at the target."""
    distance = Formula(lambda h, y: torch.linalg.vector_norm(h - y, dim=1).mean())
    h, y = normal(generator(), 4, 5), normal(generator(1), 4, 5)
    assert loss_at(distance, h, y).value == pytest.approx(l2(5, batch=4).value, rel=1e-12)
