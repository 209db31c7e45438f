"""The first look at a network, within seconds: its parts, looser certified bounds, attained values."""

import functools
import math
from dataclasses import replace
from typing import Any

from torch import nn

from normscope.analysis.context import (
    Prepared,
    Progress,
    Work,
    candidates,
    in_mode,
    look,
    refuse_single_values,
    walk_one,
)
from normscope.analysis.depth_curve import depth
from normscope.analysis.end_to_end import end_to_end
from normscope.analysis.facts import gathered, messages
from normscope.analysis.layers import layers, normalizers
from normscope.analysis.options import Options
from normscope.core.depth_curve import Depth
from normscope.core.errors import STOPPED, attempt
from normscope.core.result import Result, Rows
from normscope.core.value import Kind
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.quick_lower import glance
from normscope.lipschitz.quick_norms import QuickNorms, Roughly, affordable
from normscope.lipschitz.segments import Effort

#: Samples of the data that are looked at: so many multiplications, and at most so many.
WORK, SAMPLES = 1e10, 256
#: Multiplications that norms of weights may take, and those of a forward pass; above either, less is looked at.
NORMS, HEAVY = 6e9, 1e9
#: What the bounds of a first look take for granted.
ASSUMPTION = "graph and model were compared at one sample only"
NOTE = "first look: bounds are valid but loose; " + ASSUMPTION


def first_look(
    prepared: Prepared, model: nn.Module, data: Any, limit: int | None, name: str, options: Options, say: Progress
) -> Result:
    """Return what can be told of a network within seconds.

    Norms of layers are products of those of reshaped weights, nothing is searched for, and one pair of inputs shows
    what is attained.
    """
    captured = in_mode(prepared.captured, options)
    program, coupled = prepared.program, prepared.coupled
    if captured is not prepared.captured:
        program, coupled = walk_one(captured, options)
    if coupled:
        refuse_single_values(program)
    options = replace(options, time=0.0, stacked=False, tolerance=options.tolerance or 1e-2)
    cost = forward_cost(program)
    composition = Composition
    most = affordable((t for t in captured.tensors.values() if t.ndim > 1), NORMS)
    if cost > HEAVY or most < math.inf:
        options, composition = replace(options, without_normalizers=False), Roughly
    norms = QuickNorms(Effort(1e-2, options.delta, options.seed), most)
    work = Work(captured, program, options, norms, say, coupled=coupled, composition=composition)
    work.messages.append(NOTE)
    work = replace(work, candidates=candidates(work, model, data, 1))
    if data is not None:
        say("first look: statistics of some data")
        samples = max(1, int(min(SAMPLES, WORK / max(1.0, cost))))
        seen, left_out = look(work, model, data, samples if limit is None else min(limit, samples), exact=False)
        work = replace(work, seen=seen, left_out=left_out)
    say("first look: bounds")
    rows = layers(work)
    sites = normalizers(work, rows)
    found = functools.partial(glance, captured, program, work.candidates[0], options.seed)
    whole = end_to_end(work, rows, sites, model, data, limit, search=found)
    constants = dict(whole.constants)
    for key, value in whole.constants.items():
        if value is not None and value.kind is Kind.CERTIFIED:
            constants[key] = replace(value, assumptions=(*value.assumptions, ASSUMPTION))
    if most < math.inf:  # what papers print is about norms, not about what bounds them
        constants |= {k: None for k, v in constants.items() if v is not None and v.kind is Kind.PRINTED}
    result = gathered(work, model, name, data is not None, rows, sites, constants)
    curves = attempt("the table along depth", lambda: depth(work, rows, sites, whole), Depth(), work.messages)
    return replace(result, model=result.model | {"fast": True}, depth=curves, messages=tuple(messages(work)))


def completed(result: Result, first: Result) -> Result:
    """Return a result that was stopped, with what the first look knows where nothing better was computed."""
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
