"""A kept run: the values that a run on the same input gives again, and nothing for any other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from normscope.analysis.context import Prepared, prepare
from normscope.graph.capture import Captured
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import run
from normscope.graph.kept_run import KeptRun
from normscope.graph.modes import with_batch_statistics
from normscope.operators.program import build_program
from normscope.operators.survey import Survey, activation_inputs, survey


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.LayerNorm(8)
    ).eval()


def _prepared(samples: int = 3) -> tuple[Prepared, torch.Tensor]:
    data = torch.randn(samples, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    return prepare(_network(), data), data


def test_it_knows_what_the_graph_gives() -> None:
    """Every value is that of a run, and all nodes that read weights are among them."""
    prepared, data = _prepared()
    captured = prepared.captured
    known = captured.known_at([data[:1]])
    truth: dict[str, torch.Tensor] = {}
    run(captured.graph, captured.tensors, [data[:1]], lambda node, value, _: truth.update({node.name: value}))
    assert {captured.graph[name].op.split(".")[1] for name in known} == {"conv2d", "batch_norm", "linear", "layer_norm"}
    assert all(torch.equal(value, truth[name]) for name, value in known.items())


def test_another_input_or_graph_is_unknown() -> None:
    """One number that differs, another precision, another mode: nothing is known."""
    prepared, data = _prepared()
    captured, other = prepared.captured, data[:1].clone()
    other[0, 0, 0, 0] += 1e-6
    assert captured.known_at([data[:1].clone()])
    for inputs in ([other], [data[:1].double()], [data], [], [data[:1], data[:1]], [None]):
        assert not captured.known_at(inputs)
    assert not replace(captured, graph=with_batch_statistics(captured.graph)).known_at([data[:1]])
    assert not replace(captured, tensors=dict(captured.tensors)).known_at([data[:1]])


def test_no_more_than_allowed_is_kept() -> None:
    """Of a network with large values only the first ones stay in memory."""
    prepared, data = _prepared()
    graph, tensors = prepared.captured.graph, prepared.captured.tensors
    kept = KeptRun(graph, [data[:1]], most=150)
    run(graph, tensors, [data[:1]], kept.visit)
    assert [v.numel() for v in kept.at([data[:1]]).values()] == [144]
    kept.clear()
    assert not kept.at([data[:1]])


def test_a_walk_and_a_survey_find_the_same_with_and_without() -> None:
    """Statistics are bit-identical, and the program has the same operations."""
    prepared, data = _prepared()
    captured, anew = prepared.captured, replace(prepared.captured)
    assert captured.known_at([data[:1]])
    assert not anew.known_at([data[:1]])
    program = build_program(anew.graph, anew.tensors, anew.at_batch(1))
    assert [e.op.kind for e in program.layers if e.op] == [e.op.kind for e in prepared.program.layers if e.op]
    assert [s.kind for s in program.sites] == [s.kind for s in prepared.program.sites]

    def seen(made: Captured) -> Survey:
        return survey(made, program, [[data[:1]]], activations=activation_inputs(captured, program))

    a, b = seen(captured), seen(anew)
    assert a.samples == b.samples == 1
    floors = a.floors(), b.floors()
    assert list(floors[0]) == list(floors[1])
    assert all(torch.equal(floors[0][name], floors[1][name]) for name in floors[0])
    assert floors[0]
    for x, y in ((a.before_normalizers, b.before_normalizers), (a.before_activations, b.before_activations)):
        assert list(x) == list(y)
        for name in x:
            assert torch.equal(x[name].moments.mean, y[name].moments.mean)
            assert torch.equal(x[name].moments.squares, y[name].moments.squares)
            assert x[name].moments.count == y[name].moments.count
            assert x[name].largest_norm == y[name].largest_norm
            assert x[name].groups == y[name].groups


def test_a_model_that_takes_pairs_only_is_run_on_pairs() -> None:
    """What was run on two samples is not taken for one."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 1:
                raise ValueError("two at least")
            return self.layer(x)

    data = torch.randn(2, 4)
    captured = prepare(Pairs(), ModelInputs((data,))).captured
    assert not captured.known_at([data[:1]])
    assert captured.known_at([data])
