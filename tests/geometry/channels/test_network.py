"""Labels of one network: constants are fixed, zeros are free, several uses of one weight agree."""

from __future__ import annotations

import torch
from torch import nn

from normscope.geometry.channels.labels import FIXED, NOTHING
from normscope.geometry.channels.network import LabelledNetwork, ParameterView
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


def network() -> tuple[LabelledNetwork, ParameterView]:
    """Return a network without labels and its square weight."""
    model = nn.Linear(2, 2, bias=False)
    function = function_of(capture(model, ModelInputs((torch.randn(3, 2),))))
    return LabelledNetwork(function), ParameterView("weight", torch.arange(4).reshape(2, 2))


def test_constants_are_fixed_and_their_zeros_are_not() -> None:
    net, _ = network()
    assert net.labels_of(torch.tensor([1.0, 0.0])).tolist() == [FIXED, NOTHING]
    assert net.labels_of(torch.tensor(0.0)).tolist() == FIXED


def test_a_view_of_a_parameter_has_its_labels() -> None:
    net, weight = network()
    labels = net.labels_of(weight)
    turned = net.labels_of(ParameterView("weight", weight.index.mT))
    assert torch.equal(turned, labels.mT)
    assert len(labels.unique()) == 4


def test_two_uses_of_one_weight_have_one_scale_per_entry() -> None:
    net, weight = network()
    inputs = torch.zeros(1, 2, dtype=torch.int64)
    first = net.product(weight, weight.index, inputs, "one")
    second = net.product(weight, weight.index, inputs, "two")
    for solution in net.labels.solve()[1]:
        assert [solution.get(i, 0.0) for i in first.tolist()] == [solution.get(i, 0.0) for i in second.tolist()]
    assert len(net.labels.solve()[1]) == 2


def test_a_weight_used_entry_by_entry_and_as_a_weight_agrees_with_itself() -> None:
    net, weight = network()
    outputs = net.product(weight, weight.index, torch.zeros(1, 2, dtype=torch.int64), "one")
    entries = net.labels_of(weight)
    for solution in net.labels.solve()[1]:
        scales = torch.tensor([solution.get(i, 0.0) for i in outputs.tolist()])
        of_entries = torch.tensor([[solution.get(i, 0.0) for i in row] for row in entries.tolist()])
        assert torch.equal(of_entries, scales[:, None].expand(2, 2))
