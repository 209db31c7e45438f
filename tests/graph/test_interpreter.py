"""The interpreter: it computes what torch computes, frees what is not needed, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from networks import points
from normscope.core.errors import CaptureError
from normscope.graph.interpreter import as_floating, call, literal, literals, resolve, run
from normscope.graph.ir import Graph, Named, Node, Ref
from normscope.graph.recorder import record_graph

X = torch.arange(6.0).view(2, 3)


def _graph(*nodes: Node, outputs: tuple[str, ...]) -> Graph:
    inputs = (Node("x", "input"),)
    return Graph((*inputs, *nodes, Node("output", "output", tuple(Ref(name) for name in outputs))))


def test_operations_are_resolved_by_name() -> None:
    """Torch's own, Python's on integers, and our markers."""
    assert resolve("aten.relu.default") is torch.ops.aten.relu.default
    assert resolve("getitem")([4, 5], 1) == 5
    assert resolve("python.mul")(3, 4) == 12
    assert resolve("python.floordiv")(7, 2) == 3
    assert resolve("python.ceil")(1.5) == 2
    assert resolve("python.sym_max")(3, 4) == 4
    assert resolve("python.sym_ite")(False, 1, 2) == 2
    assert resolve("normscope.scalar.unknown")("value", "a", "b") == "value"


@pytest.mark.parametrize("op", ["aten.no_such_operation.default", "aten.relu.nothing", "python.no_such_function"])
def test_unknown_operations_are_an_error(op: str) -> None:
    """With the version of torch that lacks them."""
    with pytest.raises(CaptureError, match=f"{op}.*{torch.__version__[:4]}"):
        resolve(op)


def test_literals_are_torch_objects_again() -> None:
    """Also nested, and with another precision in the place of the recorded one."""
    names = (Named("dtype", "float32"), Named("dtype", "int64"), Named("device", "cpu"), Named("layout", "strided"))
    assert literals(names) == [torch.float32, torch.int64, torch.device("cpu"), torch.strided]
    assert literals((names[:2], 3), torch.float64) == [[torch.float64, torch.int64], 3]
    assert literal(Named("memory_format", "channels_last")) is torch.channels_last


def test_a_graph_computes_what_torch_computes() -> None:
    """Several inputs, tensors by name, literals, tuples and keyword arguments."""
    graph = Graph(
        (
            Node("w", "parameter", target="weight"),
            Node("a", "input"),
            Node("b", "input"),
            Node("c", "aten.cat.default", ((Ref("a"), Ref("b")), 1)),
            Node("m", "aten.max.dim", (Ref("c"), 1)),
            Node("v", "getitem", (Ref("m"), 0)),
            Node("n", "aten.sym_size.int", (Ref("a"), 1)),
            Node("k", "python.mul", (Ref("n"), 2)),
            Node("r", "aten.reshape.default", (Ref("c"), (-1, Ref("k")))),
            Node("s", "aten.sum.dim_IntList", (Ref("r"), (1,)), (("dtype", Named("dtype", "float64")),)),
            Node("y", "aten.mul.Tensor", (Ref("v"), Ref("w"))),
            Node("output", "output", (Ref("y"), Ref("s"), Ref("a"))),
        )
    )
    w = torch.tensor([2.0, -1.0])
    joined = torch.cat([X, X + 1], 1)
    y, s, a = run(graph, {"weight": w}, [X, X + 1])
    assert torch.equal(y, joined.max(1).values * w)
    assert torch.equal(s, joined.sum(1, dtype=torch.float64))
    assert a is X


def test_another_precision_takes_the_place_of_the_recorded_one() -> None:
    """A cast to float32 inside the graph does not spoil a run in float64."""
    node = Node("y", "aten.to.dtype", (Ref("x"), Named("dtype", "float32")))
    value = torch.tensor([1 / 3], dtype=torch.float64)
    graph = _graph(node, outputs=("y",))
    assert run(graph, {}, [value])[0].dtype == torch.float32
    assert torch.equal(run(graph, {}, [value], dtype=torch.float64)[0], value)
    assert call(node, {"x": value}, torch.float64).dtype == torch.float64


def test_what_is_created_takes_the_precision_of_the_run() -> None:
    """A constant without a dtype would have torch's default one, and then mix badly."""
    zeros = Node("z", "aten.zeros.default", ([2, 2],))
    added = Node("y", "aten.index_add.default", (Ref("z"), 1, Ref("i"), Ref("x")))
    index = Node("i", "constant", target="i")
    value = torch.rand(2, 3, dtype=torch.float64)
    tensors = {"i": torch.tensor([0, 1, 0])}
    (sums,) = run(_graph(zeros, index, added, outputs=("y",)), tensors, [value], dtype=torch.float64)
    assert torch.equal(sums, torch.stack([value[:, 0] + value[:, 2], value[:, 1]], 1))


