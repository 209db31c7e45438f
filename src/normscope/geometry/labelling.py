"""Give every channel of a network a label, operation by operation; layout operations run on the labels themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.function import Function
from normscope.geometry.labels import FIXED, NOTHING, Entry, Labels, Product, unique
from normscope.graph.interpreter import literals, resolve, run
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.registry import bind


@dataclass(frozen=True, eq=False)
class Raw:
    """A view of a trainable parameter: which entry of it stands where."""

    parameter: str  #: its name
    index: Tensor  #: flat positions in the parameter
    offset: float = 0.0  #: a number that is added to it: some scales are stored as their distance from one


@dataclass(frozen=True, eq=False)
class Step:
    """One operation as a rule sees it."""

    node: Node  #: the graph node
    #: by schema name; tensors are label tensors, :class:`Raw` views, or plain values where nothing acts
    arguments: dict[str, Any]
    value: Any  #: what the operation returns

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the (first) result."""
        first = self.value[0] if isinstance(self.value, tuple | list) else self.value
        return first.shape


Rule = Callable[["Labelling", Step], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Labelling:
    """One walk over a function, whose result is :attr:`labels`."""

    def __init__(self, function: Function) -> None:
        import normscope.geometry.label_norms
        import normscope.geometry.label_rules  # noqa: F401  (both register their rules)

        self.function, self.labels = function, Labels()
        self.states: dict[str, Any] = {}
        self._entries: dict[str, Tensor] = {}
        self._products: dict[str, Product] = {}
        self.trainable = set(function.names)

    def run(self) -> Labels:
        """Walk the graph and return what was found."""
        tensors = dict(self.function.tensors)
        with torch.no_grad():
            run(self.function.graph, tensors, self.function.inputs, self._visit, dtype=torch.float64)
        output = self.function.graph.nodes[-1]
        for ref in output.args:
            found = self.of(self.states[ref.name])
            self.labels.outputs.update(unique(found))
            self.labels.fix(found)
        return self.labels

    def _visit(self, node: Node, value: Any, values: Any) -> None:
        """Label what a node gives."""
        target = self.function.canonical(node.target) if node.target else ""
        if node.op == "parameter" and target in self.trainable:
            self.states[node.name] = Raw(target, torch.arange(value.numel()).reshape(value.shape))
        elif not any(_labelled([self.states.get(name) for name in node.inputs()])):
            self.states[node.name] = value  # a constant, or the input: nothing acts on it
        else:
            self.states[node.name] = self._call(node, value)

    def _call(self, node: Node, value: Any) -> Any:
        """Return the labels of what an operation gives."""
        if node.op == "getitem":
            return self.states[node.args[0].name][node.args[1]]
        args = _filled(node.args, self.states)
        kwargs = {key: _filled(item, self.states) for key, item in node.kwargs}
        step = Step(node, bind(node.op, args, kwargs), value)
        return RULES.get(name_of(node).removesuffix("_"), unknown)(self, step)

    def of(self, state: Any) -> Any:
        """Return the labels of a state: those of a parameter's entries, or fixed ones for a constant."""
        if isinstance(state, Label):
            return state.labels
        if isinstance(state, Raw):
            found = self.entries(state.parameter)
            if self.labels.offsets.setdefault(state.parameter, state.offset) != state.offset:
                self.labels.fix(found)
            whole = state.index.shape == found.shape and int(state.index.reshape(-1)[-1]) == found.numel() - 1
            return found if whole else found.reshape(-1)[state.index]
        if isinstance(state, Tensor):
            empty = (state == 0) if state.numel() > 1 else torch.zeros(state.shape, dtype=torch.bool)
            return torch.where(empty, NOTHING, FIXED)
        return torch.zeros((), dtype=torch.int64)

    def entries(self, parameter: str) -> Tensor:
        """Return a label for each entry of a parameter."""
        if parameter not in self._entries:
            shape = self.function.tensors[parameter].shape
            rows = len(shape) > 2 and shape[0] > 1  # of a convolution that is computed from it: one label per row
            found = self.labels.fresh(*(shape[:1] if rows else shape))
            found = found.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape) if rows else found
            self._entries[parameter] = found
            self.labels.entries.append(Entry(parameter, found))
            if parameter in self._products:  # used both ways: each entry obeys both
                self._agree(self._products[parameter])
        return self._entries[parameter]

    def product(self, raw: Raw, index: Tensor, inputs: Tensor, node: str, *, full: bool = True) -> Tensor:
        """Return the labels of what a weight gives: new ones, the weight's rows and columns following them."""
        labels = self.labels
        outputs = labels.fresh(index.shape[0])
        made = Product(raw.parameter, index, outputs, inputs, node, full)
        labels.products.append(made)
        if raw.parameter in self._entries:
            self._agree(made)
        elif raw.parameter in self._products:
            self._share(self._products[raw.parameter], made)
        self._products.setdefault(raw.parameter, made)
        if not full:
            labels.bend(outputs)
            labels.bend(inputs)
        return outputs

    def lifted(self, weight: Normed, index: Tensor, inputs: Tensor, node: str) -> Tensor:
        """Return the labels of what a weight ``g v/||v||`` gives, as :meth:`product` does for v itself; g follows."""
        labels = self.labels
        outputs = labels.fresh(index.shape[0])
        made = Product(weight.direction.parameter, index, outputs, inputs, node, full=False)
        for other, _ in labels.lifted:
            if other.parameter == made.parameter:
                self._share(other, made)
        labels.lifted.append((made, weight.gain.parameter))
        gain = self.entries(weight.gain.parameter)
        labels.stop(gain)
        labels.relate(gain.reshape(-1), outputs)
        labels.bend(outputs)
        labels.bend(inputs)
        return outputs

    def _share(self, one: Product, other: Product) -> None:
        """Say that two uses of one weight ask the same of each entry: outputs and inputs differ by one constant."""
        labels = self.labels
        constant = int(labels.fresh(1))
        if one.index.ndim == 2 and torch.equal(one.index, other.index.mT):
            for a, b in ((one.outputs, other.inputs), (one.inputs, other.outputs)):  # tied tables
                for i, j in labels.pairs(a, b):
                    labels.equation([(i, 1.0), (j, 1.0), (constant, -1.0)])
                labels.relate(a, b)
            return
        if not torch.equal(one.index, other.index):
            if bool(torch.isin(one.index, other.index).any()):
                self.entries(one.parameter)
                self._agree(one)
                self._agree(other)
            return
        for a, b in ((one.outputs, other.outputs), (one.inputs, other.inputs)):
            for i, j in labels.pairs(a, b):
                labels.equation([(i, 1.0), (j, -1.0), (constant, 1.0)])
        labels.relate(one.outputs, other.outputs)
        labels.relate(one.inputs, other.inputs)

    def _agree(self, product: Product) -> None:
        """Say that a weight used entry by entry and as a product has one scale for each entry."""
        labels = self.labels
        entry = self._entries[product.parameter].reshape(-1)[product.index]
        (_, _, outputs, _), (_, _, inputs, _) = product.terms()
        triples = torch.stack([entry, outputs, inputs], -1).reshape(-1, 3)
        for label, output, read in torch.unique(triples, dim=0).tolist():
            labels.equation([(label, 1.0), (output, -1.0), (read, 1.0)])
        labels.bend(product.outputs)
        labels.bend(product.inputs)


