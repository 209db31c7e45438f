"""``weight_lipschitz``: how much a change of each weight changes the output, exact at data points and certified."""

import functools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.context import (
    CANDIDATES,
    AnalysisContext,
    AnalysisRequest,
    Observations,
    Progress,
    capture_example,
    checked,
    example_of,
    full_context,
    observe,
    one_at_a_time,
)
from normscope.analysis.contradiction import uncontradicted_weight
from normscope.analysis.end_to_end import widest_domain
from normscope.analysis.facts import all_messages, input_facts, model_facts
from normscope.analysis.options import Options
from normscope.core.errors import listed
from normscope.core.value import Kind, Value, log_of, log_sum
from normscope.graph.capture import Captured
from normscope.graph.guard import untouched
from normscope.graph.hidden_reads import hidden_reads, note_on
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.cost import LARGE, forward_cost
from normscope.lipschitz.weights.bounds import Outputs, input_factors, joint_constant, output_constants, weight_constant
from normscope.lipschitz.weights.factors import Sample, before_batch_statistics, meet, stacked_norm
from normscope.lipschitz.weights.invariance import scale_free
from normscope.lipschitz.weights.pointwise import Norms, norms_at
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.lipschitz.weights.theorem_12 import is_plain_chain, theorem_12, unnormalized_product
from normscope.lipschitz.weights.uses import Weights, find_weights
from normscope.operators.nonlinear import INF
from normscope.operators.normalizer import acts_on_weights, site_constants
from normscope.operators.site import Site
from normscope.operators.survey import Survey, survey

#: Default number of samples.
SAMPLES = 64
#: Default number of points at which Jacobians are computed, in a small and in a large network.
POINTS, POINTS_LARGE = 4, 1
#: Most samples of a stacked batch.
BATCH = 16
#: Assumption of bounds over data.
MEASURED = "activations at the data are evaluated in float64, with a margin for rounding in the last bits"
EXACT = "exact real arithmetic"
#: Note on weights that are also read where the graph does not show it.
HIDDEN = "no bound: the model also reads it as a number, as an index or for a branch"
_FLOOR = "normalizer stds stay above those seen in the data"


@dataclass(frozen=True, eq=False)
class OutputBounds:
    """Certified constants with respect to the results of uses, by domain."""

    domains: dict[str, Domain]  #: the domains, by name
    constants: dict[str, Outputs]  #: the constants on each of them
    #: uses whose constant on the variance floor also needs inputs in the range of the data
    ranged: frozenset[int] = frozenset()
    ranged_weights: frozenset[int] = frozenset()  #: weights for which the same holds for changes of any size


@dataclass(frozen=True, eq=False)
class WeightMeasurements:
    """What the rows are made from, in the order of the weights and their uses."""

    context: AnalysisContext  #: the context of the analysis, with the program of the weights
    seen: Survey | None  #: what the data showed
    weights: Weights  #: the weights and their uses
    outputs: OutputBounds
    samples: list[Sample]  #: what the uses met at each sample
    factors: list[list[float]]  #: logarithms of the input factors at each sample
    norms: list[Norms]  #: exact norms at the points differentiated

    @functools.cached_property
    def layers(self) -> list[tuple[int, Value]]:
        """Return the norms of all layers, by the place of each in the program."""
        norm = self.context.norms.norm
        pairs = [(e.id, norm(e.inputs[0], e).log_upper) for e in self.context.program.layers]
        return [(key, Value(log, Kind.CERTIFIED, statement="normscope norm")) for key, log in pairs]

    @functools.cached_property
    def normalizers(self) -> list[tuple[int, Value]]:
        """Return the constants that the paper prints for normalizers, or proved ones, by their places."""
        program, out = self.context.program, []
        for site in program.sites:
            if not acts_on_weights(site) and site.node in program.ends:
                seen = None if self.seen is None else self.seen.before_normalizers.get(site.node)
                known = site_constants(site, None if seen is None else seen.floor, self.context.options.mode)
                place = program.ends[site.node][0].id
                out.append((place, known.printed or known.on_floor or known.proved))
        return out

    @functools.cached_property
    def plain(self) -> bool:
        """Return whether the network is a plain chain."""
        return is_plain_chain(self.context.program)


