"""Label every channel of a network: run it once, and apply the rule of each operation to the labels."""

from typing import Any

import torch

from normscope.geometry.channels import normalizer_rules, rules  # noqa: F401  (both register their rules)
from normscope.geometry.channels.labels import unique
from normscope.geometry.channels.network import RULES, LabelledNetwork, ParameterView, labelled_states, unknown
from normscope.geometry.function import ModelFunction
from normscope.graph.interpreter import filled, run
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.registry import Call, bind


def label_channels(function: ModelFunction) -> LabelledNetwork:
    """Return a network with the labels of all its channels and the equations between their scales.

    >>> from normscope.geometry.function import function_of
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> net = label_channels(function_of(capture(model, ModelInputs((torch.randn(5, 3),)))))
    >>> len(net.labels.solve()[1])  # one rescaling for each hidden unit
    4
    """
    net = LabelledNetwork(function)

    def visit(node: Node, value: Any, values: Any) -> None:
        target = function.canonical(node.target) if node.target else ""
        if node.op == "parameter" and target in function.names:
            net.states[node.name] = ParameterView(target, torch.arange(value.numel()).reshape(value.shape))
        elif not any(labelled_states([net.states.get(name) for name in node.inputs()])):
            net.states[node.name] = value  # a constant or an input, which no symmetry changes
        else:
            net.states[node.name] = _propagated(net, node, value)

    with torch.no_grad():
        run(function.graph, dict(function.tensors), function.inputs, visit, dtype=torch.float64)
    for ref in function.graph.nodes[-1].args:
        found = net.labels_of(net.states[ref.name])
        net.labels.outputs.update(unique(found))
        net.labels.fix(found)
    return net


def _propagated(net: LabelledNetwork, node: Node, value: Any) -> Any:
    """Return the labels of the result of an operation."""
    if node.op == "getitem":
        return net.states[node.args[0].name][node.args[1]]
    kwargs = {key: filled(item, net.states) for key, item in node.kwargs}
    call = Call(node, bind(node.op, filled(node.args, net.states), kwargs), value)
    return RULES.get(name_of(node).removesuffix("_"), unknown)(net, call)