@dataclass(frozen=True, eq=False)
class Label:
    """The labels of a tensor, one per entry."""

    labels: Tensor


@dataclass(frozen=True, eq=False)
class Normed(Label):
    """A weight ``g v/||v||``, one vector per output."""

    direction: Raw  #: v
    gain: Raw  #: g


def _labelled(state: Any) -> Iterator[Label | Raw]:
    """Yield the labels and parameters in a state."""
    if isinstance(state, tuple | list):
        for item in state:
            yield from _labelled(item)
    elif isinstance(state, Label | Raw):
        yield state


def _filled(tree: Any, states: dict[str, Any]) -> Any:
    """Return an argument with the states of the nodes it refers to."""
    if isinstance(tree, Ref):
        return states[tree.name]
    if isinstance(tree, tuple | list):
        return [_filled(item, states) for item in tree]
    return tree


def called(op: str, arguments: Mapping[str, Any]) -> Any:
    """Return what an operation gives for arguments by name."""
    function = resolve(op)
    schema = function._schema.arguments  # type: ignore[attr-defined]
    positional = [arguments[a.name] for a in schema if not a.kwarg_only]
    return function(*literals(positional), **{a.name: literals(arguments[a.name]) for a in schema if a.kwarg_only})


def labelled_inputs(step: Step) -> list[Any]:
    """Return every argument of an operation that holds labels or parameters."""
    return list(_labelled(list(step.arguments.values())))


def unknown(walk: Labelling, step: Step) -> Any:
    """Fix all that an operation without a rule reads; what it gives obeys no symmetry."""
    for state in labelled_inputs(step):
        walk.labels.fix(walk.of(state))
    return _constant(step.value)


def _constant(value: Any) -> Any:
    """Return fixed labels for a result."""
    if isinstance(value, tuple | list):
        return [_constant(item) for item in value]
    return Label(torch.zeros(value.shape, dtype=torch.int64)) if isinstance(value, Tensor) else value