def weight_lipschitz(
    model: nn.Module,
    data: Any = None,
    *,
    input_shape: tuple[int, ...] | None = None,
    name: str = "",
    options: Options | None = None,
    progress: Progress | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    **settings: Any,
) -> WeightResult:
    """Bound how much a change of each weight changes the output: Lipschitz constants in the weights (Theorem 12).

    For each weight W with ``y = W h``: the exact ``||dh/dW||`` and ``||dh/dy||`` at data points, certified bounds of
    ``||h, y||`` on all inputs and where normalizer spreads stay above those seen, and with them certified bounds of
    ``||h, W||`` over the data. Without data only ``||h, y||`` is bounded.

    Args:
        model: any PyTorch module; it is not changed.
        data: a tensor, tuple, dict, DataLoader or generator of inputs.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        name: name of the model in the result.
        options: an :class:`Options`; single fields may be passed as keyword arguments, which take precedence.
        progress: called with a line of text at each step.
        limit: use at most this many samples of the data (by default 64).
        device: where the graph is run; by default the model's device.
        **settings: single fields of :class:`Options`; ``points`` is how many samples are differentiated.

    Returns:
        The result, with ``to_dict``, ``to_json``, ``save``.

    Raises:
        NormscopeError: a subclass that says what is wrong with the model, its weights or the data.

    >>> result = weight_lipschitz(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4))
    >>> [row.name for row in result.weights]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    >>> all(row.attained.log <= row.best.log for row in result.weights)
    True
    """
    say = progress or (lambda text: None)
    request = AnalysisRequest(model, data, Options.of(options, settings), name, limit, input_shape, device, say)
    request = checked(request)
    request = replace(request, limit=SAMPLES if limit is None else limit)
    with untouched(request.model):
        say("capturing the graph")
        captured = capture_example(request)
        hidden = hidden_reads(request.model, example_of(request), captured)
        return _measured(full_context(request, captured), hidden)


def _measured(context: AnalysisContext, outside: Collection[str] | None) -> WeightResult:
    observed = observe(context, context.at_most(CANDIDATES), context.limit)
    samples = [] if context.data is None else one_at_a_time(context, context.limit)
    captured, options, seen = context.captured, context.options, observed.seen
    weights = find_weights(captured.graph, captured.tensors, context.reference)
    hidden = weights.discrete.union(outside or ())
    context = replace(context, program=weights.program)
    if seen is not None and samples:  # floors that hold in exact arithmetic too
        seen.include(survey(captured, context.program, samples, activations={}, dtype=torch.float64))
    outputs = _output_bounds(context, observed, weights)
    met = []
    for i, inputs in enumerate(samples):
        context.say(f"activations: sample {i + 1} of {len(samples)}")
        met.append(meet(captured, weights, inputs))
    on_data = Composition(context.program, _data_domain(seen), context.norms)
    factors = [input_factors(weights, sample, on_data) for sample in met]
    points = POINTS_LARGE if forward_cost(context.program) > LARGE / 10 else POINTS
    chosen = samples[: options.points or points]
    norms = []
    for i, inputs in enumerate(chosen):
        context.say(f"Jacobians in the weights: point {i + 1} of {len(chosen)}")
        norms.append(norms_at(captured, weights, inputs, seed=options.seed))
    found = WeightMeasurements(context, seen, weights, outputs, met, factors, norms)
    stacked, attained_jointly = _stacked(found, samples)
    messages: list[str] = []
    rows = [_row(found, leaf, stacked) for leaf in range(len(weights.leaves))]
    table = tuple(uncontradicted_weight(row, messages) for row in rows)
    jointly = _jointly(found, table, attained_jointly)
    if hidden:
        graph = captured.graph
        table = tuple(
            row.unbounded(HIDDEN) if hidden & weights.parameters(graph, i) else row for i, row in enumerate(table)
        )
        jointly = {key: replace(value, log=INF) for key, value in jointly.items() if value.kind is Kind.CERTIFIED}
    return WeightResult(
        model=model_facts(context),
        input=input_facts(context) | {"data": bool(samples)},
        weights=table,
        jointly=jointly,
        samples={"data": len(samples), "jacobians": len(norms)},
        residual=max((n.residual for n in norms), default=None),
        messages=(*all_messages(context, observed, messages), *_messages_on_weights(found, samples, hidden or outside)),
    )


