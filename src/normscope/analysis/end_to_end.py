"""End to end: the constant of the whole network on every domain, printed and proved, and what is attained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.context import Work, batches, shapes_of, walk_coupled, where_fixed
from normscope.analysis.fixed_inputs import fixed_inputs
from normscope.core.attempt import attempt
from normscope.core.errors import InputError
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import ALL_INPUTS, Kind, Value
from normscope.graph.dispatch import BRANCH_NOTE
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.climb import batched_norms, limit_for
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.printed import corollary_10, corollary_11, lemma_5, theorem_9
from normscope.lipschitz.search import Search, search
from normscope.operators.nonlinear import Opaque
from normscope.operators.normalizer import acts_on_weights, couples_samples
from normscope.operators.program import Program, build_program
from normscope.operators.survey import survey

#: Normalizers for which the paper states a corollary of its own.
KINDS_PRINTED = ("batch_norm", "layer_norm")
#: Samples of a batch that is bounded as one stacked input.
STACKED = 16
#: Multiplications of a forward pass below which Jacobians are computed in float64 at the first look, too.
PRECISE = 1e6
#: Samples whose Jacobians are computed at once at that look.
BATCH = 64
#: Rounding of the logarithms themselves, added to every certified total.
LOG_ROUNDING = 1e-12


def end_to_end(
    work: Work,
    layers: list[LayerResult],
    normalizers: list[NormalizerResult],
    model: nn.Module,
    data: Any,
    limit: int | None = None,
) -> dict[str, Value | None]:
    """Return the end-to-end constants, printed and proved, on every domain."""
    mode = work.options.mode if any(couples_samples(s.kind) for s in work.program.sites) else None
    told, whole = work.messages, everywhere_of(work)
    nothing = Value(math.inf, Kind.CERTIFIED, whole, mode, "normscope F10")
    out: dict[str, Value | None] = attempt("what papers print", lambda: _printed(layers, normalizers), {}, told)
    work.say("composing the bound on all inputs")
    found = attempt("the bound on all inputs", lambda: _everywhere(work, whole, mode), (nothing, None, None), told)
    out["global"], out["global_probabilistic"], out["global_composition"] = found
    out["global_floor"] = attempt("the floor of free patterns", lambda: _floor(work, mode), None, told)
    domain: Domain | None = None
    out |= dict.fromkeys(("variance_floor", "variance_floor_probabilistic", "without_normalizers"))
    if work.seen is not None:
        work.say("composing the bound on the variance-floor domain")
        on_floor: tuple[Domain, Value, Value | None] | None
        on_floor = attempt("the bound on the variance-floor domain", lambda: _on_floor(work, mode), None, told)
        if on_floor is not None:
            domain, out["variance_floor"], out["variance_floor_probabilistic"] = on_floor
    if work.options.without_normalizers:
        out["without_normalizers"] = attempt("the bound without normalizers", lambda: _without(work), None, told)
    work.say("lower bounds")
    attained = attempt(
        "the lower bound", lambda: _search(work, domain, model, data, limit), Search(None, None, None), told
    )
    work.best = attained.best
    if attained.failure:
        told.append(f"no lower bound: the network cannot be differentiated ({attained.failure})")
    floor = out["variance_floor"]
    out["lower"] = (
        _lower(attained.everywhere, whole, mode) if floor is None else _lower(attained.on_floor, floor.domain, mode)
    )
    out["lower_everywhere"] = _lower(attained.everywhere, whole, mode)
    out["jacobian"] = _lower(attained.jacobian, "these data points" if data is not None else "random points", mode)
    stacked = attempt("the bound on a stacked batch", lambda: _stacked(work, model, data), (None, None), told)
    out["stacked_batch"], out["stacked_batch_lower"] = stacked
    return out


def _printed(layers: list[LayerResult], normalizers: list[NormalizerResult]) -> dict[str, Value | None]:
    """Return what the paper prints for the network."""
    weights = [x.upper for x in layers]
    by_kind = {k: [n.printed for n in normalizers if n.kind == k and n.printed is not None] for k in KINDS_PRINTED}
    first, second = corollary_10(weights, by_kind["batch_norm"]) if by_kind["batch_norm"] else (None, None)
    return {
        "printed": theorem_9(weights, [n.printed for n in normalizers if n.printed is not None]),
        "printed_weights": lemma_5(weights),
        "corollary_10": first,
        "corollary_10_power": second,
        "corollary_11": corollary_11(weights, by_kind["layer_norm"]) if by_kind["layer_norm"] else None,
    }


def _everywhere(work: Work, whole: str, mode: str | None) -> tuple[Value, Value | None, Value | None]:
    """Return the bound on all inputs, with probability, and by composition alone; say where it becomes infinite."""
    work.chains = _chains(work, work.program)
    composition = Composition(work.program, Domain(whole), work.norms, work.chains)
    found = _values(composition, whole, mode)
    work.compositions["global"] = composition
    work.messages += _why_infinite(composition)
    if work.chains is None or not work.chains.used:
        return *found, None
    return *found, _values(Composition(work.program, Domain(whole), work.norms), whole, mode)[0]


def everywhere_of(work: Work) -> str:
    """Return the widest domain a program speaks of.

    All inputs, unless it was recorded along one path, the batch is part of the input, the data has samples of other
    shapes too, or something (a mask) is held fixed.
    """
    name = "inputs that take the recorded branches" if BRANCH_NOTE in work.captured.graph.notes else ALL_INPUTS
    example = work.captured.example
    if work.stacked is not None:
        name = _restricted(name, f"in stacked batches of {work.stacked}")
    elif work.captured.graph.batch not in ("dynamic", "1", "0"):
        name = _restricted(name, f"in batches of {work.captured.graph.batch}")
    if work.other_shapes:
        name = _restricted(name, f"of shape {shapes_of(example)}")
    condition = work.fixed_inputs.condition(where_fixed(work))
    return _restricted(name, condition) if condition else name


def _restricted(domain: str, condition: str) -> str:
    """Return the name of a domain with one more condition.

    >>> _restricted(ALL_INPUTS, "within a ball"), _restricted("inputs within a ball", "on a line")
    ('inputs within a ball', 'inputs within a ball and on a line')
    """
    return f"inputs {condition}" if domain == ALL_INPUTS else f"{domain} and {condition}"


def _values(composition: Composition, domain: str, mode: str | None) -> tuple[Value, Value | None]:
    """Return the certified value of a composition, and the probabilistic one where it is smaller."""
    certified, probable, delta = composition.total()
    chained = composition.chains is not None and composition.chains.used
    statement = "normscope Proposition CHAIN-1" if chained else "normscope F10"
    rest = {"domain": domain, "mode": mode, "statement": statement, "assumptions": ("exact real arithmetic",)}
    value = Value(rounded_up(certified), Kind.CERTIFIED, **rest)  # type: ignore[arg-type]
    if delta == 0.0 or probable >= certified:
        return value, None
    return value, Value(rounded_up(probable), Kind.PROBABILISTIC, delta=delta, **rest)  # type: ignore[arg-type]


def _floor(work: Work, mode: str | None) -> Value | None:
    """Return what no bound can go below that lets every activation choose its slope by itself."""
    if work.chains is None or not work.chains.used or len(work.program.outputs) != 1:
        return None
    log = work.chains.floor(work.program.outputs[0][1])
    if log is None:
        return None
    return Value(log, Kind.LOWER, "activation patterns chosen freely", mode, "normscope Pattern floor")


def _chains(work: Work, program: Program, share: float = 1.0) -> Chains | None:
    """Return the chains of a program, none if no time is to be spent on them or the batch is the input."""
    if not work.options.time or work.stacked is not None:
        return None
    return Chains(program, seconds=share * work.options.time, progress=work.say)


def rounded_up(log: float) -> float:
    """Round a logarithm up by more than the composition can have lost."""
    return log if math.isinf(log) else log + LOG_ROUNDING * max(1.0, abs(log))


def _on_floor(work: Work, mode: str | None) -> tuple[Domain, Value, Value | None]:
    """Return the bound where every normalizer's spread stays above what the data showed.

    Where that is infinite (gates, attention without a normalizer) the inputs are also kept in the range of the data.
    """
    seen = work.seen
    if seen is None:
        raise InputError("the variance-floor domain needs data")
    floors = seen.floors()
    whole = everywhere_of(work)
    name = _restricted(whole, "whose normalizer stds stay above those seen in the data") if floors else whole
    domain = Domain(name, floors)
    composition = Composition(work.program, domain, work.norms, work.chains)
    value, probable = _values(composition, name, mode)
    if math.isinf(value.log) and value.log > 0:
        name = _restricted(name, "within the data's range and norms, also at the factors of products")
        domain = Domain(name, floors, tuple(seen.inputs), seen.factors)
        composition = Composition(work.program, domain, work.norms, work.chains)
        value, probable = _values(composition, name, mode)
    work.compositions["variance_floor"] = composition
    return domain, value, probable


def _without(work: Work) -> Value | None:
    """Return the bound of the same network with its normalizers of activations removed."""
    if not any(not acts_on_weights(s) for s in work.program.sites):
        return None
    work.say("composing the bound without normalizers")
    program, _ = walk_coupled(work.captured, work.options, without=True, coupled=work.coupled)
    whole = everywhere_of(work)
    chains = _chains(work, program, share=0.25)  # for comparison only
    composition = Composition(program, Domain(whole), work.norms, chains)
    value, _ = _values(composition, whole, None)
    if math.isinf(value.log) and value.log > 0 and work.seen is not None:
        name = _restricted(whole, "within the data's range and norms")
        composition = Composition(program, Domain(name, {}, tuple(work.seen.inputs)), work.norms, chains)
        value, _ = _values(composition, name, None)
    work.compositions["without_normalizers"] = composition
    return value


def _search(work: Work, domain: Domain | None, model: nn.Module, data: Any, limit: int | None) -> Search:
    """Search for inputs with a large Jacobian or quotient, among all of the data where that is cheap."""
    cost, outputs = forward_cost(work.program), sum(e.numel for _, e in work.program.outputs)
    norms = None
    look: Iterator[Tensor] = iter(())
    if data is not None and work.stacked is None and outputs and work.options.points is None:
        precise = (
            torch.float64 if cost < PRECISE else torch.float32
        )  # a climb follows rounding, so less of it is better
        norms = batched_norms(work.captured, work.program, precise)
        most = limit_for(cost, outputs)
        given = batches(work, model, data, most if limit is None else min(most, limit))
        look = (piece for batch in given for piece in batch[0].split(BATCH))
    return search(
        work.captured,
        work.program,
        work.candidates,
        floors={} if domain is None else domain.floors,
        ranges=() if domain is None else domain.ranges,
        factors={} if domain is None else domain.factors,
        points=work.options.points,
        ascent=work.options.ascent,
        seed=work.options.seed,
        progress=work.say,
        norms=norms,
        look=look,
    )


def _lower(log: float | None, domain: str, mode: str | None) -> Value | None:
    """Return a lower bound as a value."""
    if log is None:
        return None
    return Value(log, Kind.LOWER, domain=domain, mode=mode, statement="normscope Jacobian")


def _stacked(work: Work, model: nn.Module, data: Any) -> tuple[Value | None, Value | None]:
    """Return the bound of a batch as one stacked input, BatchNorm using its statistics, near that batch."""
    options = work.options
    wanted = options.stacked
    if wanted is None:
        wanted = sum(t.numel() for t in work.captured.tensors.values()) < 2_000_000
    if data is None or not wanted or options.mode == "batch" or not has_batch_norm(work.captured.graph):
        return None, None
    if work.captured.graph.batch != "dynamic":
        return None, None
    if work.stacked is not None:
        return None, None
    batch = next(batches(work, model, data, STACKED))
    if batch[0].shape[0] < 2:
        return None, None
    work.say("composing the bound on a stacked batch")
    graph = with_batch_statistics(work.captured.graph)
    captured = replace(work.captured, graph=graph, example=batch)
    program = build_program(graph, captured.tensors, batch)
    seen = survey(captured, program, [batch], activations={}, dtype=torch.float64)
    condition = fixed_inputs(captured, program).condition("that batch")
    name = f"stacked batches of {batch[0].shape[0]} whose normalizer stds stay above those of the first batch"
    name += f" and {condition}" if condition else ""
    value, _ = _values(Composition(program, Domain(name, seen.floors()), work.norms), name, "batch")
    found = search(captured, program, [batch], floors=seen.floors(), points=1, ascent=0, seed=options.seed)
    return value, _lower(found.jacobian, name, "batch")


def _why_infinite(composition: Composition) -> list[str]:
    """Say where a bound becomes infinite first, operation by operation, if it does without anything opaque."""
    found: dict[str, str] = {}
    for atom in composition.program.atoms:
        rule = atom.atom
        if isinstance(rule, Opaque) or max(composition.lipschitz(atom).certified) < math.inf:
            continue
        below = [composition.lipschitz(e).certified for e in rule.inputs]
        if all(max(logs) < math.inf for logs in below):
            found.setdefault(rule.op, rule.owner or rule.name)
    return [
        f"{op} in {owner} has no finite constant on all inputs: it needs a bounded input (a normalizer before it, or "
        "data, which gives a range), or a positive eps"
        for op, owner in found.items()
    ]
