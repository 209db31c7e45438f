"""What the steps of one analysis share: the captured model, its program, the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.coupling import couples_samples, uses_batch_statistics
from normscope.analysis.options import Options
from normscope.core.errors import InputError
from normscope.graph.capture import Captured
from normscope.graph.inputs import iterate
from normscope.graph.modes import running_statistics, with_batch_statistics
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.search import Best, number_of_points
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import Program, build_program
from normscope.statistics.survey import Survey, activation_inputs, survey

Progress = Callable[[str], None]


@dataclass(eq=False)
class Work:
    """What the steps of one analysis share.

    Attributes:
        captured: the model.
        program: its program.
        options: how to work.
        norms: cache of segment norms.
        say: progress.
        seen: what the data showed.
        candidates: inputs at which the network may be differentiated.
        messages: what a reader must know.
        compositions: of the bounds in the result, by their names there.
        best: the input with the largest Jacobian.
    """

    captured: Captured
    program: Program
    options: Options
    norms: SegmentNorms
    say: Progress
    seen: Survey | None = None
    candidates: list[list[Tensor]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    compositions: dict[str, Composition] = field(default_factory=dict)
    best: Best | None = None


def walk(captured: Captured, options: Options, *, without: bool = False) -> Program:
    """Walk the graph at a batch of one, or at the example's batch where samples are coupled."""
    try:
        coupled = options.mode == "batch" or couples_samples(captured)
        inputs = captured.example if coupled else captured.at_batch(1)
        program = build_program(captured.graph, captured.tensors, inputs, without_normalizers=without)
        if not coupled and uses_batch_statistics(program):
            program = build_program(captured.graph, captured.tensors, captured.example, without_normalizers=without)
        return program
    except RuntimeError as error:
        raise InputError(f"the graph cannot be run on this input: {error}") from error


def frozen(captured: Captured) -> Captured:
    """Return the model with every BatchNorm fixed to the statistics of the first batch of the data."""
    graph = with_batch_statistics(captured.graph)
    program = build_program(graph, captured.tensors, captured.example)
    moving = Captured(graph, captured.tensors, captured.example, captured.input_names)
    seen = survey(moving, program, [captured.example], activations={})
    tensors = dict(captured.tensors)
    for node in captured.graph:
        statistics = running_statistics(node)
        found = seen.before_normalizers.get(node.name)
        if statistics is not None and found is not None:
            for name, value in zip(statistics, (found.moments.mean, found.moments.variance), strict=True):
                target = captured.graph[name].target
                tensors[target] = value.to(tensors[target])
    return Captured(captured.graph, tensors, captured.example, captured.input_names)


def look(work: Work, model: nn.Module, data: Any, limit: int | None) -> Survey:
    """Run over the data once."""
    activations = activation_inputs(work.captured, work.program)
    found = survey(
        work.captured,
        work.program,
        batches(work.captured, model, data, limit),
        activations=activations,
        progress=lambda n: work.say(f"statistics of the data: {n} samples"),
    )
    if found.samples == 0:
        raise InputError("the data is empty: at least one sample is needed (or leave the data out)")
    # In exact arithmetic a sample may lie below the floor its own rounding gave: what is differentiated must not.
    some = work.candidates[: number_of_points(work.program, work.options.points)]
    found.include(survey(work.captured, work.program, some, activations={}, dtype=torch.float64))
    return found


def candidates(work: Work, model: nn.Module, data: Any, limit: int | None) -> list[list[Tensor]]:
    """Return inputs at which the network may be differentiated: of the data if there is any, else the example."""
    coupled = work.program.blocks and work.program.blocks[0].shape[:1] != (1,)
    if data is None or coupled:
        return [work.captured.example if coupled else work.captured.at_batch(1)]
    size = int(work.captured.graph.batch) if work.captured.graph.batch != "dynamic" else 1
    inputs: list[list[Tensor]] = []
    for batch in batches(work.captured, model, data, 64 if limit is None else min(limit, 64)):
        inputs += [[t[i : i + size] if t.ndim else t for t in batch] for i in range(0, batch[0].shape[0], size)]
        if len(inputs) >= 64:
            break
    return inputs


def batches(captured: Captured, model: nn.Module, data: Any, limit: int | None) -> Iterable[list[Tensor]]:
    """Yield the tensor inputs of each batch, cut to the graph's batch size if it is fixed."""
    left = math.inf if limit is None else limit
    reference = next(iter(captured.tensors.values()), torch.zeros(0))
    for inputs in iterate(data, model):
        tensors = [v.to(reference.device) for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, Tensor)]
        size = tensors[0].shape[0] if tensors and tensors[0].ndim else 1
        if captured.graph.batch == "dynamic":
            take = int(min(size, left))
            if take:
                yield [t[:take] if t.ndim else t for t in tensors]
            left -= take
        else:
            step = int(captured.graph.batch) or size
            for start in range(0, size - step + 1, step):
                if left <= 0:
                    return
                yield [t[start : start + step] if t.ndim else t for t in tensors]
                left -= step
        if left <= 0:
            return