def _output_bounds(context: AnalysisContext, observed: Observations, weights: Weights) -> OutputBounds:
    """Compose the constants with respect to the results of uses on all inputs and on the variance floor.

    Where the variance floor alone leaves a constant infinite, inputs are kept in the range of the data as well.
    """
    seen, everywhere = observed.seen, widest_domain(context, observed)
    domains = {"global": Domain(everywhere)}
    if seen is not None:
        domains["variance_floor"] = Domain(everywhere, seen.floors())

    def composed(domain: Domain, name: str) -> Outputs:
        context.say(f"composing the bounds with respect to inner tensors: {name}")
        return output_constants(weights, Composition(context.program, domain, context.norms))

    constants = {key: composed(domain, key) for key, domain in domains.items()}
    floor = constants.get("variance_floor")
    if floor is None or max(floor.small, default=-INF) < INF:
        return OutputBounds(domains, constants)
    other = composed(_data_domain(seen), "within the range of the data")
    ranged = frozenset(i for i, log in enumerate(floor.small) if log == INF)
    ranged_weights = frozenset(i for i, logs in enumerate(floor.any_size) if logs is not None and INF in logs)
    small = tuple(b if a == INF else a for a, b in zip(floor.small, other.small, strict=True))
    any_size = tuple(other.any_size[i] if i in ranged_weights else logs for i, logs in enumerate(floor.any_size))
    constants["variance_floor"] = Outputs(small, any_size)
    return OutputBounds(domains, constants, ranged, ranged_weights)


def _data_domain(seen: Survey | None) -> Domain:
    """Return the domain of inputs in the range of the data and on its variance floors."""
    return Domain() if seen is None else Domain("the data", seen.floors(), tuple(seen.inputs))


def _stacked(
    found: WeightMeasurements, samples: Sequence[list[Tensor]]
) -> tuple[dict[str, dict[str, Value]], Value | None]:
    """Return the constants of the first samples stacked into one input by weight, and what all together attain.

    BatchNorm uses the statistics of this batch. There are none if inputs are batches anyway, or if it is expensive.
    """
    context, captured, weights = found.context, found.context.captured, found.weights
    if len(samples) < 2 or not context.stacks_batches:
        return {}, None
    size = min(len(samples), BATCH)
    batch = [torch.cat(parts) if parts[0].ndim else parts[0] for parts in zip(*samples[:size], strict=True)]
    context.say("a stacked batch")
    mode, outputs = context.mode, found.outputs.constants["variance_floor"].small
    if has_batch_norm(captured.graph) and context.options.mode == "running":
        mode = "batch"
        captured = replace(captured, graph=with_batch_statistics(captured.graph), example=batch)
        weights = find_weights(captured.graph, captured.tensors, batch)
        outputs, factors = _with_batch_statistics(context, captured, weights)
    else:
        factors = [_stacked_factor(found, use, size) for use in range(len(weights.uses))]
    norms = norms_at(captured, weights, batch, seed=context.options.seed)
    where = f"the first {size} samples stacked, at these weights"
    certified = functools.partial(Value, kind=Kind.CERTIFIED, domain=where, mode=mode)
    attained = functools.partial(Value, kind=Kind.LOWER, domain=where, mode=mode, statement="normscope F13")
    rows = {}
    for i, leaf in enumerate(weights.leaves):
        uses = weights.of(i)
        met = [factors[use] for use in uses]
        constant = weight_constant([outputs[use] for use in uses], met)
        rows[leaf.name] = {
            "certified": certified(constant, statement="normscope Proposition W-3"),
            "input_norm": certified(_root_of_squares(met), statement="normscope Proposition W-2"),
            "attained": attained(log_of(norms.weights[i])),
        }
    return rows, None if norms.jointly is None else attained(log_of(norms.jointly))


def _stacked_factor(found: WeightMeasurements, use: int, size: int) -> float:
    """Return the logarithm of ``||dW -> dY||`` of one use, Y the results at the first samples together."""
    met = [s.met[use] for s in found.samples[:size] if use in s.met]
    bound = _root_of_squares(f[use] for f in found.factors[:size])
    return bound if len(met) < size else min(bound, log_of(stacked_norm(met) * found.weights.uses[use].copies))


def _with_batch_statistics(
    context: AnalysisContext, captured: Captured, weights: Weights
) -> tuple[tuple[float, ...], list[float]]:
    """Return the constants with respect to results of uses, and the input factors, at a batch with its statistics."""
    program, batch = weights.program, captured.example
    seen = survey(captured, program, [batch], activations={}, dtype=torch.float64)
    ranges = (r.tightened(b.shape) for r, b in zip(seen.inputs, program.blocks, strict=True))
    composition = Composition(program, Domain("this batch", seen.floors(), tuple(ranges)), context.norms)
    sample = meet(captured, weights, batch)
    factors = input_factors(weights, sample, composition)
    for i, use in enumerate(weights.uses):
        if i in sample.met and before_batch_statistics(captured.graph, weights, use):
            factors[i] = log_of(stacked_norm([sample.met[i]], centred=True) * use.copies)
    return output_constants(weights, composition).small, factors


