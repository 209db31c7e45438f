"""End to end: the constant of the whole network on every domain, printed, certified and attained."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normscope.analysis.context import Work, batches, shapes_of, walk_coupled, where_fixed
from normscope.analysis.fixed_inputs import fixed_inputs
from normscope.core.errors import InputError, attempt, unless_stopped
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
from normscope.operators.normalizer import acts_on_weights
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


def end_to_end(work: Work, search: Callable[[], Search] | None = None) -> Whole:
    """Return the end-to-end constants, printed and proved, on every domain.

    What is attained is found by ``search``, by default among the data and from its best points.
    """
    mode, told, whole = work.mode, work.messages, everywhere_of(work)
    step = functools.partial(unless_stopped, messages=told)
    out: dict[str, Value | None] = attempt("what papers print", lambda: _printed(work), {}, told)
    compositions: dict[str, Composition] = {}

    def keep(name: str, bound: Bound | None) -> None:
        out[name] = None if bound is None else bound.value
        out[f"{name}_probabilistic"] = None if bound is None else bound.probable
        if bound is not None:
            compositions[name] = bound.composition

    work.say("composing the bound on all inputs")
    plain = step("the bound by composition", lambda: _bound(work, Domain(whole), None), None)
    chains = step("the multiplier chains", lambda: _chains(work, work.program), None)
    first = plain
    if chains is not None:
        first = step("the bound on all inputs", lambda: _bound(work, Domain(whole), chains), plain)
    keep("global", first)
    if first is None:
        out["global"] = Value(math.inf, Kind.CERTIFIED, whole, mode, "normscope F10")
    out["global_composition"] = plain.value if plain is not None and chains is not None and chains.used else None
    told += [] if first is None else _why_infinite(first.composition)
    out["global_floor"] = step("the floor of free patterns", lambda: _floor(work, chains), None)
    on_floor: Bound | None = None
    if work.seen is not None:
        work.say("composing the bound on the variance-floor domain")
        on_floor = step("the bound on the variance-floor domain", lambda: _on_floor(work, chains), None)
    keep("variance_floor", on_floor)
    keep("without_normalizers", step("the bound without normalizers", lambda: _without(work), None))
    del out["without_normalizers_probabilistic"]  # it is for comparison only
    domain = Domain() if on_floor is None else on_floor.composition.domain
    work.say("lower bounds")
    attained = step("the lower bound", search or (lambda: _search(work, domain)), Search(None, None, None))
    if attained.failure:
        told.append(f"no attained value: {attained.failure}")
    out["lower"] = out["lower_everywhere"] = _lower(attained.everywhere, whole, mode)
    if on_floor is not None:
        out["lower"] = _lower(attained.on_floor, on_floor.value.domain, mode)
    out["jacobian"] = _lower(attained.jacobian, "random points" if work.data is None else "these data points", mode)
    stacked = step("the bound on a stacked batch", lambda: _stacked(work), (None, None))
    out["stacked_batch"], out["stacked_batch_lower"] = stacked
    return Whole(out, compositions, attained.best)


def _printed(work: Work) -> dict[str, Value | None]:
    """Return what the paper prints for the network."""
    weights = [x.upper for x in work.layers]
    printed = [(n.kind, n.printed) for n in work.normalizers if n.printed is not None]
    batch, layer = ([value for kind, value in printed if kind == wanted] for wanted in KINDS_PRINTED)
    first, second = corollary_10(weights, batch) if batch else (None, None)
    return {
        "printed": theorem_9(weights, [value for _, value in printed]),
        "printed_weights": lemma_5(weights),
        "corollary_10": first,
        "corollary_10_power": second,
        "corollary_11": corollary_11(weights, layer) if layer else None,
    }


def _bound(work: Work, domain: Domain, chains: Chains | None, other: Program | None = None) -> Bound:
    """Return the bound of the network on a domain, or that of another program, which is there for comparison only."""
    thorough = other is None or not is_large(other)
    composition = work.composition(other or work.program, domain, work.norms, chains, distributed=thorough)
    return Bound(*_values(composition, work.mode if other is None else None), composition)


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


def _values(composition: Composition, mode: str | None) -> tuple[Value, Value | None]:
    """Return the certified value of a composition, and the probabilistic one where it is smaller."""
    certified, probable, delta = composition.total()
    chained = composition.chains is not None and composition.chains.used
    statement = "normscope Proposition CHAIN-1" if chained else "normscope F10"
    domain, exact = composition.domain.name, ("exact real arithmetic",)
    value = Value(rounded_up(certified), Kind.CERTIFIED, domain, mode, statement, exact)
    if delta == 0.0 or probable >= certified:
        return value, None
    return value, replace(value, log=rounded_up(probable), kind=Kind.PROBABILISTIC, delta=delta)


def _floor(work: Work, chains: Chains | None) -> Value | None:
    """Return what no bound can go below that lets every activation choose its slope by itself."""
    if chains is None or not chains.used or len(work.program.outputs) != 1:
        return None
    log = chains.floor(work.program.outputs[0][1])
    if log is None:
        return None
    return Value(log, Kind.LOWER, "activation patterns chosen freely", work.mode, "normscope Pattern floor")


def _chains(work: Work, program: Program, share: float = 1.0) -> Chains | None:
    """Return the chains of a program, none if no time is to be spent on them or the batch is the input."""
    if not work.options.time or work.stacked is not None:
        return None
    return Chains(program, seconds=share * work.options.time, progress=work.say)


def rounded_up(log: float) -> float:
    """Round a logarithm up by more than the composition can have lost."""
    return log if math.isinf(log) else log + LOG_ROUNDING * max(1.0, abs(log))


def _on_floor(work: Work, chains: Chains | None) -> Bound:
    """Return the bound where every normalizer's spread stays above what the data showed.

    Where that is infinite (gates, attention without a normalizer) the inputs are also kept in the range of the data.
    """
    seen = work.seen
    if seen is None:
        raise InputError("The variance-floor domain needs data.")
    floors = seen.floors()
    whole = everywhere_of(work)
    name = _restricted(whole, "whose normalizer stds stay above those seen in the data") if floors else whole
    found = _bound(work, Domain(name, floors), chains)
    if found.value.log == math.inf:
        name = _restricted(name, "within the data's range and norms, also at the factors of products")
        found = _bound(work, Domain(name, floors, tuple(seen.inputs), seen.factors), chains)
    return found


def _without(work: Work) -> Bound | None:
    """Return the bound of the same network with its normalizers of activations removed, if that was asked for."""
    if not work.options.without_normalizers or all(acts_on_weights(s) for s in work.program.sites):
        return None
    work.say("composing the bound without normalizers")
    program, _ = walk_coupled(work.captured, work.options, without=True, coupled=work.coupled)
    whole = everywhere_of(work)
    chains = _chains(work, program, share=0.25)  # for comparison only
    found = _bound(work, Domain(whole), chains, program)
    if found.value.log == math.inf and work.seen is not None:
        name = _restricted(whole, "within the data's range and norms")
        found = _bound(work, Domain(name, {}, tuple(work.seen.inputs)), chains, program)
    return found


def _search(work: Work, domain: Domain) -> Search:
    """Search for inputs with a large Jacobian or quotient, among all of the data where that is cheap."""
    cost, outputs = forward_cost(work.program), sum(e.numel for _, e in work.program.outputs)
    norms = None
    look: Iterator[Tensor] = iter(())
    if work.data is not None and work.stacked is None and outputs and work.options.points is None:
        # A climb follows rounding, so less of it is better.
        precise = torch.float64 if cost < PRECISE else torch.float32
        norms = batched_norms(work.captured, work.program, precise)
        given = batches(work, work.at_most(limit_for(cost, outputs)))
        look = (piece for batch in given for piece in batch[0].split(BATCH))
    return search_inputs(
        work.captured,
        work.program,
        work.candidates,
        domain,
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


def _stacked(work: Work) -> tuple[Value | None, Value | None]:
    """Return the bound of a batch as one stacked input, BatchNorm using its statistics, near that batch."""
    if work.data is None or work.options.mode == "batch" or not has_batch_norm(work.captured.graph):
        return None, None
    if not work.stacks_batches:
        return None, None
    batch = next(batches(work, STACKED))
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
    domain = Domain(name, seen.floors())
    value, _ = _values(Composition(program, domain, work.norms), "batch")
    found = search_inputs(captured, program, [batch], domain, points=1, ascent=0, seed=work.options.seed)
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
