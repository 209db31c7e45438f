"""Functional form: random programs of views and writes on shared memory are recorded exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normscope.graph.dispatch import record_graph
from normscope.graph.guard import same_bits
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph


class Function(nn.Module):
    """A model whose forward is a given function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        """Run the function."""
        return self.function(*inputs)


VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t.t() if t.ndim == 2 else t.unsqueeze(0),
    lambda t: t[1:] if t.ndim and t.shape[0] > 1 else t,
    lambda t: t[..., ::2] if t.ndim else t,
    lambda t: t.select(0, -1) if t.ndim > 1 else t,
    lambda t: t.view(-1) if t.is_contiguous() else t.reshape(-1),
    lambda t: t.chunk(2, -1)[0] if t.ndim else t,
    lambda t: t.data,
    lambda t: t.detach(),
    lambda t: t.diagonal() if t.ndim == 2 else t,
    lambda t: t.unbind(0)[0] if t.ndim > 1 else t,
    lambda t: t.as_strided((2,), (1,), t.storage_offset()) if t.numel() > 1 and t.is_contiguous() else t,
    lambda t: t.squeeze(),
    lambda t: t * 1.0,
)
WRITES: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda t, x: t.mul_(2),
    lambda t, x: t.add_(x.amax()),
    lambda t, x: t.relu_(),
    lambda t, x: t.neg_(),
    lambda t, x: t.zero_(),
    lambda t, x: t.fill_(0.5),
    lambda t, x: t.copy_(x.amin().expand(t.shape)),
    lambda t, x: t.gt_(0),
    lambda t, x: t.data.sub_(1),
    lambda t, x: t.masked_fill_(t > 0, 3.0),
    lambda t, x: torch.add(t.clone(), 1.5, out=t),
    lambda t, x: t.index_fill_(0, torch.tensor([0]), 7.0) if t.ndim else t.add_(1),
)
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, max(len(VIEWS), len(WRITES)) - 1)),
    min_size=1,
    max_size=7,
)