def _jointly(found: WeightMeasurements, table: Sequence[WeightRow], stacked: Value | None) -> dict[str, Value]:
    """Return the constants in all weights together: ``sqrt(sum L_i^2)``, and the norm of the whole Jacobian."""
    if not found.samples:
        return {}
    log = joint_constant([INF if row.best is None else row.best.log for row in table])
    domain = "these data points, at these weights"
    out = {
        "certified": Value(log, Kind.CERTIFIED, domain, found.context.mode, "normscope Proposition W-6", (MEASURED,))
    }
    attained = _attained(found, [n.jointly for n in found.norms])
    if attained is not None:
        out["attained"] = attained
    parts = [row.stacked.get("certified") for row in table]
    first = next((part for part in parts if part is not None), None)
    if first is not None:  # a weight without a constant of its own has none together with the others
        log = joint_constant([INF if part is None else part.log for part in parts])
        out["stacked_certified"] = replace(first, log=log, statement="normscope Proposition W-6")
    if stacked is not None:
        out["stacked_attained"] = stacked
    return out


def _not_listed(model: nn.Module, known: set[str]) -> list[str]:
    """Return the parameters of a model that are not known under any of their names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [same[0] for same in names.values() if known.isdisjoint(same)]


def _messages_on_weights(
    found: WeightMeasurements, samples: list[list[Tensor]], hidden: Collection[str] | None
) -> Iterable[str]:
    weights = found.weights
    for use in [u for u in weights.uses if u.kind == "unknown"][:8]:
        yield f"{weights.leaves[use.leaf].name}: no bound, {use.reason}"
    if any(leaf.effective for leaf in weights.leaves):
        yield "constants of parametrized weights are with respect to the effective weight"
    if not samples:
        yield "without data, only the constants with respect to layer outputs are bounded"
    yield from note_on(hidden)
    unused = _not_listed(found.context.model, weights.parameters(found.context.captured.graph).union(hidden or ()))
    if unused:
        yield f"not used by the output: {listed(unused)}"


def _row(found: WeightMeasurements, leaf: int, stacked: dict[str, dict[str, Value]]) -> WeightRow:
    weights = found.weights
    uses, item = weights.of(leaf), weights.leaves[leaf]
    constants = _constants(found, leaf, uses, over_data=True) if found.samples else {}
    attained = _attained(found, [n.weights[leaf] for n in found.norms])
    one = uses[0] if len(uses) == 1 else None
    graph = found.context.captured.graph
    site = None if one is None else scale_free(graph, weights.program, weights.uses[one], training=True)
    theorem = None if one is None else _theorem(found, one)
    best = min(constants.values(), key=lambda v: v.log, default=None)
    return WeightRow(
        name=item.name,
        shape=item.shape,
        uses=len(uses),
        operation=", ".join(dict.fromkeys(weights.uses[i].kind for i in uses)),
        effective=item.effective,
        outputs=_constants(found, leaf, uses, over_data=False),
        input_norm=_input_norm(found, uses),
        constants=constants,
        attained=attained,
        attained_output=_attained(found, [n.outputs[leaf] for n in found.norms]),
        stacked=stacked.get(item.name, {}),
        printed=theorem,
        printed_is_bound=_decided(theorem, best, attained),
        unnormalized=None if one is None else _unnormalized(found, one),
        scale_free=None if site is None else (site.owner or site.node),
        notes=tuple(_notes(found, leaf, uses, site)),
    )


def _decided(printed: Value | None, best: Value | None, attained: Value | None) -> bool | None:
    """Return whether a printed number is a bound: yes above a proved one, no below an attained one, else ``None``."""
    if printed is None:
        return None
    if best is not None and printed.log >= best.log - 1e-9:  # what is proved has room for rounding in it
        return True
    return False if attained is not None and printed.log < attained.log else None


def _conditions(found: WeightMeasurements, key: str, leaf: int, *, small: bool, data: bool) -> str:
    """Return the name of the domain of a constant."""
    outputs = found.outputs
    floors = key == "variance_floor" and bool(outputs.domains[key].floors)
    needed = any(i in outputs.ranged for i in found.weights.of(leaf)) if small else leaf in outputs.ranged_weights
    ranged = key == "variance_floor" and needed
    if data:
        weight = "at these weights" if small else "all values of this weight"
        return f"these data points, {weight}" + (f" for which {_FLOOR}" if floors and not small else "")
    whole = outputs.domains[key].name
    conditions = [f"whose {_FLOOR}"] * floors + ["within the data's range and norms"] * ranged
    inputs = f"{'inputs' if whole == 'all inputs' else whole} {' and '.join(conditions)}" if conditions else whole
    return f"{inputs}, at these weights" if small else inputs


def _both(key: str, small: float, whole: float | None) -> Iterable[tuple[str, float, bool]]:
    """Yield the constants of a pair worth reporting: name, logarithm, and whether it is for small changes only."""
    if whole is not None:
        yield key, whole, False
    if whole is None or small < whole - 1e-9:
        yield f"{key}_small", small, True


def _constants(found: WeightMeasurements, leaf: int, uses: Sequence[int], *, over_data: bool) -> dict[str, Value]:
    """Return ``||h, y||`` on every domain, y the stacked results of the uses; or ``||h, W||`` over the data."""
    factors = [[sample[i] for i in uses] for sample in found.factors]
    statement = "normscope Proposition W-3" if over_data else "normscope F13"
    assumptions = (EXACT, MEASURED) if over_data else (EXACT,)

    def together(logs: Sequence[float]) -> float:
        return max(weight_constant(logs, f) for f in factors) if over_data else _root_of_squares(logs)

    out: dict[str, Value] = {}
    for key, outputs in found.outputs.constants.items():
        whole = outputs.any_size[leaf]
        small = together([outputs.small[i] for i in uses])
        for name, log, is_small in _both(key, small, None if whole is None else together(whole)):
            domain = _conditions(found, key, leaf, small=is_small, data=over_data)
            out[name] = Value(log, Kind.CERTIFIED, domain, found.context.mode, statement, assumptions)
    return out


def _root_of_squares(logs: Iterable[float]) -> float:
    """Return the logarithm of the root of a sum of squares, from logarithms, rounded up."""
    return log_sum((2 * x for x in logs), INF) / 2


def _input_norm(found: WeightMeasurements, uses: Sequence[int]) -> Value | None:
    """Return the largest norm of ``dW -> (y_u)`` over the data."""
    if not found.samples:
        return None
    log = max(_root_of_squares(sample[i] for i in uses) for sample in found.factors)
    return Value(log, Kind.CERTIFIED, "these data points", None, "normscope Proposition W-2", (MEASURED,))


def _attained(found: WeightMeasurements, values: Sequence[float | None]) -> Value | None:
    """Return the largest of the exact norms that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    domain = "these data points"
    return Value.of(max(known), Kind.LOWER, domain=domain, mode=found.context.mode, statement="normscope F13")


