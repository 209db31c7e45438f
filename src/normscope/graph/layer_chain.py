"""A front end for chains of torch's own layers: two runs tell the graph, and torch's compiler need not be loaded.

The layers of ``torch.nn`` do the same on all numbers, and in a :class:`~torch.nn.Sequential` nothing happens between
them. So two recorded runs, on two and on three samples, show what happens on any number of samples: what is equal in
both does not depend on it. Where a layer made something that does (a state of zeros for each sample, a view by the
number of samples), ``torch.export`` is asked instead.
"""

import builtins
import keyword
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import CaptureError
from normscope.graph.export import argument, describe, live_nodes, out_of_place
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recorder import Recorder, Slot, Step, recorded

#: Entries of all weights up to which running a model twice is quicker than exporting it.
SMALL = 2**20


def is_layer_chain(model: nn.Module) -> bool:
    """Return whether a model is a few layers of ``torch.nn``, one after another, and nothing else that runs.

    Large ones are left to ``torch.export``, which does not compute, and so are those that share layers or weights.

    >>> is_layer_chain(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.LayerNorm(3), nn.ReLU())))
    True
    >>> is_layer_chain(nn.TransformerEncoderLayer(4, 2))
    False
    """
    if any(hooks for name, hooks in vars(nn.modules.module).items() if name.startswith("_global_")):
        return False
    modules, weights = list(model.modules()), list(model.parameters())
    shares = len(modules) + len(weights) < sum(
        sum(1 for _ in every(remove_duplicate=False)) for every in (model.named_modules, model.named_parameters)
    )
    small = sum(weight.numel() for weight in weights) <= SMALL
    plain = all(type(tensor) in (nn.Parameter, Tensor) for tensor in (*weights, *model.buffers()))
    return small and plain and not shares and all(_is_chain_or_layer(module) for module in modules)


def _is_chain_or_layer(module: nn.Module) -> bool:
    kind, own = type(module), vars(module)
    hooks = module._forward_hooks or module._forward_pre_hooks
    if hooks or "forward" in own or own.get("_compiled_call_impl") or kind.__call__ is not nn.Module.__call__:
        return False
    if issubclass(kind, nn.Sequential):
        return kind.forward is nn.Sequential.forward and kind.__iter__ is nn.Sequential.__iter__
    return kind.__module__.startswith("torch.nn.modules.") and not any(module.children())


def layer_chain_graph(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Graph, dict[str, Tensor]]:
    """Capture a chain of torch's layers, with a free batch size, by recording it on two and on three samples.

    Args:
        model: the model (:func:`is_layer_chain`), or a module that does nothing but call it.
        inputs: example tensors with two samples or more along axis 0.

    Raises:
        CaptureError: if what is done depends on the number of samples, or an operation is none of the plain ones.

    >>> graph, _ = layer_chain_graph(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (torch.zeros(2, 2, 3),))
    >>> [(node.op, node.shape) for node in graph.calls()]
    [('aten.flatten.using_ints', (-1, 6)), ('aten.linear.default', (-1, 3))]
    """
    with torch.backends.cudnn.flags(enabled=False):  # as in an export: some operations are given the flag
        two, outputs, _ = recorded(model, [t[[0, 1]] for t in inputs])
        three, same_outputs, _ = recorded(model, [t[[0, 1, 0]] for t in inputs])
    if two.left is not None or two.branched or outputs != same_outputs:
        raise CaptureError("A number computed from the input reaches Python.")
    if any(kind == "constant" for kind, *_ in two.sources.values()) or two.steps != three.steps:
        raise CaptureError("What a layer does depends on the number of samples.")
    return _Translation(two, three).graph(outputs)


class _Translation:
    """Turns two records of one chain into nodes."""

    def __init__(self, two: Recorder, three: Recorder) -> None:
        self.two, self.three = two, three
        self.nodes: list[Node] = []
        self.names: dict[int, str] = {}  # of the node that a slot holds the value of now
        self.used: Counter[str] = Counter()

    def graph(self, outputs: Sequence[int]) -> tuple[Graph, dict[str, Tensor]]:
        """Return the graph, and its tensors by name."""
        order = sorted(self.two.sources.items(), key=lambda item: item[1][0] == "input")
        for slot, (kind, name, tensor) in order:
            moving = kind == "input"
            label = name if moving else f"{kind[0]}_{name.replace('.', '_')}"
            facts = self._described(slot) if moving else describe(tensor)
            self._add(Node(label, kind, target="" if moving else name, **facts), slot)
        for step in self.two.steps:
            self._call(step)
        self.nodes.append(Node("output", "output", tuple(Ref(self.names[slot]) for slot in outputs)))
        keep = live_nodes(self.nodes)
        nodes = tuple(node for node in self.nodes if node.name in keep)
        tensors = {name: tensor for kind, name, tensor in self.two.sources.values() if kind != "input"}
        return Graph(nodes, "recording"), tensors

    def _call(self, step: Step) -> None:
        """Add the node of one operation."""
        plain = out_of_place(step.function)
        written = step.function._schema.is_mutable
        if len(step.results) != 1 or step.results[0] is None or (written and plain is None):
            raise CaptureError(f"{step.function} is not a plain operation.")
        slot = step.results[0].index
        args = tuple(self._value(a) for a in step.args)
        kwargs = tuple(sorted((key, self._value(value)) for key, value in step.kwargs.items()))
        if written:
            self._forget(slot)
        base = step.function._schema.name.partition("::")[2]
        if not self.used[base] and (base in vars(builtins) or keyword.iskeyword(base)):
            self.used[base] = 1  # the names that torch.export gives
        name = f"{base}_{self.used[base]}" if self.used[base] else base
        self.used[base] += 1
        owner, kind = step.owner
        node = Node(
            name, str(plain or step.function), args, kwargs, owner=owner, owner_type=kind, **self._described(slot)
        )
        self._add(node, slot)

    def _forget(self, slot: int) -> None:
        """Drop what shares memory with a value that is written to: nothing in a chain reads it again."""
        here = self.two.memory(slot)
        if slot in self.two.sources and self.two.sources[slot][0] != "input":
            raise CaptureError("A layer writes to its weights.")
        for other in [other for other in self.names if self.two.memory(other) == here]:
            del self.names[other]

    def _add(self, node: Node, slot: int) -> None:
        self.nodes.append(node)
        self.names[slot] = node.name

    def _value(self, value: Any) -> Any:
        """Translate an argument of an operation."""
        if isinstance(value, Slot):
            if value.index not in self.names:
                raise CaptureError("A value is read after it was overwritten.")
            return Ref(self.names[value.index])
        if isinstance(value, list | tuple):
            return tuple(self._value(item) for item in value)
        return argument(value)

    def _described(self, slot: int) -> dict[str, Any]:
        """Return shape and dtype of a value; a size that differs between the two runs is free: -1."""
        two, three = self.two.tensor(slot), self.three.tensor(slot)
        sizes = tuple(a if a == b else -1 for a, b in zip(two.shape, three.shape, strict=True))
        return {**describe(two), "shape": sizes}
