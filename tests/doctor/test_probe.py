"""What a batch shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from checking import initialized, noise
from networks import Lambda
from normscope.doctor.probe import NodeObserver, batch_statistics
from normscope.doctor.subject import examine
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run


def test_statistics_of_each_layer_by_itself() -> None:
    """Those of train mode, computed by hooks; wrong running statistics before a layer change nothing."""
    model = initialized(
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4))
    )
    model[1].running_var.fill_(1e6)
    x = noise(32, 6)
    seen = batch_statistics(examine(model, x).captured, [x])
    inputs = {}
    model[4].register_forward_pre_hook(lambda m, args: inputs.update(x=args[0].detach().double()))
    with torch.no_grad():
        model.train()(x)
    second = list(seen.values())[1]
    mean, variance = second.mean, second.variance
    assert torch.allclose(mean, inputs["x"].mean(0), atol=1e-5)
    assert torch.allclose(variance, inputs["x"].var(0, correction=0), rtol=1e-4)


def test_the_first_value_that_is_no_number() -> None:
    """Where it is made, not where it is read; a mask is none."""
    model = Lambda(lambda s, x: s.fc((x - x).reciprocal() * 0), fc=nn.Linear(3, 2))
    captured = examine(model, noise(4, 3)).captured
    assert "reciprocal" in captured.graph[_broken(captured, noise(4, 3))].op
    masked = Lambda(lambda s, x: s.fc(x.masked_fill(x > 0, -torch.inf).softmax(-1)), fc=nn.Linear(3, 2))
    captured = examine(masked, noise(4, 3)).captured
    assert _broken(captured, -noise(4, 3).abs()) == ""


def test_the_size_of_what_is_divided_by() -> None:
    """The least and the middle of all batches."""
    model = Lambda(lambda s, x: x / x.square().sum(-1, keepdim=True))
    captured = examine(model, torch.ones(4, 2)).captured
    found = NodeObserver()
    for scale in (3.0, 1.0, 2.0):
        run(captured.graph, captured.tensors, [scale * torch.ones(4, 2)], found.visit)
    assert list(found.divisors.values()) == [(2.0, 18.0)]


def _broken(captured: Captured, batch: torch.Tensor) -> str:
    """Return the first node whose value is no number."""
    found = NodeObserver()
    run(captured.graph, captured.tensors, [batch], found.visit)
    return "" if found.fault is None else found.fault.node.name


def test_logits_of_grouped_queries_are_those_of_repeated_keys() -> None:
    """Four heads of queries share two of keys."""
    q, k = noise(2, 4, 5, 8), noise(2, 2, 6, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = examine(Lambda(lambda s, q: attend(q, s.k, s.k, enable_gqa=True), k=k), q).captured
    found = NodeObserver()
    run(grouped.graph, grouped.tensors, [q], found.visit)
    logits = q @ k.repeat_interleave(2, 1).mT / 8**0.5
    assert list(found.logits.values()) == [pytest.approx(float((logits.amax(-1) - logits.median(-1).values).max()))]