def _theorem(found: WeightMeasurements, index: int) -> Value | None:
    """Return Theorem 12, as it is printed, for one use of a matrix or kernel."""
    use = found.weights.uses[index]
    sizes = [s.met[index].activation for s in found.samples if index in s.met]
    known = [size for size in sizes if size is not None]
    if use.place is None or not known:
        return None
    start = use.place.id
    activation = Value.of(max(known), Kind.ESTIMATE, domain="these data points")
    after = [norm for key, norm in found.layers if key > start]
    return theorem_12(activation, after, [v for key, v in found.normalizers if key >= start])


def _unnormalized(found: WeightMeasurements, index: int) -> Value | None:
    """Return the product of all other norms for a matrix of a plain chain; that of a kernel has another norm."""
    use = found.weights.uses[index]
    if not found.samples or not found.plain or use.place is None or use.kind != "matrix":
        return None
    before = sum(key <= use.place.id for key, _ in found.layers)
    if not before:
        return None
    largest = max(s.input_norm for s in found.samples)
    size = Value.of(largest, Kind.CERTIFIED, domain="these data points", assumptions=(EXACT,))
    return unnormalized_product([norm for _, norm in found.layers], before - 1, size)


def _notes(found: WeightMeasurements, leaf: int, uses: Sequence[int], site: Site | None) -> Iterable[str]:
    weights = found.weights
    yield from dict.fromkeys(weights.uses[i].reason for i in uses if weights.uses[i].reason)
    if weights.leaves[leaf].effective:
        yield "effective weight: constants are with respect to the result of the parametrization"
    if site is not None:
        mode = "" if site.spread is not None else " in training"
        kept = "a bound for every value of the weight is finite only because of eps"
        end = kept if site.eps > 0 else "no bound holds for every value of the weight"
        yield f"scale-invariant{mode}: scaling this weight by c divides the derivative by c; {end}"
    shared = len(uses) > 1 and all(o.any_size[leaf] is None for o in found.outputs.constants.values())
    if shared and not any(weights.uses[i].reason for i in uses):
        yield "used where it changes what it acts on, or in a constant: constants are for small changes"
    if any(math.isinf(log) for o in found.outputs.constants.values() for log in (o.small[i] for i in uses)):
        yield "no finite constant through some operation: see the messages of analyze"
