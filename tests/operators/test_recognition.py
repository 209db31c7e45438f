"""Which normalizer ends at a node: named by what it divides by, checked on numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from networks import points, program_of, seeded
from normscope.graph.recognise import Match
from normscope.operators.recognition import divides_by_spread, kind_of_division
from normscope.operators.spread_division import Spread


@pytest.mark.parametrize(
    ("axes", "rank", "kind"),
    [
        ((-1 % 2,), 2, "layer_norm"),
        ((0,), 2, "batch_norm"),
        ((0,), 1, "layer_norm"),
        ((0, 2), 3, "batch_norm"),
        ((0, 2, 3), 4, "batch_norm"),
        ((2, 3), 4, "instance_norm"),
        ((2,), 3, "layer_norm"),
        ((1, 2, 3), 4, "layer_norm"),
    ],
)
def test_axes_name_a_centred_normalizer(axes: tuple[int, ...], rank: int, kind: str) -> None:
    """Over the batch, over the places of one channel, or over anything else."""
    centred, square = (Spread((2,) * rank, axes, 1e-5, c) for c in (True, False))
    assert kind_of_division(Match("x", axes, 1e-5, True), centred) == kind
    assert kind_of_division(Match("x", axes, 1e-5, False, root_of="sum"), square) == "l2_norm"


SPREADS = [
    Spread((2, 6), (1,), 1e-5, True),
    Spread((2, 6), (1,), 1e-5, False),
    Spread((2, 6), (1,), 1e-3, False, 6.0, "max"),
    Spread((2, 6), (1,), 1e-2, True, 1.2, "outside"),
    Spread((2, 6), (1,), 0.0, True),
]
WRONG: dict[str, Callable[[Spread], Spread]] = {
    "eps": lambda s: replace(s, eps=s.eps * 1.5 + 1e-6),
    "factor": lambda s: replace(s, factor=s.factor * 1.01),
    "axes": lambda s: replace(s, axes=(0,)),
    "centring": lambda s: replace(s, centered=not s.centered),
}


@pytest.mark.parametrize("spread", SPREADS)
def test_a_normalizer_agrees_with_itself_alone(spread: Spread) -> None:
    """Any change of stabilizer, factor, axes or centring shows."""
    assert divides_by_spread(spread, spread.normalize)
    for name, change in WRONG.items():
        assert not divides_by_spread(change(spread), spread.normalize), name


def test_a_stabilizer_elsewhere_shows() -> None:
    """Inside the root, outside it, or as a floor: three different functions."""
    inside = Spread((2, 6), (1,), 1e-4, False)
    for where, eps in (("outside", 1e-2), ("max", 1e-2), ("outside", 1e-4)):
        assert not divides_by_spread(replace(inside, where=where, eps=eps), inside.normalize)


def test_nothing_is_recognized_without_values() -> None:
    """A function that cannot be evaluated, or gives another shape."""
    assert not divides_by_spread(SPREADS[0], lambda x: None)
    assert not divides_by_spread(SPREADS[0], lambda x: x.sum(1))


def _centred(w: Tensor) -> Tensor:
    return w - w.mean((1, 2, 3), keepdim=True)


def _lengths(w: Tensor) -> Tensor:
    return w.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "length of the centred filter": (lambda w: _centred(w) / (_lengths(_centred(w)) + 1e-5), "weight_standardization"),
    "centred and made unit vectors": (
        lambda w: F.normalize(_centred(w).flatten(1)).view_as(w),
        "weight_standardization",
    ),
    "deviation and a gain": (
        lambda w: 2 * _centred(w) / (w.flatten(1).std(1).view(-1, 1, 1, 1) + 1e-4),
        "weight_standardization",
    ),
    "length and a stabilizer": (lambda w: w / (_lengths(w) + 1e-5), "weight_norm"),
    "root of the sum of squares": (
        lambda w: w / (w.square().sum((1, 2, 3), keepdim=True).sqrt() + 1e-6),
        "weight_norm",
    ),
    "length of the whole weight": (lambda w: w / (w.norm() + 1e-5), "weight_norm"),
    "length of another filter": (lambda w: w / (_lengths(w).flip(0) + 1e-5), None),
    "root of the length": (lambda w: w / (_lengths(w).sqrt() + 1e-5), None),
    "largest entry": (lambda w: w / (w.abs().amax((1, 2, 3), keepdim=True) + 1e-5), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_it_is_seen_and_nothing_else(name: str) -> None:
    """The kind is told; a quotient that is neither has none."""
    form, kind = FORMS[name]

    class Divided(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, form(self.weight), self.bias)

    program = program_of(seeded(Divided(3, 4, 3)), points(2, 3, 6, 6))
    assert [site.kind for site in program.sites] == ([] if kind is None else [kind])
