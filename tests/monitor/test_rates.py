"""Learning rates by parameter."""

from __future__ import annotations

import torch
from torch import nn

from normscope.monitor.rates import learning_rates


def test_groups_tensors_and_tied_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    groups = [{"params": [model[0].weight], "lr": torch.tensor(0.5)}, {"params": [nn.Parameter(torch.zeros(1))]}]
    assert learning_rates(model, torch.optim.SGD(groups, lr=0.1)) == {"0.weight": 0.5, "1.weight": 0.5}
    assert learning_rates(model, object()) == {}
    assert learning_rates(model, torch.optim.SGD(groups, lr=0.1), 2.0)["2.weight"] == 2.0
