"""Constants of the whole network on every domain: printed, certified and attained."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normscope.analysis.context import AnalysisContext, Observations, batches, shapes_of, walk_coupled
from normscope.analysis.fixed_inputs import fixed_inputs
from normscope.analysis.layers import LayerTables
from normscope.core.errors import attempt, unless_stopped
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
from normscope.operators.survey import Survey, survey

#: Normalizers for which the paper states a corollary of its own.
KINDS_PRINTED = ("batch_norm", "layer_norm")
#: Most samples of a batch that is bounded as one stacked input.
STACKED = 16
#: Multiplications of a forward pass below which the Jacobians of all samples are computed in float64.
PRECISE = 1e6
#: Samples whose Jacobians are computed at once.
BATCH = 64
#: Rounding of the logarithms themselves, added to every certified total.
LOG_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class EndToEndConstants:
    """The constants of a whole network, with their compositions and the worst input found."""

    constants: dict[str, Value | None]  #: by their names in the result
    compositions: dict[str, Composition] = field(default_factory=dict)  #: those of the upper bounds, by the same names
    best: Best | None = None  #: the input with the largest Jacobian that was found


@dataclass(frozen=True, eq=False)
class ComposedBound:
    """An upper bound: certified, probabilistic where that is smaller, and its composition."""

    value: Value
    probable: Value | None
    composition: Composition


def end_to_end(
    context: AnalysisContext,
    observed: Observations,
    tables: LayerTables,
    messages: list[str],
    search: Callable[[], Search] | None = None,
) -> EndToEndConstants:
    """Return the end-to-end constants, printed and proved, on every domain.

    What is attained is found by ``search``, by default among the data and from its best points.
    """
    mode, seen, everywhere = context.mode, observed.seen, widest_domain(context, observed)
    step = functools.partial(unless_stopped, messages=messages)
    out: dict[str, Value | None] = attempt("what papers print", lambda: _printed(tables), {}, messages)
    compositions: dict[str, Composition] = {}

    def keep(name: str, bound: ComposedBound | None) -> None:
        out[name] = None if bound is None else bound.value
        out[f"{name}_probabilistic"] = None if bound is None else bound.probable
        if bound is not None:
            compositions[name] = bound.composition

    context.say("composing the bound on all inputs")
    plain = step("the bound by composition", lambda: _bound(context, Domain(everywhere), None), None)
    chains = step("the multiplier chains", lambda: _chains(context, context.program), None)
    first = plain
    if chains is not None:
        first = step("the bound on all inputs", lambda: _bound(context, Domain(everywhere), chains), plain)
    keep("global", first)
    if first is None:
        out["global"] = Value(math.inf, Kind.CERTIFIED, everywhere, mode, "normscope F10")
    out["global_composition"] = plain.value if plain is not None and chains is not None and chains.used else None
    messages += [] if first is None else _why_infinite(first.composition)
    out["global_floor"] = step("the floor of free patterns", lambda: _floor(context, chains), None)
    on_floor: ComposedBound | None = None
    if seen is not None:
        context.say("composing the bound on the variance-floor domain")
        on_floor = step(
            "the bound on the variance-floor domain", lambda: _on_floor(context, seen, everywhere, chains), None
        )
    keep("variance_floor", on_floor)
    keep(
        "without_normalizers", step("the bound without normalizers", lambda: _without(context, seen, everywhere), None)
    )
    del out["without_normalizers_probabilistic"]  # it is for comparison only
    domain = Domain() if on_floor is None else on_floor.composition.domain
    context.say("lower bounds")
    attained = step(
        "the lower bound", search or (lambda: _search(context, observed.candidates, domain)), Search(None, None, None)
    )
    if attained.failure:
        messages.append(f"no attained value: {attained.failure}")
    out["lower"] = out["lower_everywhere"] = _lower(attained.everywhere, everywhere, mode)
    if on_floor is not None:
        out["lower"] = _lower(attained.on_floor, on_floor.value.domain, mode)
    out["jacobian"] = _lower(attained.jacobian, "random points" if context.data is None else "these data points", mode)
    stacked = step("the bound on a stacked batch", lambda: _stacked(context), (None, None))
    out["stacked_batch"], out["stacked_batch_lower"] = stacked
    return EndToEndConstants(out, compositions, attained.best)


def _printed(tables: LayerTables) -> dict[str, Value | None]:
    """Return the constants of the network as printed in the paper."""
    weights = [x.upper for x in tables.layers]
    printed = [(n.kind, n.printed) for n in tables.normalizers if n.printed is not None]
    batch, layer = ([value for kind, value in printed if kind == wanted] for wanted in KINDS_PRINTED)
    first, second = corollary_10(weights, batch) if batch else (None, None)
    return {
        "printed": theorem_9(weights, [value for _, value in printed]),
        "printed_weights": lemma_5(weights),
        "corollary_10": first,
        "corollary_10_power": second,
        "corollary_11": corollary_11(weights, layer) if layer else None,
    }


def _bound(
    context: AnalysisContext, domain: Domain, chains: Chains | None, other: Program | None = None
) -> ComposedBound:
    """Return the bound of the network on a domain, or of another program that is only compared with it."""
    thorough = other is None or not is_large(other)
    composition = context.composition(other or context.program, domain, context.norms, chains, distributed=thorough)
    return _composed(composition, context.mode if other is None else None)


def widest_domain(context: AnalysisContext, observed: Observations) -> str:
    """Return the name of the largest domain on which bounds of the program hold.

    All inputs, unless it was recorded along one path, the batch is part of the input, the model does something else
    at other sizes of the batch, the data has samples of other shapes too, or something (a mask) is held fixed.
    """
    name = "inputs that take the recorded branches" if BRANCH_NOTE in context.captured.graph.notes else ALL_INPUTS
    example = context.captured.example
    if context.stacked is not None:
        name = _restricted(name, f"in stacked batches of {context.stacked}")
    elif context.captured.graph.batch not in ("dynamic", "1", "0"):
        name = _restricted(name, f"in batches of {context.captured.graph.batch}")
    else:
        for note in context.captured.graph.notes:
            for start, words in ((LIMIT_NOTE, "in batches of at most"), (CONDITION_NOTE, "in batches where")):
                if note.startswith(start):
                    name = _restricted(name, words + note.removeprefix(start))
    if observed.skipped.other_shapes:
        name = _restricted(name, f"of shape {shapes_of(example)}")
    condition = context.fixed_condition
    return _restricted(name, condition) if condition else name


def _restricted(domain: str, condition: str) -> str:
    """Return the name of a domain with one more condition.

    >>> _restricted(ALL_INPUTS, "within a ball"), _restricted("inputs within a ball", "on a line")
    ('inputs within a ball', 'inputs within a ball and on a line')
    """
    return f"inputs {condition}" if domain == ALL_INPUTS else f"{domain} and {condition}"


def _composed(composition: Composition, mode: str | None) -> ComposedBound:
    """Return the certified value of a composition, and the probabilistic one where it is smaller."""
    certified, probable, delta = composition.total()
    chained = composition.chains is not None and composition.chains.used
    statement = "normscope Proposition CHAIN-1" if chained else "normscope F10"
    domain, exact = composition.domain.name, ("exact real arithmetic",)
    value = Value(rounded_up(certified), Kind.CERTIFIED, domain, mode, statement, exact)
    smaller = None
    if delta > 0.0 and probable < certified:
        smaller = replace(value, log=rounded_up(probable), kind=Kind.PROBABILISTIC, delta=delta)
    return ComposedBound(value, smaller, composition)


def _floor(context: AnalysisContext, chains: Chains | None) -> Value | None:
    """Return a value that no bound can go below if every activation may choose its slope freely."""
    if chains is None or not chains.used or len(context.program.outputs) != 1:
        return None
    log = chains.floor(context.program.outputs[0][1])
    if log is None:
        return None
    return Value(log, Kind.LOWER, "activation patterns chosen freely", context.mode, "normscope Pattern floor")


def _chains(context: AnalysisContext, program: Program, share: float = 1.0) -> Chains | None:
    """Return the multiplier chains of a program; none without time for them, or if the batch is the input."""
    if not context.options.time or context.stacked is not None:
        return None
    return Chains(program, seconds=share * context.options.time, progress=context.say)


def rounded_up(log: float) -> float:
    """Round a logarithm up by more than the rounding error of the composition."""
    return log if math.isinf(log) else log + LOG_ROUNDING * max(1.0, abs(log))


def _on_floor(context: AnalysisContext, seen: Survey, everywhere: str, chains: Chains | None) -> ComposedBound:
    """Return the bound on inputs for which every normalizer's standard deviation stays above those seen in the data.

    Where that is infinite (gates, attention without a normalizer) the inputs are also kept in the range of the data.
    """
    floors = seen.floors()
    name = _restricted(everywhere, "whose normalizer stds stay above those seen in the data") if floors else everywhere
    found = _bound(context, Domain(name, floors), chains)
    if found.value.log == math.inf:
        name = _restricted(name, "within the data's range and norms, also at the factors of products")
        found = _bound(context, Domain(name, floors, tuple(seen.inputs), seen.factors), chains)
    return found


def _without(context: AnalysisContext, seen: Survey | None, everywhere: str) -> ComposedBound | None:
    """Return the bound of the same network without its normalizers of activations, if that is requested."""
    if not context.options.without_normalizers or all(acts_on_weights(s) for s in context.program.sites):
        return None
    context.say("composing the bound without normalizers")
    program = walk_coupled(context.captured, context.options, without_normalizers=True, coupled=context.coupled).program
    chains = _chains(context, program, share=0.25)  # for comparison only
    found = _bound(context, Domain(everywhere), chains, program)
    if found.value.log == math.inf and seen is not None:
        name = _restricted(everywhere, "within the data's range and norms")
        found = _bound(context, Domain(name, {}, tuple(seen.inputs)), chains, program)
    return found


def _search(context: AnalysisContext, candidates: list[list[Tensor]], domain: Domain) -> Search:
    """Search for inputs with a large Jacobian or quotient, among all of the data where that is cheap."""
    cost, outputs = forward_cost(context.program), sum(e.numel for _, e in context.program.outputs)
    norms = None
    look: Iterator[Tensor] = iter(())
    if context.data is not None and context.stacked is None and outputs and context.options.points is None:
        # A climb follows rounding, so less of it is better.
        precise = torch.float64 if cost < PRECISE else torch.float32
        norms = batched_norms(context.captured, context.program, precise)
        given = batches(context, context.at_most(limit_for(cost, outputs)))
        look = (piece for batch in given for piece in batch[0].split(BATCH))
    return search_inputs(
        context.captured,
        context.program,
        candidates,
        domain,
        points=context.options.points,
        ascent=context.options.ascent,
        seed=context.options.seed,
        progress=context.say,
        norms=norms,
        look=look,
    )


def _lower(log: float | None, domain: str, mode: str | None) -> Value | None:
    if log is None:
        return None
    return Value(log, Kind.LOWER, domain=domain, mode=mode, statement="normscope Jacobian")


def _stacked(context: AnalysisContext) -> tuple[Value | None, Value | None]:
    """Return the bound of a batch as one stacked input, BatchNorm using its statistics, near that batch."""
    if context.data is None or context.options.mode == "batch" or not has_batch_norm(context.captured.graph):
        return None, None
    if not context.stacks_batches:
        return None, None
    batch = next(batches(context, STACKED))
    if batch[0].shape[0] < 2:
        return None, None
    context.say("composing the bound on a stacked batch")
    graph = with_batch_statistics(context.captured.graph)
    captured = replace(context.captured, graph=graph, example=batch)
    program = build_program(graph, captured.tensors, batch)
    seen = survey(captured, program, [batch], activations={}, dtype=torch.float64)
    condition = fixed_inputs(captured, program).condition("that batch")
    name = f"stacked batches of {batch[0].shape[0]} whose normalizer stds stay above those of the first batch"
    name += f" and {condition}" if condition else ""
    domain = Domain(name, seen.floors())
    value = _composed(Composition(program, domain, context.norms), "batch").value
    found = search_inputs(captured, program, [batch], domain, points=1, ascent=0, seed=context.options.seed)
    return value, _lower(found.jacobian, name, "batch")


def _why_infinite(composition: Composition) -> list[str]:
    """Return messages that name the operations at which a bound first becomes infinite, except opaque ones."""
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