def _program(steps: list[tuple[bool, int, int]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return a function that makes views and writes through them, and returns everything it holds."""

    def run_program(x: Tensor) -> tuple[Tensor, ...]:
        held = [x, x * 3 - 1]
        for write, which, what in steps:
            tensor = held[which % len(held)]
            if write:
                WRITES[what % len(WRITES)](tensor, x)
            else:
                held.append(VIEWS[what % len(VIEWS)](tensor))
        return tuple(held)

    return run_program


@settings(max_examples=120, deadline=None, derandomize=True)
@given(STEPS)
def test_random_programs_on_shared_memory(steps: list[tuple[bool, int, int]]) -> None:
    """What every alias holds at the end is what eager torch says, also on an input that was not recorded.

    The programs hold no sums: those may round otherwise where a functional form has other strides.
    """
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator)
    model = Function(_program(steps))
    graph, tensors = record_graph(model, (x,))
    assert not any(node.op.startswith("normscope.") for node in graph)
    assert Graph.from_json(graph.to_json()) == graph
    for value in (x, other):
        with torch.no_grad():
            expected = model(value.clone())
            found = run(graph, tensors, [value.clone()])
        assert all(map(same_bits, found, expected))


def _ops(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    graph, tensors = record_graph(Function(function), inputs)
    with torch.no_grad():
        expected = function(*(x.clone() for x in inputs))
        found = run(graph, tensors, [x.clone() for x in inputs])
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert all(map(same_bits, found, expected))
    return [node.op.removeprefix("aten.") for node in graph.calls()]


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))


def _assign(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:3] = x[:, :2]
    return y


def _twice(x: Tensor) -> tuple[Tensor, Tensor]:
    value, index = torch.empty(2), torch.empty(2, dtype=torch.int64)
    torch.max(x, 1, out=(value, index))
    return value, index


def _lists(x: Tensor) -> tuple[Tensor, ...]:
    parts = [x * 1, x * 2]
    torch._foreach_add_(parts, 1.0)
    return tuple(parts)


def _geometry(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 1).unsqueeze_(0)
    y.transpose_(1, 2).mul_(2)
    z = y.squeeze(0)
    z[0] = 0
    return y, z


FORMS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "in place becomes functional": (lambda x: (x * 1).relu_(), ["mul.Tensor", "relu.default"]),
    "assignment": (_assign, ["mul.Tensor", "slice.Tensor", "slice_scatter.default"]),
    "zero forgets the past": (lambda x: (x * 1).zero_() + x, ["full.default", "add.Tensor"]),
    "copy of another dtype": (lambda x: torch.zeros(2, 4).copy_(x.double()), ["to.dtype", "to.dtype"]),
    "copy of another shape": (lambda x: torch.zeros(3, 2, 4).copy_(x), ["expand.default", "clone.default"]),
    "out": (lambda x: torch.add(x, 1, out=torch.empty(2, 4)), ["add.Tensor"]),
    "out of two": (_twice, ["max.dim"]),
    "out that is resized": (lambda x: torch.add(x, 1, out=torch.empty(0)), ["add.Tensor"]),
    "lists": (_lists, ["mul.Tensor", "mul.Tensor", "_foreach_add.Scalar"]),
    "kept dtype": (lambda x: x.half().add_(x), ["to.dtype", "add.Tensor", "to.dtype"]),
    "truth in numbers": (lambda x: (x * 1).gt_(0), ["mul.Tensor", "gt.Scalar", "to.dtype"]),
    "and": (lambda x: (x > 0).__iand__(x < 1), ["gt.Scalar", "lt.Scalar", "__and__.Tensor"]),
    "power": (lambda x: x.abs().pow_(2), ["abs.default", "pow.Tensor_Scalar"]),
    "no functional twin": (
        lambda x: (x @ x.t()).fill_diagonal_(2.0),
        ["t.default", "matmul.default", "clone.default", "fill_diagonal_.default"],
    ),
    "strides named": (lambda x: x.as_strided((2, 2), (1, 2), 1), ["take.default"]),
    "nothing happened": (lambda x: x, []),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), ["add.Tensor"]),
}


@pytest.mark.parametrize(("function", "ops"), FORMS.values(), ids=FORMS.keys())
def test_the_functional_form(function: Callable[..., Any], ops: list[str]) -> None:
    """What is written down, operation by operation."""
    assert _ops(function, X) == ops


def test_views_changed_in_place() -> None:
    """A tensor may become another view of its memory."""
    _ops(_geometry, X)


def test_only_what_is_unknown_is_marked() -> None:
    """Memory of another size, or borrowed: the value is kept, its origin is not claimed."""
    for function in (lambda x: (x * 1).resize_(4, 2), lambda x: (x * 1).set_((x * 2).untyped_storage())):
        graph, _ = record_graph(Function(function), (X,))
        (unknown,) = [n for n in graph if n.op == "normscope.alias.unknown"]
        assert len(unknown.inputs()) > 1


def test_pieces_of_one_memory_that_do_not_contain_each_other() -> None:
    """Two halves of one buffer: writing to one leaves the other alone or marks it, never invents a value."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(8.0)
            self.register_buffer("left", whole[:5])
            self.register_buffer("right", whole[3:])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            before = self.right * x
            self.left.add_(x)
            return before, self.right * 1

    model = Halves()
    graph, tensors = record_graph(model, (torch.ones(5),))
    assert model.left.tolist() == [0, 1, 2, 3, 4]  # put back
    before, after = run(graph, tensors, [torch.ones(5)])
    assert before.tolist() == [3, 4, 5, 6, 7]
    assert after.tolist() == [4, 5, 5, 6, 7]
    marked = graph[graph["output"].args[1].name]
    assert "normscope.alias.unknown" in {graph[name].op for name in marked.inputs()}
