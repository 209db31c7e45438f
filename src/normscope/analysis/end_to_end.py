"""End to end: the constant of the whole network on every domain, printed, certified and attained."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.context import Work, batches, shapes_of, walk_coupled, where_fixed
from normscope.analysis.fixed_inputs import fixed_inputs
from normscope.core.errors import InputError, attempt, unless_stopped
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import ALL_INPUTS, Kind, Value
from normscope.graph.export import CONDITION_NOTE, LIMIT_NOTE
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.graph.recorder import BRANCH_NOTE
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.climb import batched_norms, limit_for
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.cost import forward_cost, is_large
from normscope.lipschitz.search import Best, Search
from normscope.lipschitz.search import search as search_inputs
from normscope.lipschitz.theorem_9 import corollary_10, corollary_11, lemma_5, theorem_9
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


@dataclass(frozen=True, eq=False)
class Whole:
    """The constants of a whole network, and where they come from."""

    constants: dict[str, Value | None]  #: by their names in the result
    compositions: dict[str, Composition] = field(default_factory=dict)  #: those of the upper bounds, by the same names
    best: Best | None = None  #: the input with the largest Jacobian that was found


@dataclass(frozen=True, eq=False)
class Bound:
    """One upper bound: certified, with probability where that is smaller, and how it is composed."""

    value: Value
    probable: Value | None
    composition: Composition


def end_to_end(
    work: Work, layers: list[LayerResult], normalizers: list[NormalizerResult], model: nn.Module, data: Any,
    limit: int | None = None, search: Callable[[], Search] | None = None,
) -> Whole:  # fmt: skip
    """Return the end-to-end constants, printed and proved, on every domain.

    What is attained is found by ``search``, by default among the data and from its best points.
    """
    mode = work.options.mode if any(couples_samples(s.kind) for s in work.program.sites) else None
    told, whole = work.messages, everywhere_of(work)
    step = functools.partial(unless_stopped, told=told)
    nothing = Value(math.inf, Kind.CERTIFIED, whole, mode, "normscope F10")
    bounds: dict[str, Bound | None] = {}
    out: dict[str, Value | None] = attempt("what papers print", lambda: _printed(layers, normalizers), {}, told)
    work.say("composing the bound on all inputs")
    plain = step("the bound by composition", lambda: _bound(work, Domain(whole), mode, None), None)
    chains = step("the multiplier chains", lambda: _chains(work, work.program), None)
    first = bounds["global"] = plain
    if chains is not None:
        first = step("the bound on all inputs", lambda: _bound(work, Domain(whole), mode, chains), plain)
        bounds["global"] = first
    out["global"] = nothing if first is None else first.value
    out["global_probabilistic"] = None if first is None else first.probable
    out["global_composition"] = plain.value if plain is not None and chains is not None and chains.used else None
    told += [] if first is None else _why_infinite(first.composition)
    out["global_floor"] = step("the floor of free patterns", lambda: _floor(work, mode, chains), None)
    on_floor: Bound | None = None
    if work.seen is not None:
        work.say("composing the bound on the variance-floor domain")
        on_floor = step("the bound on the variance-floor domain", lambda: _on_floor(work, mode, chains), None)
        bounds["variance_floor"] = on_floor
    out["variance_floor"] = None if on_floor is None else on_floor.value
    out["variance_floor_probabilistic"] = None if on_floor is None else on_floor.probable
    bare: Bound | None = None
    if work.options.without_normalizers:
        bare = bounds["without_normalizers"] = step("the bound without normalizers", lambda: _without(work), None)
    out["without_normalizers"] = None if bare is None else bare.value
    domain = None if on_floor is None else on_floor.composition.domain
    work.say("lower bounds")
    search = search or (lambda: _search(work, domain, model, data, limit))
    attained = step("the lower bound", search, Search(None, None, None))
    if attained.failure:
        told.append(f"no attained value: {attained.failure}")
    floor = out["variance_floor"]
    out["lower"] = out["lower_everywhere"] = _lower(attained.everywhere, whole, mode)
    if floor is not None:
        out["lower"] = _lower(attained.on_floor, floor.domain, mode)
    out["jacobian"] = _lower(attained.jacobian, "these data points" if data is not None else "random points", mode)
    stacked = step("the bound on a stacked batch", lambda: _stacked(work, model, data), (None, None))
    out["stacked_batch"], out["stacked_batch_lower"] = stacked
    compositions = {name: bound.composition for name, bound in bounds.items() if bound is not None}
    return Whole(out, compositions, attained.best)


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


def _bound(
    work: Work, domain: Domain, mode: str | None, chains: Chains | None, program: Program | None = None
) -> Bound:
    """Return the bound of a program on a domain; another program than the network's is there for comparison only."""
    thorough = program is None or not is_large(program)
    composition = work.composition(program or work.program, domain, work.norms, chains, distributed=thorough)
    return Bound(*_values(composition, domain.name, mode), composition)


