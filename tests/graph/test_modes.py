"""BatchNorm on batch statistics: the same graph, run as torch runs it in training, without moving anything."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from networks import Lambda, captured_of, points, seeded
from normscope.graph.interpreter import run
from normscope.graph.ir import Node, Ref
from normscope.graph.modes import has_batch_norm, running_statistics, with_batch_statistics


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d(4), (4,)), (nn.BatchNorm2d(4), (4, 3, 3)), (nn.BatchNorm1d(4, affine=False), (4,))],
)
def test_the_graph_does_what_training_does(norm: nn.Module, shape: tuple[int, ...]) -> None:
    """Against the module in training mode, on two batches; running statistics stay where they are."""
    model = seeded(nn.Sequential(norm, nn.ReLU()))
    captured = captured_of(model, points(5, *shape))
    graph = with_batch_statistics(captured.graph)
    before = {k: v.clone() for k, v in captured.tensors.items()}
    for seed in range(2):
        x = points(6, *shape, seed=seed)
        expected = copy.deepcopy(model).train()(x)
        assert torch.allclose(run(graph, captured.tensors, [x])[0], expected, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(captured.run([x])[0], expected)
    assert all(torch.equal(before[k], captured.tensors[k]) for k in before)


def test_a_decomposed_batch_norm_is_rewritten_too() -> None:
    """The functional form without training flag becomes the one without statistics."""
    fixed = Node(
        "y",
        "aten._native_batch_norm_legit_no_training.default",
        (Ref("x"), Ref("w"), Ref("b"), Ref("m"), Ref("v"), 0.1, 1e-5),
    )
    graph = captured_of(seeded(nn.Linear(2, 2)), points(2, 2)).graph
    from dataclasses import replace

    (node,) = with_batch_statistics(replace(graph, nodes=(fixed,))).nodes
    assert node.op == "aten._native_batch_norm_legit.no_stats"
    assert node.args == (Ref("x"), Ref("w"), Ref("b"), True, 0.1, 1e-5)
    assert running_statistics(fixed) == ("m", "v")


def test_other_normalizers_stay() -> None:
    """Only BatchNorm with running statistics is meant."""
    for norm, found in ((nn.BatchNorm1d(4), True), (nn.LayerNorm(4), False), (nn.InstanceNorm1d(4), False)):
        graph = captured_of(seeded(Lambda(lambda s, x: s.n(x), n=norm)), points(3, 4, 4)).graph
        assert has_batch_norm(graph) is found
        assert (with_batch_statistics(graph) != graph) is found


def test_statistics_are_named() -> None:
    """The buffers a BatchNorm reads, or nothing for other operations."""
    graph = captured_of(seeded(nn.BatchNorm1d(4)), points(3, 4)).graph
    (names,) = [s for s in map(running_statistics, graph) if s is not None]
    assert [graph[name].target for name in names] == ["running_mean", "running_var"]
