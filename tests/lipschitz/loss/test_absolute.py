"""The l1 loss: every entry off its target has slope one."""

from __future__ import annotations

import pytest
from torch import nn

from losses import generator, normal
from normscope.lipschitz.loss.absolute import l1
from normscope.lipschitz.loss.at_data import loss_at


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_attained_at_random_points(reduction: str) -> None:
    """Whatever the batch."""
    for batch, outputs in ((1, 1), (1, 7), (5, 3)):
        h, y = normal(generator(), batch, outputs), normal(generator(1), batch, outputs)
        upper = l1(outputs, batch=batch, reduction=reduction).value
        assert loss_at(nn.L1Loss(reduction=reduction), h, y).value == pytest.approx(upper, rel=1e-12)