def everywhere_of(work: Work) -> str:
    """Return the widest domain a program speaks of.

    All inputs, unless it was recorded along one path, the batch is part of the input, the model does something else
    at other sizes of the batch, the data has samples of other shapes too, or something (a mask) is held fixed.
    """
    name = "inputs that take the recorded branches" if BRANCH_NOTE in work.captured.graph.notes else ALL_INPUTS
    example = work.captured.example
    if work.stacked is not None:
        name = _restricted(name, f"in stacked batches of {work.stacked}")
    elif work.captured.graph.batch not in ("dynamic", "1", "0"):
        name = _restricted(name, f"in batches of {work.captured.graph.batch}")
    else:
        for note in work.captured.graph.notes:
            for start, words in ((LIMIT_NOTE, "in batches of at most"), (CONDITION_NOTE, "in batches where")):
                if note.startswith(start):
                    name = _restricted(name, words + note.removeprefix(start))
    if work.left_out.other_shapes:
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


def _floor(work: Work, mode: str | None, chains: Chains | None) -> Value | None:
    """Return what no bound can go below that lets every activation choose its slope by itself."""
    if chains is None or not chains.used or len(work.program.outputs) != 1:
        return None
    log = chains.floor(work.program.outputs[0][1])
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


def _on_floor(work: Work, mode: str | None, chains: Chains | None) -> Bound:
    """Return the bound where every normalizer's spread stays above what the data showed.

    Where that is infinite (gates, attention without a normalizer) the inputs are also kept in the range of the data.
    """
    seen = work.seen
    if seen is None:
        raise InputError("The variance-floor domain needs data.")
    floors = seen.floors()
    whole = everywhere_of(work)
    name = _restricted(whole, "whose normalizer stds stay above those seen in the data") if floors else whole
    found = _bound(work, Domain(name, floors), mode, chains)
    if found.value.log == math.inf:
        name = _restricted(name, "within the data's range and norms, also at the factors of products")
        found = _bound(work, Domain(name, floors, tuple(seen.inputs), seen.factors), mode, chains)
    return found


def _without(work: Work) -> Bound | None:
    """Return the bound of the same network with its normalizers of activations removed."""
    if not any(not acts_on_weights(s) for s in work.program.sites):
        return None
    work.say("composing the bound without normalizers")
    program, _ = walk_coupled(work.captured, work.options, without=True, coupled=work.coupled)
    whole = everywhere_of(work)
    chains = _chains(work, program, share=0.25)  # for comparison only
    found = _bound(work, Domain(whole), None, chains, program)
    if found.value.log == math.inf and work.seen is not None:
        name = _restricted(whole, "within the data's range and norms")
        found = _bound(work, Domain(name, {}, tuple(work.seen.inputs)), None, chains, program)
    return found


def _search(work: Work, domain: Domain | None, model: nn.Module, data: Any, limit: int | None) -> Search:
    """Search for inputs with a large Jacobian or quotient, among all of the data where that is cheap."""
    cost, outputs = forward_cost(work.program), sum(e.numel for _, e in work.program.outputs)
    norms = None
    look: Iterator[Tensor] = iter(())
    if data is not None and work.stacked is None and outputs and work.options.points is None:
        # A climb follows rounding, so less of it is better.
        precise = torch.float64 if cost < PRECISE else torch.float32
        norms = batched_norms(work.captured, work.program, precise)
        most = limit_for(cost, outputs)
        given = batches(work, model, data, most if limit is None else min(most, limit))
        look = (piece for batch in given for piece in batch[0].split(BATCH))
    return search_inputs(
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
    if work.captured.graph.batch != "dynamic" or work.stacked is not None:
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
    found = search_inputs(captured, program, [batch], floors=seen.floors(), points=1, ascent=0, seed=options.seed)
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
        (
            f"{op} in {owner} has no finite constant on all inputs: it needs a bounded input (a normalizer before it, "
            "or data, which bounds its range), or a positive eps"
        )
        for op, owner in found.items()
    ]
