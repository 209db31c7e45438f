"""Every tensor inside a network is held against its range and its constant, and told when it leaves them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import captured_of, points, seeded
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.lower import EndToEnd
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Range
from normscope.operators.program import ProgramBuilder
from normscope.testing.node_bounds import _outside, node_violations, tensors_inside


class Split(nn.Module):
    """A layer, a bounded function, and an operation of several results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both halves."""
        left, right = torch.tanh(self.a(x)).chunk(2, -1)
        return self.b(left + right)


class Inside:
    """A network, its walk and the tensors at some points."""

    def __init__(self) -> None:
        self.model = seeded(Split())
        captured = captured_of(self.model, points(3, 4))
        self.walk = ProgramBuilder(captured.graph, captured.tensors, captured.at_batch(1))
        program = self.walk.run()
        self.end = EndToEnd(captured, program, captured.at_batch(1))
        self.points = points(5, 4, seed=1)
        self.tensors = tensors_inside(self.end, self.points)
        self.composition: Any = Composition(program, Domain(), SegmentNorms())

    def violations(self) -> list[str]:
        """Hold them against the composition."""
        return node_violations(self.walk, self.composition, self.points, self.tensors)


@pytest.fixture
def inside() -> Inside:
    """Return a network whose bounds are right."""
    return Inside()


def test_tensors_are_those_of_the_model(inside: Inside) -> None:
    """What hooks see of each layer, and both halves of the split, at every point."""
    seen: dict[str, Tensor] = {}
    for name in ("a", "b"):
        layer = getattr(inside.model, name)
        layer.register_forward_hook(lambda m, args, out, name=name: seen.__setitem__(name, out.detach()))
    for x, tensors in zip(inside.points, inside.tensors, strict=True):
        inside.model(x[None])
        values = list(tensors.values())
        for name in ("a", "b"):
            assert any(v.shape == seen[name].shape and torch.allclose(v, seen[name], rtol=1e-12) for v in values)
        half = torch.tanh(seen["a"])[:, 3:]
        assert any(v.shape == half.shape and torch.allclose(v, half, rtol=1e-12) for v in values)
    assert any(name.endswith("[1]") for name in inside.tensors[0])


def test_right_bounds_stand(inside: Inside) -> None:
    """No sentence at all."""
    assert inside.violations() == []


def _shrunk(inside: Inside, **change: float) -> None:
    """Make the range of bounded tensors smaller than it is."""
    truth = inside.composition.range

    def forged(expr: Expr) -> Range:
        found = truth(expr)
        if math.isinf(found.high):
            return found
        values = {key: getattr(found, key) for key in ("low", "high", "row", "norm")} | change
        return Range(**values)

    inside.composition.range = forged


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"low": -1e-3}, "smallest entry .* below -0.001"),
        ({"high": 1e-3}, "largest entry .* above 0.001"),
        ({"row": 1e-3}, "row norm .* above 0.001"),
        ({"norm": 1e-3}, "norm .* above 0.001"),
    ],
)
def test_a_range_that_is_too_small_is_told(inside: Inside, change: dict[str, float], said: str) -> None:
    """Each of its numbers by itself, with the node."""
    _shrunk(inside, **change)
    found = inside.violations()
    assert any(re.search(said, text) for text in found), found
    assert all(re.match(r"\S+ \(\w+\): ", text) for text in found)


def test_one_row_of_one_point_outside_is_told(inside: Inside) -> None:
    """Whichever point and row it is; what lies exactly at the ends is inside."""
    values = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[-2.0, 0.0], [0.0, 0.5]]], dtype=torch.float64)
    ends = {"low": -2.0, "high": 4.0, "row": 5.0, "norm": math.sqrt(26.0)}
    expr = inside.walk.program.outputs[0][1]

    def told(**change: float) -> list[str]:
        inside.composition.range = lambda expr: Range(**ends | change)
        return list(_outside(inside.composition, expr, values))

    for order in ([0, 1], [1, 0]):
        values = values[order][:, order]
        assert told() == []
        for name, end in ends.items():
            assert len(told(**{name: end * (1 - 1e-6)})) == 1, name


def test_a_constant_that_is_too_small_is_told(inside: Inside) -> None:
    """By the pair of points that shows it; a little less than right is already wrong for a linear layer."""
    truth = inside.composition.lipschitz
    inside.composition.lipschitz = lambda expr: truth(expr).scaled(-8.0)
    found = inside.violations()
    assert found
    assert all("changes it by" in text and "allowed" in text for text in found)


def test_another_shape_is_told(inside: Inside) -> None:
    """A rule that says a wrong shape is wrong about everything else, too."""
    name = next(n for n, expr in inside.walk.exprs.items() if isinstance(expr, Expr) and expr.shape == (1, 6))
    for tensors in inside.tensors:
        tensors[name] = tensors[name][:, :5]
    assert f"{name} has shape (1, 5), not (1, 6)" in inside.violations()


def test_what_is_not_finite_is_left_out(inside: Inside) -> None:
    """A mask of minus infinity is no evidence."""
    name = next(n for n, expr in inside.walk.exprs.items() if isinstance(expr, Expr) and expr.shape == (1, 6))
    inside.tensors[0][name] = torch.full((1, 6), -math.inf, dtype=torch.float64)
    assert inside.violations() == []
