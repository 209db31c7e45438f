"""The first look at a network, within seconds: what it is made of, certified bounds, only looser, attained values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from normscope.analysis.context import (
    Progress,
    Work,
    candidates,
    captured_on,
    in_mode,
    look,
    refuse_single_values,
    walk_coupled,
)
from normscope.analysis.depth_curve import depth
from normscope.analysis.end_to_end import end_to_end
from normscope.analysis.facts import coverage, effect, input_facts, messages, model_facts, statistics
from normscope.analysis.layers import layers, normalizers
from normscope.analysis.options import Options
from normscope.core.depth_curve import Depth
from normscope.core.errors import STOPPED, InputError, attempt
from normscope.core.result import Result, Rows
from normscope.core.value import Kind, Value
from normscope.graph.capture import Captured
from normscope.graph.module_tree import fold
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.glance import glance
from normscope.lipschitz.quick import QuickNorms
from normscope.lipschitz.segments import Effort
from normscope.operators.program import Program

#: Samples of the data that are looked at: so many multiplications, and at most so many.
WORK, SAMPLES = 1e10, 256
#: What the bounds of a first look take for granted.
ASSUMPTION = "graph and model were compared at the example only"
NOTE = "first look: bounds hold and are loose; " + ASSUMPTION


def first_look(
    model: nn.Module,
    data: Any,
    input_shape: tuple[int, ...] | None,
    device: str | torch.device | None,
    limit: int | None,
    name: str,
    options: Options,
    say: Progress,
    captured: Captured | None = None,
) -> Result:
    """Return what can be told of a network within seconds.

    Norms of layers are products of those of reshaped weights, nothing is searched for, and one pair of inputs shows
    what is attained. Arguments are those of :func:`normscope.analyze`.
    """
    say("first look: capturing the graph")
    if captured is None:
        captured = captured_on(model, data, input_shape, device, limit, first_look=True)
    captured = in_mode(captured, options)
    program, coupled = _walked(captured, options)
    options = replace(options, time=0.0, stacked=False, tolerance=options.tolerance or 1e-2)
    work = Work(captured, program, options, QuickNorms(Effort(1e-2, options.delta, options.seed)), say, coupled=coupled)
    work.messages.append(NOTE)
    work = replace(work, candidates=candidates(work, model, data, 1))
    if data is not None:
        say("first look: statistics of some data")
        most = max(2, int(min(SAMPLES, WORK / max(1.0, forward_cost(program)))))
        seen, left_out = look(work, model, data, most if limit is None else min(limit, most))
        work = replace(work, seen=seen, left_out=left_out)
    say("first look: bounds")
    rows = layers(work)
    sites = normalizers(work, rows)
    whole = end_to_end(work, rows, sites, model, data, limit, search=_glance)
    constants = {key: _assuming(value) for key, value in whole.constants.items()}
    told = work.messages
    return Result(
        model=model_facts(captured, model, name, options) | {"fast": True},
        input=input_facts(work, data is not None),
        coverage=coverage(program, captured),
        normalizers=Rows(sites),
        layers=Rows(rows),
        end_to_end=constants,
        effect=attempt("what normalizers change", lambda: effect(sites, rows, constants), {}, told),
        statistics=attempt("the statistics of the data", lambda: statistics(work), {}, told),
        blocks=attempt("the tree of modules", lambda: tuple(b.to_dict() for b in fold(captured.graph)), (), told),
        depth=attempt("the table along depth", lambda: depth(work, rows, sites, whole), Depth(), told),
        messages=tuple(messages(work)),
    )


def _walked(captured: Captured, options: Options) -> tuple[Program, str]:
    """Return the program of one sample; of the whole example where only that can be run."""
    if options.mode != "batch":
        try:
            return walk_coupled(captured, options, coupled="")
        except InputError:  # batch statistics in evaluation
            pass
    found = walk_coupled(captured, options, coupled="the batch")
    refuse_single_values(found[0])
    return found


def _glance(work: Work) -> Any:
    """Return what one pair attains."""
    return glance(work.captured, work.program, work.candidates[0], work.options.seed)


def _assuming(value: Value | None) -> Value | None:
    """Return a bound with what it takes for granted."""
    if value is None or value.kind is not Kind.CERTIFIED:
        return value
    return replace(value, assumptions=(*value.assumptions, ASSUMPTION))


def completed(result: Result, first: Result) -> Result:
    """Return a result that was stopped, with what the first look knows where nothing better was computed.

    Args:
        result: it has :data:`~normscope.core.errors.STOPPED` among its messages.
        first: the first look at the same network.
    """
    rows = {row.name: row for row in first.layers}
    layers = Rows(rows.get(x.name, x) if x.upper.log == math.inf else x for x in result.layers)
    constants = {
        key: first.end_to_end.get(key) if value is None or value.log == math.inf else value
        for key, value in result.end_to_end.items()
    }
    same = constants["global"] is first.end_to_end.get("global")
    return replace(
        result,
        layers=layers,
        end_to_end=constants,
        effect=first.effect if same else result.effect,
        depth=first.depth if same else result.depth,
        messages=tuple(dict.fromkeys((*result.messages, *((NOTE,) if same else ()), STOPPED))),
    )
