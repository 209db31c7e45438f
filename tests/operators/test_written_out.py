"""What is known around a node: weights behind reshapes, scale and shift after it, and it as a function of another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, points
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.program import ProgramBuilder
from normscope.operators.written_out import Surroundings


def _around(model: nn.Module, x: Tensor) -> Surroundings:
    captured = captured_of(model, x)
    walk = ProgramBuilder(captured.graph, captured.tensors, captured.at_batch(1))
    walk.run()
    return walk.around


def test_a_weight_is_a_parameter_up_to_shape_and_factors() -> None:
    """A sum of two parameters is not, nor is a product of two."""
    model = Lambda(
        lambda s, x: x @ (s.a.t() * 2.0) + x @ torch.sin(s.a + s.b) + x @ torch.cos(s.a * s.b),
        a=nn.Parameter(points(3, 3)),
        b=nn.Parameter(points(3, 3)),
    )
    around = _around(model, points(2, 3))
    products = [n for n in around.graph if name_of(n) == "mul"]
    sums = [n for n in around.graph if name_of(n) == "add" and around.expression(n.name) is None]
    assert [around.is_weight(n.name) for n in products] == [True, False]
    assert [around.is_weight(n.name) for n in sums] == [False]


def test_scale_and_shift_are_those_right_after() -> None:
    """Constant ones only."""
    gamma, beta = points(3), points(3, seed=1)
    model = Lambda(lambda s, x: torch.tanh(x) * s.g + s.b, g=nn.Parameter(gamma), b=nn.Parameter(beta))
    around = _around(model, points(2, 3))
    (node,) = [n for n in around.graph if name_of(n) == "tanh"]
    found = around.affine_after(node)
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], gamma)
    assert torch.equal(found[1], beta)
    moving = _around(Lambda(lambda s, x: torch.tanh(x) * torch.exp(x)), points(2, 3))
    (node,) = [n for n in moving.graph if name_of(n) == "tanh"]
    assert moving.affine_after(node)[:2] == (None, None)


def test_what_depends_on_the_input_later_is_no_shift() -> None:
    """Neither before nor after it is reached."""
    model = Lambda(lambda s, x: (x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()) + torch.where(x > 1, x, 0.0))
    captured = captured_of(model, points(2, 6))
    (site,) = ProgramBuilder(captured.graph, captured.tensors, captured.at_batch(1)).run().sites
    assert (site.gamma, site.beta) == (None, None)


def test_a_node_is_a_function_of_another() -> None:
    """With constants at their values."""
    gamma = points(3)
    around = _around(Lambda(lambda s, x: torch.exp(torch.tanh(x) * s.g), g=nn.Parameter(gamma)), points(2, 3))
    inner, outer = (next(n for n in around.graph if name_of(n) == name) for name in ("tanh", "exp"))
    x = points(1, 3, seed=4)
    value = around.run(outer, inner.name)(x)
    assert value is not None
    assert torch.allclose(value, torch.exp(x * gamma))


def test_scales_follow_one_another() -> None:
    """Numbers, quotients and signs are part of the scale; the end is the node after all of them."""
    gamma = points(3)
    model = Lambda(lambda s, x: -(torch.tanh(x) * 4.0).clone() * s.g / 0.5 + 1.0, g=nn.Parameter(gamma))
    around = _around(model, points(2, 3))
    (node,) = [n for n in around.graph if name_of(n) == "tanh"]
    scale, shift, end = around.affine_after(node)
    assert scale is not None
    assert shift is not None
    assert torch.allclose(scale.double(), -8.0 * gamma.double())
    assert float(shift) == 1.0
    assert name_of(around.graph[end]) == "add"


def test_a_part_is_run_in_float64() -> None:
    """A float32 graph on a float64 probe gives the float64 function of it, parameters included."""
    around = _around(Lambda(lambda s, x: (x.relu() * s.w).exp(), w=nn.Parameter(torch.tensor([0.5, 2.0]))), _ONES)
    probe = points(3, 2)
    source, node = (next(n for n in around.graph if n.op == "input"), _last(around, "exp"))
    found = around.run(node, source.name)(probe)
    assert found is not None
    assert found.dtype == torch.float64
    assert torch.equal(found, (probe.relu() * torch.tensor([0.5, 2.0]).double()).exp())


def test_what_depends_on_more_than_the_source_is_not_run() -> None:
    """The product also reads the input itself, of which nothing is known."""
    around = _around(Lambda(lambda s, x: x * x.relu().exp(), w=nn.Parameter(torch.ones(1))), _ONES)
    assert around.run(_last(around, "mul"), _last(around, "relu").name)(points(3, 2)) is None


_ONES = torch.ones(3, 2)


def _last(around: Surroundings, name: str) -> Node:
    return [n for n in around.graph if name_of(n) == name][-1]
