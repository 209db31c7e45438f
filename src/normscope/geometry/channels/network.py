"""The labels of one network's tensors and parameters, and the registry of rules that propagate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.channels.labels import FIXED, NOTHING, ChannelLabels, ChannelWeight, EntrywiseParameter
from normscope.geometry.function import ModelFunction
from normscope.operators.registry import Call


@dataclass(frozen=True, eq=False)
class TensorLabels:
    """The labels of a tensor."""

    labels: Tensor  #: one label per entry


@dataclass(frozen=True, eq=False)
class ParameterView:
    """A view of a trainable parameter."""

    parameter: str  #: its name
    index: Tensor  #: which entry of the parameter stands where: flat positions in it
    offset: float = 0.0  #: a constant added to it, as in ``1 + gamma``


@dataclass(frozen=True, eq=False)
class NormalizedWeight(TensorLabels):
    """A weight ``g v/||v||``, one vector per output."""

    direction: ParameterView  #: v
    gain: ParameterView  #: g


#: How an operation propagates labels: its arguments are given by schema name, each tensor as :class:`TensorLabels`, as
#: :class:`ParameterView`, or itself if it is a constant.
Rule = Callable[["LabelledNetwork", Call], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class LabelledNetwork:
    """A network whose tensors and parameters carry channel labels.

    Args:
        function: the network as a function of its parameters.

    Attributes:
        labels: all labels and their equations.
        states: the labels, parameter view or constant of each node by its name.
    """

    def __init__(self, function: ModelFunction) -> None:
        self.function, self.labels = function, ChannelLabels()
        self.states: dict[str, Any] = {}
        self._entries: dict[str, Tensor] = {}
        self._products: dict[str, ChannelWeight] = {}

    def labels_of(self, state: Any) -> Any:
        """Return the labels of an argument: those of a parameter's entries, or fixed ones for a constant."""
        if isinstance(state, TensorLabels):
            return state.labels
        if isinstance(state, ParameterView):
            found = self.entries(state.parameter)
            if self.labels.offsets.setdefault(state.parameter, state.offset) != state.offset:
                self.labels.fix(found)
            whole = torch.equal(state.index, torch.arange(found.numel()).reshape(found.shape))
            return found if whole else found.reshape(-1)[state.index]
        if isinstance(state, Tensor):
            empty = (state == 0) if state.numel() > 1 else torch.zeros(state.shape, dtype=torch.bool)
            return torch.where(empty, NOTHING, FIXED)
        return torch.zeros((), dtype=torch.int64)

    def first_labels(self, call: Call) -> Tensor:
        """Return the labels of the first argument that is not a constant."""
        return self.labels_of(labelled_inputs(call)[0])

    def entries(self, parameter: str) -> Tensor:
        """Return the labels of a parameter that is used entry by entry, one per entry."""
        if parameter not in self._entries:
            shape = self.function.tensors[parameter].shape
            rows = len(shape) > 2 and shape[0] > 1  # a convolution is computed from it: one label per row
            found = self.labels.new(*(shape[:1] if rows else shape))
            found = found.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape) if rows else found
            self._entries[parameter] = found
            self.labels.entries.append(EntrywiseParameter(parameter, found))
            if parameter in self._products:  # used both ways: each entry obeys both
                self._agree(self._products[parameter])
        return self._entries[parameter]

    def product(self, raw: ParameterView, index: Tensor, inputs: Tensor, node: str, *, full: bool = True) -> Tensor:
        """Note a linear layer or convolution, and return new labels for its outputs."""
        labels = self.labels
        outputs = labels.new(index.shape[0])
        made = ChannelWeight(raw.parameter, index, outputs, inputs, node, full)
        labels.products.append(made)
        if raw.parameter in self._entries:
            self._agree(made)
        elif raw.parameter in self._products:
            self._share(self._products[raw.parameter], made)
        self._products.setdefault(raw.parameter, made)
        if not full:
            labels.forbid_mixing(outputs, inputs)
        return outputs

    def normalized_product(self, weight: NormalizedWeight, index: Tensor, inputs: Tensor, node: str) -> Tensor:
        """Note a linear layer with the weight ``g v/||v||``, and return new labels for its outputs."""
        labels = self.labels
        outputs = labels.new(index.shape[0])
        made = ChannelWeight(weight.direction.parameter, index, outputs, inputs, node, full=False)
        for other, _ in labels.weight_normalized:
            if other.parameter == made.parameter:
                self._share(other, made)
        labels.weight_normalized.append((made, weight.gain.parameter))
        gain = self.entries(weight.gain.parameter)
        labels.forbid_scaling(gain)
        labels.make_kin(gain.reshape(-1), outputs)
        labels.forbid_mixing(outputs, inputs)
        return outputs

    def _share(self, one: ChannelWeight, other: ChannelWeight) -> None:
        """Add equations between two uses of one weight: each entry has one scale, so labels differ by one constant."""
        labels = self.labels
        constant = int(labels.new(1))
        if one.index.ndim == 2 and torch.equal(one.index, other.index.mT):
            for a, b in ((one.outputs, other.inputs), (one.inputs, other.outputs)):  # tied tables
                for i, j in labels.pairs(a, b):
                    labels.equation([(i, 1.0), (j, 1.0), (constant, -1.0)])
                labels.make_kin(a, b)
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
            labels.make_kin(a, b)

    def _agree(self, product: ChannelWeight) -> None:
        """Add equations for a weight that is also used entry by entry: each entry has one scale."""
        labels = self.labels
        entry = self._entries[product.parameter].reshape(-1)[product.index]
        (_, _, outputs, _), (_, _, inputs, _) = product.terms()
        triples = torch.stack([entry, outputs, inputs], -1).reshape(-1, 3)
        for label, output, read in torch.unique(triples, dim=0).tolist():
            labels.equation([(label, 1.0), (output, -1.0), (read, 1.0)])
        labels.forbid_mixing(product.outputs, product.inputs)


def labelled_states(state: Any) -> Iterator[TensorLabels | ParameterView]:
    """Yield the labels and parameter views in nested arguments."""
    if isinstance(state, tuple | list):
        for item in state:
            yield from labelled_states(item)
    elif isinstance(state, TensorLabels | ParameterView):
        yield state


def labelled_inputs(call: Call) -> list[Any]:
    """Return every argument of an operation that is not a constant."""
    return list(labelled_states(list(call.arguments.values())))


def unknown(net: LabelledNetwork, call: Call) -> Any:
    """Fix the arguments and results of an operation without a rule: no symmetry may change them."""
    for state in labelled_inputs(call):
        net.labels.fix(net.labels_of(state))
    return _constant(call.value)


def _constant(value: Any) -> Any:
    """Return fixed labels of a result."""
    if isinstance(value, tuple | list):
        return [_constant(item) for item in value]
    return TensorLabels(torch.zeros(value.shape, dtype=torch.int64)) if isinstance(value, Tensor) else value