def test_derivatives_go_through_copies() -> None:
    """A graph is differentiated as what it computes, also where torch itself would refuse or stop."""
    copied = Node("y", "aten.copy.default", (Ref("x"), Ref("x")))
    detached = Node("z", "aten.detach.default", (Ref("y"),))
    x = X.clone().requires_grad_()
    (value,) = run(_graph(copied, detached, outputs=("z",)), {}, [x])
    assert torch.equal(torch.autograd.grad(value.square().sum(), x)[0], 2 * X)


def test_values_are_freed_after_their_last_use() -> None:
    """Long graphs do not hold all activations at once."""
    chain = [Node(f"y{i}", "aten.relu.default", (Ref(f"y{i - 1}" if i else "x"),)) for i in range(5)]
    graph = _graph(*chain, outputs=("y4",))
    alive: list[int] = []

    def count(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        alive.append(len(values))

    run(graph, {}, [X], visit=count)
    assert max(alive) == 2
    assert graph.last_uses["y1"] == ["y0"]
    unused = _graph(Node("dead", "aten.relu.default", (Ref("x"),)), outputs=("x",))
    assert unused.last_uses["dead"] == ["dead"]


def test_a_visitor_sees_and_replaces_values() -> None:
    """Sources and operations in order; the output node has no value."""
    graph = _graph(Node("y", "aten.relu.default", (Ref("x"),)), outputs=("y",))
    seen: list[str] = []

    def double(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
        seen.append(node.name)
        return value * 2 if node.name == "y" else None

    assert torch.equal(run(graph, {}, [X], visit=double)[0], X * 2)
    assert seen == ["x", "y"]


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
def test_running_statistics_do_not_move(norm: nn.Module) -> None:
    """Not even when a graph is run in training mode."""
    norm.train()
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    names = ("running_mean", "running_var")
    sources = [Node(name, "buffer", target=name) for name in names]
    last = (True, 0.1, 1e-5, False)
    op = "aten.batch_norm.default" if isinstance(norm, nn.BatchNorm1d) else "aten.instance_norm.default"
    args = (Ref("x"), None, None, Ref("running_mean"), Ref("running_var"), *last)
    graph = Graph((*sources, Node("x", "input"), Node("y", op, args), Node("output", "output", (Ref("y"),))))
    found = run(graph, dict(norm.named_buffers()), [x])[0]
    assert all(torch.equal(tensor, state[name]) for name, tensor in norm.state_dict().items())
    assert torch.allclose(found.mean(-1 if "instance" in op else (0, 2)), torch.zeros(()), atol=1e-6)
    recorded, tensors = record_graph(norm, (x,))
    run(recorded, tensors, [x])
    assert all(torch.equal(tensor, state[name]) for name, tensor in norm.state_dict().items())


def test_gradients_flow_through_a_run() -> None:
    """A graph is as differentiable as the model."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4))
    graph, tensors = record_graph(model, (X,))
    x = X.clone().requires_grad_()
    ours = torch.autograd.grad(run(graph, tensors, [x])[0].square().sum(), x)[0]
    theirs = torch.autograd.grad(model(x).square().sum(), x)[0]
    assert torch.equal(ours, theirs)
    assert math.isfinite(float(ours.sum()))


def test_what_torch_differentiates_only_once() -> None:
    """Products with a Jacobian need a derivative of a gradient: hard sigmoids have one here."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 2)).double()
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    graph, tensors = record_graph(model, (x,))
    assert torch.allclose(run(graph, tensors, [x])[0], model(x), rtol=1e-14)
    dense = torch.autograd.functional.jacobian(model, x).reshape(2, 3)
    inner = x.clone().requires_grad_()
    (out,) = run(graph, tensors, [inner])
    seed = torch.zeros_like(out, requires_grad=True)
    (pulled,) = torch.autograd.grad(out, inner, seed, create_graph=True)
    direction = torch.ones_like(x)
    (pushed,) = torch.autograd.grad(pulled, seed, direction)
    assert torch.allclose(pushed.flatten(), dense @ direction.flatten(), rtol=1e-12)


def test_rows_of_experts_have_a_derivative() -> None:
    """Products with one matrix per group of rows are those of the library, and can be differentiated."""
    pytest.importorskip("transformers.integrations.moe")
    rows, matrices = points(7, 3), points(2, 3, 4)
    ends = torch.tensor([2, 7])
    node = Node("y", "transformers.grouped_mm_fallback.default", (Ref("x"), Ref("w"), Ref("e")))
    values = {"x": rows.clone().requires_grad_(True), "w": matrices, "e": ends}
    found = call(node, values)
    assert torch.allclose(found, torch.ops.transformers.grouped_mm_fallback(rows, matrices, ends))
    (slope,) = torch.autograd.grad(found.sum(), values["x"])
    expected = torch.cat([matrices[0].sum(-1).expand(2, 3), matrices[1].sum(-1).expand(5, 3)])
    assert torch.allclose(slope, expected)


def test_a_precision_is_that_of_floating_tensors() -> None:
    """Also inside tuples, lists and dicts; whole numbers, words and what has the precision already stay as they are."""
    third, count = torch.tensor(1 / 3), torch.tensor([3])
    found = as_floating({"a": (third, [count, "word"]), "b": None}, torch.float64)
    assert float(found["a"][0]) == float(third), "a wider number is the same number"
    assert found["a"][0].dtype == torch.float64
    assert found["a"][1][0] is count
    assert (found["a"][1][1], found["b"]) == ("word", None)
    assert isinstance(found["a"], tuple)
    assert as_floating(third, torch.float32) is third
    assert as_floating(third, None) is third
    assert as_floating(third, torch.int64) is third
    assert float(as_floating(third.double(), torch.bfloat16)) != float(third)


def test_what_is_known_is_not_computed_again() -> None:
    """Of a chain with a branch only what depends on the moved weight, up to where its change ends."""
    nodes = (
        Node("x", "input"),
        Node("a", "parameter", target="a"),
        Node("b", "parameter", target="b"),
        Node("u", "aten.mul.Tensor", (Ref("x"), Ref("a"))),
        Node("v", "aten.mul.Tensor", (Ref("x"), Ref("b"))),
        Node("s", "aten.add.Tensor", (Ref("u"), Ref("v"))),
        Node("t", "aten.exp.default", (Ref("s"),)),
        Node("out", "output", (Ref("t"),)),
    )
    graph, x = Graph(nodes, ("y",)), torch.tensor([1.0, 2.0])
    known: dict[str, Any] = {}
    seen: list[str] = []

    def keep(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        if node.op.startswith("aten."):
            known[node.name] = value

    def note(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
        seen.extend([node.name] if node.op.startswith("aten.") else [])
        return known["s"] if node.name == "s" and bool((value == known["s"]).all()) else None

    before = {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}
    expected = run(graph, before, [x], keep)[0]
    after = {"a": torch.tensor(2.0), "b": torch.tensor(4.0)}
    found = run(graph, after, [x], note, known=known, moved={"b"})[0]
    assert torch.equal(found, run(graph, after, [x])[0])
    assert seen == ["v", "s", "t"]
    seen.clear()
    assert torch.equal(run(graph, dict(before), [x], note, known=known, moved={"b"})[0], expected)
    assert seen == ["v", "s"], "the change ended in the sum"
