"""A graph in its own precision beside a wider one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from checking import initialized, noise
from networks import Lambda
from normscope.doctor.precision import LOST, PrecisionLoss, WideRun
from normscope.doctor.subject import examine
from normscope.graph.interpreter import run


def _loss(model: nn.Module, x: Tensor) -> PrecisionLoss | None:
    captured = examine(model, x).captured
    beside = WideRun(captured.graph)
    with torch.no_grad():
        run(captured.graph, captured.tensors, [x], beside.visit)
    return beside.first()


def _difference(s: Lambda, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0) + 1e-10).sqrt()


def _centred(s: Lambda, x: Tensor) -> Tensor:
    y = x - x.mean(-1, keepdim=True)
    return y / (y.square().mean(-1, keepdim=True) + 1e-10).sqrt()


@pytest.mark.parametrize("forward", [_difference, _centred])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_variance_that_cancels(forward: Callable[[Lambda, Tensor], Tensor], mean: float) -> None:
    """Told where the model in float64 gives something else by more than a tenth."""
    model, x = Lambda(forward), mean + 1e-3 * noise(8, 16)
    loss = _loss(model, x)
    wide = model(x.double())
    off = float((model(x).double() - wide).norm() / wide.norm())
    assert (loss is not None) is (off > LOST)
    assert (off > LOST) is (forward is _difference and mean == 100.0)
    if loss is not None:
        assert (loss.kind, loss.node.op) == ("cancellation", "aten.sqrt.default")
        assert loss.reached == pytest.approx(1e4, rel=0.01)
        assert loss.left < 1e-5


def test_half_precision_overflows_where_the_numbers_are_too_large() -> None:
    """At the second layer, not at the first; in float32 nothing is lost."""
    model = initialized(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    with torch.no_grad():
        model[2].weight.mul_(3e4)
    x = 10 * noise(8, 8)
    assert _loss(model, x) is None
    assert float(model[:3](x).detach().abs().max()) > 65504
    loss = _loss(model.half(), x.half())
    assert loss is not None
    assert (loss.kind, loss.node.owner) == ("overflow", "2")


def test_masks_are_not_lost() -> None:
    """Minus a billion stands for minus infinity, which it is in half precision."""
    model = Lambda(lambda s, x: s.fc(x).masked_fill(s.fc(x) > 0, -1e4).float().masked_fill(x > 9, -1e9).softmax(-1),
                   fc=nn.Linear(4, 4)).half()  # fmt: skip
    assert _loss(model, noise(8, 4).half()) is None


def test_noise_that_a_stabilizer_swallows_is_no_loss() -> None:
    """Equal entries: what is left after the mean is rounding, and eps is far larger."""
    model = nn.Sequential(Lambda(lambda s, x: (x - x.mean(-1, keepdim=True)) / 1e-2), nn.Linear(7, 2))
    assert _loss(model, (0.1 + torch.arange(8.0))[:, None].expand(8, 7).contiguous()) is None


def test_of_two_cancellations_the_worse_is_named() -> None:
    """A millionth of large numbers is left of one, less than a ten-millionth of one of the other."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        large, one = s.level.weight
        mild = (x[:, :4] + large) - large
        bad = (x[:, 4:] + one) - one
        return torch.cat([1e-7 * mild[:, 1:], bad[:, 1:]], 1) * 1e7

    model = Lambda(forward, level=nn.Linear(4, 2))
    with torch.no_grad():
        model.level.weight[0], model.level.weight[1] = 1e6, 1.0
    loss = _loss(model, torch.tensor([[1e6, 1.0, 1.0, 1.0, 1.0, 4e-8, 4e-8, 4e-8]]))
    assert loss is not None
    assert (loss.kind, loss.node.op) == ("cancellation", "aten.mul.Tensor")
    assert loss.reached == pytest.approx(1.0)
    assert loss.left == pytest.approx(4e-8)
