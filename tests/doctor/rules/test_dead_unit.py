"""NS601: units that never move."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, initialized, noise
from networks import Lambda
from normscope.core.finding import Certainty, Severity
from normscope.doctor.rules.dead_unit import flat_on
from normscope.graph.ir import Node, Ref


def _network(activation: nn.Module, bias: float) -> nn.Module:
    model = initialized(nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 2)))
    with torch.no_grad():
        model[0].bias[3] = bias
    return model


def test_a_unit_far_below_zero_is_dead_for_a_relu_and_not_for_a_leaky_one() -> None:
    """As its activations on the data say."""
    dead = _network(nn.ReLU(), -100.0)
    x = noise(64, 6)
    (one,) = found("NS601", dead, x)
    assert (one.place, one.evidence["dead"], one.certainty, one.severity) == (
        "1",
        1,
        Certainty.MEASURED,
        Severity.INFO,
    )
    assert one.evidence["channels"] == "3"
    assert "channel 3" in one.message
    assert int((dead[1](dead[0](x)).amax(0) == 0).sum()) == 1
    assert found("NS601", _network(nn.LeakyReLU(), -100.0), x) == []
    assert found("NS601", _network(nn.ReLU(), 0.0), x) == []


def test_saturated_units_are_dead_too() -> None:
    """ReLU6 above six."""
    assert [f.evidence["dead"] for f in found("NS601", _network(nn.ReLU6(), 100.0), noise(64, 6))] == [1]


def test_few_samples_say_nothing() -> None:
    """Sixteen."""
    assert found("NS601", _network(nn.ReLU(), -100.0), noise(16, 6)) == []


def test_scale_and_shift_of_a_layer_norm_prove_it() -> None:
    """sqrt(n - 1) |gamma| + beta below zero: no input moves the unit, however it is chosen."""
    model = nn.Sequential(nn.LayerNorm(5), nn.ReLU()).eval()
    assert found("NS601", model, input_shape=(5,)) == []
    with torch.no_grad():
        model[0].bias[2] = -2.01
    (one,) = found("NS601", model, input_shape=(5,))
    assert (one.place, one.certainty, one.evidence["dead"]) == ("0", Certainty.PROVED, 1)
    extreme = torch.zeros(1, 5)
    extreme[0, 2] = 1e3  # the direction in which entry 2 is largest: sqrt(n - 1) = 2
    assert float(model(extreme).detach()[0, 2]) == 0.0
    with torch.no_grad():
        model[0].bias[2] = -1.99
    assert float(model(extreme).detach()[0, 2]) > 0.0
    assert found("NS601", model, input_shape=(5,)) == []


def test_flat_on_intervals() -> None:
    """Exactly where the activation is constant."""
    node = Node("r", "aten.relu.default", (Ref("x"),))
    low, high = torch.tensor([-2.0, -2.0, 1.0]), torch.tensor([-1.0, 1.0, 2.0])
    assert flat_on(node, low, high).tolist() == [True, False, False]


def test_what_never_changes_is_no_dead_activation() -> None:
    """The root of a variance of one pixel is a constant, where roots are steep; so is a channel that was pruned."""

    def divided(s: Lambda, x: Tensor) -> Tensor:
        return x / (1 + (x.var((2, 3), keepdim=True, correction=0) + 1e-5).sqrt())

    model = initialized(nn.Sequential(nn.Conv2d(3, 8, 4), Lambda(divided), nn.Flatten(), nn.Linear(8, 2)))
    assert found("NS601", model, noise(64, 3, 4, 4)) == []
    pruned = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        pruned[1].weight[:4], pruned[1].bias[:4] = 0.0, 0.0
    assert found("NS601", pruned, noise(64, 6)) == []
    with torch.no_grad():
        pruned[1].bias[:4] = -1.0
    assert {f.evidence["dead"] for f in found("NS601", pruned, noise(64, 6))} == {4}
