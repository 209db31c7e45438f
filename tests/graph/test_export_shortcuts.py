"""Shortcuts of the export: the graph is the one torch traces by itself, and torch is afterwards as before."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import _trace, exported_program
from torch.fx import GraphModule
from torch.fx.experimental import proxy_tensor

from graph.test_export import Tupled
from normscope.graph.export import export_graph
from normscope.graph.export_shortcuts import SHORTCUTS, RepeatedOperations, shortcuts
from normscope.graph.interpreter import run


class Blocks(nn.Module):
    """A block of a network again and again, each with its own weights."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))
        self.norm, self.drop = nn.LayerNorm(4), nn.Dropout(0.5)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run all blocks."""
        (x,) = inputs
        for layer in self.layers:
            x = x + self._block(layer, x)
        return (x,)

    def _block(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(self.norm(x)).relu()


class InPlace(Blocks):
    """What one block writes, no other sees."""

    def _block(self, layer: nn.Module, x: Tensor) -> Tensor:
        y = self.drop(layer(x))
        y.add_(1.0)
        return torch.cat([y[:, :2], y[:, 2:].relu_()], 1)


class Sizes(Blocks):
    """Sizes, strides and numbers of entries of values that were given before."""

    def _block(self, layer: nn.Module, x: Tensor) -> Tensor:
        y = layer(x).t().contiguous()
        z = torch.cat([y, y], 1)
        return z.t()[: x.shape[0]] * z.stride(0) / z.shape[1] + y.new_zeros(y.shape[1], 4) / y.numel()


class Shapes(Blocks):
    """The same operation on other shapes, types and numbers."""

    def _block(self, layer: nn.Module, x: Tensor) -> Tensor:
        wide = torch.cat([x, x], 1) * 2
        double = (x.double() * 2).float()
        return layer(wide[:, :4] * 2.0) + double.sum(1, keepdim=True) + double.sum(1)[:, None] + (x > 0) * 1


class Modes(Blocks):
    """The same operation where gradients are recorded, and in another precision."""

    def _block(self, layer: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = layer(x)
        with torch.enable_grad():
            y = layer(x)
        return layer(x) + y + low.float()


class Constants(Blocks):
    """Constants whose entries decide what is computed."""

    def _block(self, layer: nn.Module, x: Tensor) -> Tensor:
        factor = torch.tensor(3.0)
        for _ in range(2):
            factor = factor * 2
            x = x * 2 if float(factor) > 10 else layer(x)
        return x * factor


MODELS = (Blocks, InPlace, Sizes, Shapes, Modes, Constants)


def _graph(model: nn.Module, dynamic: bool) -> tuple[str, Any, dict[str, Tensor]]:
    """Return a graph as text, without the numbers of nodes that hold a size, and itself."""
    graph, tensors = export_graph(model, (torch.ones(3, 4),), dynamic=dynamic)
    return re.sub(r"sym_size_int_\d+", "size", repr(graph)), graph, tensors


@pytest.mark.turns(3)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_the_graph_is_that_of_torch(kind: type[Blocks], dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node by node, and it computes what the model computes."""
    torch.manual_seed(0)
    model = kind().eval()
    text, graph, tensors = _graph(model, dynamic)
    x = torch.randn(5 if dynamic else 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(run(graph, tensors, [x.clone()]), list(model(x.clone())))
    monkeypatch.delitem(SHORTCUTS, "repeated operations")
    assert text == _graph(model, dynamic)[0]


def test_torch_works_out_what_comes_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many blocks there are; torch is afterwards as before, also after a failure."""
    usual, asked = proxy_tensor.proxy_call, []

    def counted(mode: Any, function: Any, *arguments: Any) -> Any:
        asked.append(str(function))
        return usual(mode, function, *arguments)

    monkeypatch.setattr(proxy_tensor, "proxy_call", counted)
    _graph(Blocks(3).eval(), True)
    few = len(asked)
    _graph(Blocks(9).eval(), True)
    assert len(asked) == 2 * few
    assert sorted(set(asked)) == ["aten.add.Tensor", "aten.layer_norm.default", "aten.linear.default",
                                  "aten.relu.default"]  # fmt: skip
    with pytest.raises(RuntimeError, match="stop"), shortcuts():
        raise RuntimeError("stop")
    assert proxy_tensor.proxy_call is counted


def test_another_torch_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what we stand in for has another name, nothing is put."""
    monkeypatch.delattr(proxy_tensor, "proxy_call")
    monkeypatch.delattr(proxy_tensor, "_extract_tensor_metadata")
    monkeypatch.delattr(FakeTensorMode, "_cached_dispatch_impl")
    with shortcuts():
        assert not hasattr(proxy_tensor, "proxy_call")
        assert not hasattr(proxy_tensor, "_extract_tensor_metadata")
        assert not hasattr(FakeTensorMode, "_cached_dispatch_impl")
    with pytest.raises(AttributeError):
        RepeatedOperations(proxy_tensor)


def test_memory_formats_are_left_out_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is the same as with them, and torch afterwards as before, also after a failure."""
    found, asked = proxy_tensor._extract_tensor_metadata, []
    monkeypatch.setattr(proxy_tensor, "_extract_tensor_metadata", lambda x: asked.append(x) or found(x))
    kept = proxy_tensor._extract_tensor_metadata
    model = Tupled(lambda m, x: m.a(x).reshape(x.shape[0], -1).T.contiguous().T, a=nn.Linear(3, 3)).eval()
    graph, _ = export_graph(model, (torch.ones(2, 3),), dynamic=True)
    with pytest.raises(Exception, match="data-dependent"):
        export_graph(Tupled(lambda m, x: x if x.sum() > 0 else -x), (torch.ones(2, 3),), dynamic=True)
    assert asked == []
    assert proxy_tensor._extract_tensor_metadata is kept
    monkeypatch.delitem(SHORTCUTS, "memory formats")
    assert export_graph(model, (torch.ones(2, 3),), dynamic=True)[0] == graph
    assert asked


def test_shapes_inside_operations_are_not_remembered_which_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated layers are still found; the graph is the same, and torch afterwards as before, also after a failure."""
    found = FakeTensorMode._make_cache_entry
    made: list[str] = []

    def counted(*arguments: Any) -> Any:
        made.append(str(arguments[3]))
        return found(*arguments)

    monkeypatch.setattr(FakeTensorMode, "_make_cache_entry", counted)
    kept = FakeTensorMode._cached_dispatch_impl
    model = Tupled(lambda m, x: (m.a(m.b(m.a(m.b(x)))),), a=nn.Linear(3, 3), b=nn.LayerNorm(3)).eval()
    graph, _ = export_graph(model, (torch.ones(2, 3),), dynamic=True)
    assert made
    assert len(made) == len(set(made))  # once each, although every layer comes twice
    with pytest.raises(Exception, match="data-dependent"):
        export_graph(Tupled(lambda m, x: x if x.sum() > 0 else -x), (torch.ones(2, 3),), dynamic=True)
    assert FakeTensorMode._cached_dispatch_impl is kept
    few = len(made)
    monkeypatch.delitem(SHORTCUTS, "nested caching")
    assert export_graph(model, (torch.ones(2, 3),), dynamic=True)[0] == graph
    assert len(made) > 2 * few


def test_no_code_is_generated_and_no_size_that_depends_on_data_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing needs them; torch is afterwards as before, also after a failure."""
    written: list[Any] = []
    recompile = GraphModule.recompile
    monkeypatch.setattr(GraphModule, "recompile", lambda module: (written.append(module), recompile(module))[1])
    looked: list[Any] = []
    replace = _trace._replace_unbacked_bindings
    monkeypatch.setattr(
        _trace, "_replace_unbacked_bindings", lambda module: (looked.append(module), replace(module))[1]
    )
    kept = exported_program._create_graph_module_for_export, _trace._replace_unbacked_bindings
    graph, _ = export_graph(Tupled(a=nn.Linear(3, 3)), (torch.ones(2, 3),), dynamic=True)
    assert not any(node.target == "aten.linear.default" for module in written for node in module.graph.nodes)
    assert not looked
    chosen = Tupled(lambda m, x: torch.masked_select(x, x > 0).sum())
    assert "aten.masked_select.default" in [n.op for n in export_graph(chosen, (torch.ones(2, 3),), dynamic=True)[0]]
    assert looked
    with pytest.raises(Exception, match="data-dependent"):
        export_graph(Tupled(lambda m, x: x if x.sum() > 0 else -x), (torch.ones(2, 3),), dynamic=True)
    assert kept == (exported_program._create_graph_module_for_export, _trace._replace_unbacked_bindings)
    for part in ("generated code", "code of modules", "unknown sizes"):
        monkeypatch.delitem(SHORTCUTS, part)
    assert graph == export_graph(Tupled(a=nn.Linear(3, 3)), (torch.ones(2, 3),), dynamic=True)[0]
