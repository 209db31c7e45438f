"""NS603: scales that are all zero."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def _residual() -> nn.Module:
    return Lambda(lambda s, x: x + s.norm(s.fc(x)), fc=nn.Linear(6, 6, bias=False), norm=nn.BatchNorm1d(6))


def test_a_branch_that_starts_closed_is_a_remark() -> None:
    """And a warning once the network was trained."""
    model = _residual()
    nn.init.zeros_(model.norm.weight)
    assert found("NS603", model.eval(), noise(8, 6))[0].severity is Severity.INFO
    model.train()
    model(noise(64, 6))
    assert found("NS603", model.eval(), noise(8, 6))[0].severity is Severity.WARNING
    nn.init.ones_(model.norm.weight)
    assert found("NS603", model, noise(8, 6)) == []


def test_without_a_way_around_it_the_output_is_constant() -> None:
    """An error, and true."""
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2)).eval()
    nn.init.zeros_(model[1].weight)
    (one,) = found("NS603", model, noise(8, 6))
    assert (one.place, one.severity) == ("1", Severity.ERROR)
    assert torch.equal(model(noise(1, 6)), model(noise(1, 6, seed=1)))
