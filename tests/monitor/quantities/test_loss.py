"""The loss on the probe."""

from __future__ import annotations

import pytest
from torch.nn import functional as F

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.loss import ProbeLoss


def test_it_is_the_training_loss_without_dropout() -> None:
    x, y = batch()
    truth = float(F.cross_entropy(small()(x), y).detach())
    assert ProbeLoss().measure(moment_of(small(), (x, y)))["probe/loss"] == pytest.approx(truth, rel=1e-6)
    assert ProbeLoss().measure(moment_of(small(), x)) == {}
