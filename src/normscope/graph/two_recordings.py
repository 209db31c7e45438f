"""The front end for small models: two recorded runs give the graph, without loading torch's compiler.

A model is run on two and on three samples. As long as its Python code sees neither sizes nor numbers computed from the
input, it does the same on every input, whatever the number of samples. So what both records share holds for any batch,
and a size that differs between them is that of the batch. The layers of ``torch.nn`` may read sizes: everything they
do with them shows in the records. A model that reads sizes itself, or that behaves differently for three samples than
for two, is left to ``torch.export``.
"""

import builtins
import keyword
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import CaptureError
from normscope.graph.export import argument, describe, live_nodes, out_of_place
from normscope.graph.guard import address
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recorder import Recorder, Slot, Step, Watch, recorded

#: Entries of all weights and of one sample up to which running a model twice is quicker than exporting it.
SMALL = 2**20
#: Modules of torch that may read sizes.
_LAYERS = ("torch.nn.modules.", "torch.nn.functional", "torch.functional")
#: What Python may ask a tensor for: the answer is the same for every number of samples.
_SAME_FOR_ALL = frozenset((
    "dim", "ndim", "ndimension", "is_floating_point", "is_complex", "is_signed", "requires_grad", "is_leaf", "is_cuda",
    "is_cpu", "is_sparse", "is_nested", "is_meta", "is_inference", "element_size", "itemsize", "get_device",
))  # fmt: skip
_PLAIN = (Tensor, torch.dtype, torch.device, torch.layout, type(None))


class _NoSizes(Watch):
    """Stops a run as soon as the model's own code reads the size of a computed tensor."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.fixed = {address(tensor) for kind, _, tensor in recorder.sources.values() if kind != "input"}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and check what it returns and to whom."""
        found = super().__torch_function__(func, types, args, kwargs)
        if isinstance(found, _PLAIN) or (isinstance(found, list | tuple) and found and isinstance(found[0], Tensor)):
            return found
        name = getattr(func, "__name__", "")
        name = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
        reader = sys._getframe(1).f_globals.get("__name__", "")
        own = isinstance(args[0], Tensor) and address(args[0]) in self.fixed if args else False
        if name not in _SAME_FOR_ALL and not own and not reader.startswith(_LAYERS):
            self.recorder.branched = True  # the model may catch the error
            raise CaptureError(f"The model looks at the size of a tensor ({name}).")
        return found


def may_be_recorded(model: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Return whether a model is small, and each of its modules and weights has one name and is written in Python.

    >>> may_be_recorded(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), [torch.zeros(2, 2)])
    True
    """
    modules, weights = list(model.modules()), list(model.parameters())
    names = [*model.named_modules(remove_duplicate=False), *model.named_parameters(remove_duplicate=False)]
    entries = [weight.numel() for weight in weights] + [t[:1].numel() for t in inputs if t.ndim]
    plain = all(type(tensor) in (nn.Parameter, Tensor) for tensor in (*weights, *model.buffers()))
    return sum(entries) <= SMALL and plain and len(names) == len(modules) + len(weights) and not _has_scripts(modules)


def _has_scripts(modules: Sequence[nn.Module]) -> bool:
    """Return whether parts of a model are TorchScript, which Python cannot inspect."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        return True
    homes = {type(module).__module__ for module in modules}
    spaces = [vars(sys.modules[home]) for home in homes if home in sys.modules and not home.startswith("torch.")]
    return any(isinstance(value, torch.jit.ScriptFunction) for space in spaces for value in list(space.values()))


def graph_of_two_recordings(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Graph, dict[str, Tensor]]:
    """Capture a small model, with a free batch size, by recording it on two and on three samples.

    Args:
        model: the model, for which :func:`may_be_recorded`.
        inputs: example tensors with two samples or more along axis 0.

    Raises:
        CaptureError: if the model reads sizes, what it does depends on the number of samples or on numbers computed
            from the input, or an operation is not a plain one.

    >>> graph, _ = graph_of_two_recordings(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (torch.zeros(2, 2, 3),))
    >>> [(node.op, node.shape) for node in graph.calls()]
    [('aten.flatten.using_ints', (-1, 6)), ('aten.linear.default', (-1, 3))]
    """
    with torch.backends.cudnn.flags(enabled=False):  # as in an export: some operations are given the flag
        two, outputs, _ = recorded(model, [t[[0, 1]] for t in inputs], _NoSizes)
        three, same_outputs, _ = recorded(model, [t[[0, 1, 0]] for t in inputs], _NoSizes)
    if two.left is not None or two.branched or three.left is not None or three.branched:
        raise CaptureError("Sizes, or numbers computed from the input, reach Python.")
    made = any(kind == "constant" for recorder in (two, three) for kind, *_ in recorder.sources.values())
    if made or two.steps != three.steps or outputs != same_outputs:
        raise CaptureError("What the model does depends on the number of samples.")
    return _Translation(two, three).graph(outputs)


class _Translation:
    """Builds the graph from two records of the same model."""

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
        if torch.Tag.inplace_view in step.function.tags:  # changes the shape of a tensor that is there already
            plain = None
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
        """Forget all that shares memory with a value that is written to; reading it again is an error."""
        here = self.two.memory(slot)
        if slot in self.two.sources and self.two.sources[slot][0] != "input":
            raise CaptureError("The model writes to its weights.")
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
