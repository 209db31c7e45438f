"""NS403: parameters in no group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from checking import found, noise


def test_forgotten_among_neighbours() -> None:
    """Frozen ones, and those of another optimizer's part, are left out on purpose."""
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    )
    first = torch.optim.SGD([model[0][0].weight, *model[1].parameters()], lr=0.1)
    assert [f.place for f in found("NS403", model, None, optimizer=first)] == ["0.1"]
    half = torch.optim.SGD(model[1].parameters(), lr=0.1)
    assert found("NS403", model, None, optimizer=half) == []
    model[0][1].requires_grad_(False)
    assert found("NS403", model, None, optimizer=first) == []


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))


def test_a_group_of_rate_zero() -> None:
    """For what normalizes; not where the weights stand still as well, as at the start of a warm-up."""
    model = _network()
    shifts, rest = [model[1].bias], [p for p in model.parameters() if p is not model[1].bias]
    for rate, others, told in ((0.0, 0.1, ["1"]), (0.1, 0.1, []), (0.0, 0.0, [])):
        optimizer = torch.optim.SGD([{"params": shifts, "lr": rate}, {"params": rest, "lr": others}])
        assert [f.place for f in found("NS403", model, noise(4, 6), optimizer=optimizer)] == told
    biases = [{"params": [model[0].bias], "lr": 0.0}, {"params": [p for p in rest if p is not model[0].bias]}]
    assert found("NS403", model, noise(4, 6), optimizer=torch.optim.SGD(biases, lr=0.1)) == []


@pytest.mark.parametrize("own", [False, True])
def test_lengths_that_do_not_learn(own: bool) -> None:
    """Frozen, or a buffer; not if they learn, nor where all are one."""
    layer = _Weights() if own else nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
    model = nn.Sequential(layer, nn.ReLU())
    length = layer.g if own else layer.parametrizations.weight.original0
    with torch.no_grad():
        length.copy_(torch.linspace(1, 2, 5).reshape(length.shape))
    for learns, told in ((True, []), (False, ["0"])):
        length.requires_grad_(learns)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        assert [f.place for f in found("NS403", model, noise(4, 6), optimizer=optimizer)] == told
    with torch.no_grad():
        length.fill_(1.0)
    assert found("NS403", model, noise(4, 6), optimizer=optimizer) == []


class _Weights(nn.Module):
    """A linear layer with weight normalization written out."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.g = nn.Parameter(noise(5, 6)), nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.v / self.v.norm(dim=1, keepdim=True) * self.g[:, None])
