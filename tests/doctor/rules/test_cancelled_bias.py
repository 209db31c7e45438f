"""NS101 against gradients: a bias is told exactly where its gradient is zero in train mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from checking import found, gradients, initialized, noise, places
from networks import Lambda
from normscope.core.finding import Certainty, Severity

Case = tuple[Callable[[], nn.Module], tuple[int, ...]]


def _residual(skip: bool) -> nn.Module:
    """Return a normalizer whose input does, or does not, also reach the output directly."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = s.conv(x)
        z = s.norm(y).relu()
        return z + y if skip else z

    return Lambda(forward, conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4))


def _written_out() -> nn.Module:
    """Return InstanceNorm by hand."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = s.conv(x)
        y = y - y.mean((2, 3), keepdim=True)
        return (y / (y.square().mean((2, 3), keepdim=True) + 1e-5).sqrt()).relu()

    return Lambda(forward, conv=nn.Conv2d(3, 4, 3))


def _around() -> nn.Module:
    """Return a bias that a normalizer cancels on one path, and a ReLU sees on another, before the last normalizer."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = s.a(x)
        return s.n(y + s.b(y.relu())).relu()

    return Lambda(forward, a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(4, 4, 1, bias=False), n=nn.BatchNorm2d(4))


def _bottlenecks() -> nn.Module:
    """Return a linear bottleneck with a residual branch, each path of whose shift ends in a BatchNorm."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = s.n1(s.a(x))
        y = y + s.c(s.n2(s.b(y)).relu())
        return s.n3(s.d(y)).relu()

    convolutions = {k: nn.Conv2d(4, 4, 1, bias=False) for k in "abcd"}
    norms = {f"n{i}": nn.BatchNorm2d(4) for i in (1, 2, 3)}
    return Lambda(forward, **convolutions, **norms)


class _FrozenByTrain(Lambda):
    """A normalizer that keeps its running statistics in training, as detectors have them."""

    def train(self, mode: bool = True) -> _FrozenByTrain:
        """Leave the normalizer in evaluation mode."""
        super().train(mode)
        self.norm.eval()  # type: ignore[operator]
        return self


def _frozen_by_train() -> nn.Module:
    return _FrozenByTrain(lambda s, x: s.norm(s.conv(x)).relu(), conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4))


def _read_once_more() -> nn.Module:
    """Return a layer whose bias also acts outside of it."""
    return Lambda(
        lambda s, x: s.norm(s.conv(x)).relu() + s.conv.bias.sum(), conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)
    )


def _chain(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the factory of layers in a row, a ReLU after them."""
    return lambda: nn.Sequential(*(make() for make in layers), nn.ReLU())


def _conv(*arguments: int, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*arguments, **settings)


def _batch_norm() -> nn.Module:
    return nn.BatchNorm2d(4)


IMAGE = (3, 6, 6)
CASES: dict[str, Case] = {
    "convolution and BatchNorm": (_chain(_conv(3, 4, 3), _batch_norm), IMAGE),
    "linear and BatchNorm": (_chain(lambda: nn.Linear(5, 4), lambda: nn.BatchNorm1d(4)), (5,)),
    "transposed convolution": (_chain(lambda: nn.ConvTranspose2d(3, 4, 2), lambda: nn.InstanceNorm2d(4)), IMAGE),
    "GroupNorm of single channels": (_chain(_conv(3, 4, 3), lambda: nn.GroupNorm(4, 4)), IMAGE),
    "GroupNorm of two channels": (_chain(_conv(3, 4, 3), lambda: nn.GroupNorm(2, 4)), IMAGE),
    "LayerNorm": (_chain(lambda: nn.Linear(5, 4), lambda: nn.LayerNorm(4)), (5,)),
    "RMSNorm": (_chain(lambda: nn.Linear(5, 4), lambda: nn.RMSNorm(4)), (5,)),
    "dropout between": (_chain(_conv(3, 4, 3), lambda: nn.Dropout(0.5), _batch_norm), IMAGE),
    "dropout that drops nothing": (_chain(_conv(3, 4, 3), lambda: nn.Dropout(0.0), _batch_norm), IMAGE),
    "a ReLU between": (_chain(_conv(3, 4, 3), nn.ReLU, _batch_norm), IMAGE),
    "pooling between": (_chain(_conv(3, 4, 3), lambda: nn.AvgPool2d(2), _batch_norm), IMAGE),
    "zero padding between": (_chain(_conv(3, 4, 1), _conv(4, 4, 3, padding=1, bias=False), _batch_norm), IMAGE),
    "seen beside the normalizer": (lambda: _residual(True), IMAGE),
    "seen by it alone": (lambda: _residual(False), IMAGE),
    "written out": (_written_out, IMAGE),
    "seen by a ReLU on the way": (_around, IMAGE),
    "linear bottlenecks": (_bottlenecks, (4, 6, 6)),
    "frozen in training": (_frozen_by_train, IMAGE),
    "read once more": (_read_once_more, IMAGE),
}
CANCELLED = (
    "convolution and BatchNorm", "linear and BatchNorm", "transposed convolution", "GroupNorm of single channels",
    "dropout that drops nothing", "pooling between", "seen by it alone", "written out", "linear bottlenecks",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_bias_is_told_exactly_where_its_gradient_is_zero(name: str) -> None:
    """In train mode, by float64 autograd."""
    build, shape = CASES[name]
    model = initialized(build())
    told = {str(f.evidence["parameter"]) for f in found("NS101", model, noise(4, *shape))}
    grads = gradients(model, noise(4, *shape))
    largest = max(float(g.abs().max()) for g in grads.values())
    biases = {n for n, p in model.named_parameters() if p.ndim == 1}
    zero = {n for n in biases if float(grads[n].abs().max()) < 1e-10 * largest}
    assert told == zero
    assert bool(told) == (name in CANCELLED)


def test_the_shift_of_a_normalizer_is_a_remark_only() -> None:
    """It comes with the scale."""
    told = found("NS101", initialized(_bottlenecks()), noise(4, 4, 6, 6))
    assert {(f.evidence["parameter"], f.severity) for f in told} == {("n1.bias", Severity.INFO)}


def test_a_finding_says_what_and_where() -> None:
    """Proved, at the layer."""
    (one,) = found("NS101", nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), input_shape=(3, 6, 6))
    assert (one.place, one.severity, one.certainty) == ("0", Severity.WARNING, Certainty.PROVED)
    assert (
        places("NS101", nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), input_shape=(3, 6, 6)) == []
    )


def test_a_bias_used_twice_must_be_cancelled_twice() -> None:
    """The same layer before a normalizer and at the end."""
    model = Lambda(lambda s, x: s.a(s.n(s.a(x)).relu()), a=nn.Linear(4, 4), n=nn.BatchNorm1d(4))
    assert places("NS101", model.eval(), noise(4, 4)) == []
    assert torch.is_grad_enabled()
