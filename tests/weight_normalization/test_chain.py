"""What is read from a model, and what is refused with its reason."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from normscope.core.errors import InputError
from normscope.weight_normalization.chain import read_chain
from normscope.weight_normalization.network import UnitRowLinear, WeightNormNetwork


def test_the_paper_form_is_recognised_and_nothing_is_changed() -> None:
    net = WeightNormNetwork(3, width=4, depth=2, seed=0)
    before = copy.deepcopy(net.state_dict())
    chain = read_chain(net, torch.zeros(1, 3))
    assert chain.paper_form
    assert chain.least_norm == pytest.approx(min(float(h.weight.detach().norm(dim=1).min()) for h in net.hidden))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert all(constants.norm <= 1 + 1e-12 for constants in chain.constants())


def test_gains_and_biases_of_pytorch_weight_norm_are_read() -> None:
    net = nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].parametrizations.weight.original0 *= -2.0
    layer = read_chain(net, torch.zeros(1, 3)).layers[0]
    assert layer.gains_trained
    assert torch.allclose(layer.gains, net[0].weight.detach().double().norm(dim=1))
    assert layer.bias is not None
    net[0].parametrizations.weight.original0.requires_grad_(False)
    assert not read_chain(net, torch.zeros(1, 3)).layers[0].gains_trained


def test_the_older_weight_norm_is_read_too() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        old = torch.nn.utils.weight_norm(nn.Linear(3, 4, bias=False))
    chain = read_chain(nn.Sequential(old, nn.Tanh(), nn.Linear(4, 1, bias=False)), torch.zeros(1, 3))
    assert chain.layers[0].gains_trained
    assert chain.layers[0].bias is None


def test_windows_of_a_convolution() -> None:
    net = nn.Sequential(
        weight_norm(nn.Conv2d(1, 2, 3, padding=1)), nn.Tanh(), weight_norm(nn.Conv2d(2, 3, 4, stride=2)), nn.Tanh(),
        nn.Flatten(), nn.Linear(27, 1),
    )  # fmt: skip
    first, second = read_chain(net, torch.zeros(1, 1, 8, 8)).layers
    assert (first.positions, second.positions) == (64, 9)
    assert first.window == pytest.approx(3.0)
    assert second.window == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), "0: the hidden layer is not weight-normalized"),
        (
            nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh()),
            "Expected at least one weight-normalized",
        ),
        (nn.Sequential(UnitRowLinear(3, 4), nn.Tanh(), weight_norm(nn.Linear(4, 1))), "output layer is weight-norm"),
        (nn.Sequential(UnitRowLinear(3, 4), nn.Linear(4, 1), nn.Tanh()), "an activation follows the last layer"),
        (nn.Sequential(UnitRowLinear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "1: BatchNorm1d is not covered"),
        (nn.Sequential(UnitRowLinear(3, 4), nn.Tanh(), nn.Tanh(), nn.Linear(4, 1)), "two activations"),
        (nn.Sequential(UnitRowLinear(3, 4), nn.Dropout(), nn.Linear(4, 1)), "dropout is active"),
        (nn.Sequential(weight_norm(nn.Linear(3, 4), dim=1), nn.Tanh(), nn.Linear(4, 1)), "dim=0"),
        (nn.Sequential(UnitRowLinear(5, 4), nn.Tanh(), nn.Linear(4, 1)), "do not fit"),
        (nn.Sequential(UnitRowLinear(3, 4, normalize=False), nn.Tanh(), nn.Linear(4, 1)), "not weight-normalized"),
        (nn.LSTM(3, 4), "LSTM is not covered"),
    ],
)
def test_what_is_refused(net: nn.Module, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_chain(net, torch.zeros(1, 3))


def test_a_zero_weight_vector_is_refused() -> None:
    net = WeightNormNetwork(3, width=4, depth=1)
    with torch.no_grad():
        net[0].weight[2] = 0.0
    with pytest.raises(InputError, match="0: a weight vector is zero"):
        read_chain(net, torch.zeros(1, 3)).constants()
