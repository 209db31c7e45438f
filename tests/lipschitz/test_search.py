"""Search for steep inputs: what it reports is attained, and inside the domain it is said of."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, jacobian_norm, points, seeded
from normscope.graph.capture import Captured
from normscope.lipschitz.lower import EndToEnd
from normscope.lipschitz.search import Search, _inside, number_of_points, search
from normscope.operators.nonlinear import Range
from normscope.operators.program import Program, build_program
from normscope.operators.survey import survey


def _walked(model: nn.Module, x: Tensor) -> tuple[Captured, Program, list[list[Tensor]]]:
    captured = captured_of(model, x)
    program = build_program(captured.graph, captured.tensors, captured.at_batch(1))
    return captured, program, [[row[None]] for row in x]


def test_the_best_of_the_points() -> None:
    """The largest dense Jacobian norm over the points given, to a millionth and never above."""
    model, x = seeded(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))), points(9, 4) * 2
    captured, program, inputs = _walked(model, x)
    found = search(captured, program, inputs, floors={}, ascent=0)
    truth = max(jacobian_norm(model, row[None]) for row in x)
    assert found.jacobian is not None
    assert math.exp(found.jacobian) <= truth
    assert math.exp(found.jacobian) == pytest.approx(truth, rel=1e-6)
    assert found.everywhere == found.jacobian == found.on_floor


def test_ascent_only_raises() -> None:
    """From a flat place of a LayerNorm it climbs towards small spreads, still below the constant."""
    model = nn.LayerNorm(5).double()
    captured, program, inputs = _walked(model, points(3, 5))
    flat = search(captured, program, inputs, floors={}, ascent=0)
    steep = search(captured, program, inputs, floors={}, ascent=40)
    assert flat.everywhere is not None
    assert steep.everywhere is not None
    assert flat.everywhere < steep.everywhere <= -0.5 * math.log(1e-5)


def test_what_is_said_of_the_floors_lies_above_them() -> None:
    """Outside the floors ascent finds more, but it is not counted there."""
    model, x = nn.LayerNorm(5).double(), points(6, 5)
    captured, program, inputs = _walked(model, x)
    floors = survey(captured, program, [[x]], activations={}).floors()
    found = search(captured, program, inputs, floors=floors, ascent=40)
    least = float(x.var(1, unbiased=False).sqrt().min())
    bound = -0.5 * math.log(least**2 + 1e-5)
    assert found.on_floor is not None
    assert found.everywhere is not None
    assert found.on_floor <= bound + 1e-9
    assert found.everywhere > bound


def test_points_outside_the_domain_are_not_counted_in_it() -> None:
    """With floors above every point there is nothing to report there; with one below, only that one."""
    model, x = nn.LayerNorm(5).double(), points(3, 5) * torch.tensor([[0.1], [1.0], [3.0]])
    captured, program, inputs = _walked(model, x)
    (node,) = (s.node for s in program.sites)
    spreads = x.var(1, unbiased=False).sqrt()
    none = search(captured, program, inputs, floors={node: float(spreads.max()) * 2}, ascent=0)
    assert none.on_floor is None
    assert none.jacobian is not None
    last = search(captured, program, inputs, floors={node: float(spreads[2]) * 0.99}, ascent=0)
    assert last.on_floor is not None
    assert math.exp(last.on_floor) == pytest.approx(jacobian_norm(model, x[2:]), rel=1e-6)


def test_membership() -> None:
    """Floors of normalizers, entries, rows and norms of the input."""
    model = seeded(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    x = points(1, 3)
    captured, program, _ = _walked(model, torch.cat([x, x]))
    function = EndToEnd(captured, program, [x])
    (node,) = (s.node for s in program.sites)
    spread = float(model[0](x).detach().var(unbiased=False).sqrt())
    flat = x.flatten()
    assert _inside(function, flat, {}, ())
    assert _inside(function, flat, {node: spread * (1 - 1e-9)}, ())
    assert not _inside(function, flat, {node: spread * (1 + 1e-9)}, ())
    low, high, norm = float(x.min()), float(x.max()), float(x.norm())
    assert _inside(function, flat, {}, (Range(low, high, norm * (1 + 1e-9), norm * (1 + 1e-9)),))
    for wrong in (Range(low + 0.1, high), Range(low, high - 0.1), Range(row=norm / 2), Range(norm=norm / 2)):
        assert not _inside(function, flat, {}, (wrong,))


def test_a_network_without_a_derivative_says_so() -> None:
    """An operation autograd does not know gives no lower bound, and the reason."""
    model = Lambda(lambda s, x: torch.special.zeta(x.abs() + 2, x.abs() + 1.0), p=nn.Parameter(torch.ones(1).double()))
    captured, program, inputs = _walked(model, points(2, 3))
    found = search(captured, program, inputs, floors={})
    assert (found.jacobian, found.everywhere, found.on_floor) == (None, None, None)
    assert "zeta" in found.failure


def test_nothing_to_search() -> None:
    """No inputs, or no output that depends on them."""
    captured, program, inputs = _walked(seeded(nn.Linear(3, 2)), points(2, 3))
    assert search(captured, program, [], floors={}) == Search(None, None, None)
    constant = Lambda(lambda s, x: s.p * 2, p=nn.Parameter(torch.ones(2).double()))
    captured, program, inputs = _walked(constant, points(2, 3))
    assert search(captured, program, inputs, floors={}) == Search(None, None, None)


def test_deep_networks_beyond_the_float_range() -> None:
    """A product of 1e-40 twenty times: the Jacobian is told as a logarithm."""
    model = nn.Sequential(*[m for _ in range(20) for m in (nn.Linear(3, 3, bias=False), nn.ReLU())]).double()
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.weight.data.copy_(1e-40 * torch.eye(3, dtype=torch.float64))
    captured, program, inputs = _walked(model, points(2, 3).abs() + 0.1)
    found = search(captured, program, inputs, floors={})
    assert found.jacobian == pytest.approx(20 * math.log(1e-40), rel=1e-9)


def test_the_number_of_points() -> None:
    """As many as asked for, otherwise few for large networks."""
    _, program, _ = _walked(seeded(nn.Linear(3, 2)), points(2, 3))
    assert number_of_points(program, 5) == 5
    assert number_of_points(program, None) > 2
    model, x = seeded(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))), points(5, 4)
    captured, program, inputs = _walked(model, x)
    lines: list[str] = []
    search(captured, program, inputs, floors={}, points=2, ascent=0, progress=lines.append)
    assert len(lines) == 2
