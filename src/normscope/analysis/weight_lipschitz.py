"""``weight_lipschitz``: how much a change of each weight changes the output, exact at data points and certified."""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.capacity import begin, checked
from normscope.analysis.context import Progress, Work, captured_on, one_at_a_time
from normscope.analysis.contradiction import uncontradicted_weight
from normscope.analysis.end_to_end import everywhere_of
from normscope.analysis.facts import input_facts, messages, model_facts
from normscope.analysis.options import Options
from normscope.core.value import Kind, Value, log_of, log_sum
from normscope.graph.capture import Captured
from normscope.graph.guard import untouched
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
from normscope.operators.survey import survey

#: Samples used where nothing else is said.
SAMPLES = 64
#: Points at which Jacobians are measured where nothing else is said, in a small and in a large network.
POINTS, POINTS_LARGE = 4, 1
#: Samples of a stacked batch, at most.
BATCH = 16
#: How a bound over data takes the activations.
MEASURED = "activations at the data are evaluated in float64, with a margin for rounding in the last bits"
EXACT = "exact real arithmetic"
_FLOOR = "normalizer stds stay above those seen in the data"


@dataclass(eq=False)
class Found:
    """What the steps found, in the order of the weights and their uses."""

    weights: Weights  #: the weights and their uses
    work: Work  #: what the analysis shares
    domains: dict[str, Domain] = field(default_factory=dict)  #: the domains spoken about
    #: constants with respect to the results of uses, by domain
    outputs: dict[str, Outputs] = field(default_factory=dict)
    #: uses whose constant on the variance floor also needs inputs in the range of the data
    ranged: set[int] = field(default_factory=set)
    ranged_weights: set[int] = field(default_factory=set)  #: weights of which the same holds for changes of any size
    samples: list[Sample] = field(default_factory=list)  #: what the uses met at each sample
    factors: list[list[float]] = field(default_factory=list)  #: logarithms of the input factors at each sample
    norms: list[Norms] = field(default_factory=list)  #: exact norms at the points differentiated
    #: of the first samples stacked into one input, by the name of the weight; empty for all weights together
    stacked: dict[str, dict[str, Value]] = field(default_factory=dict)

    @functools.cached_property
    def layers(self) -> list[tuple[int, Value]]:
        """Return the norms of all layers, by the place of each in the program."""
        norm = self.work.norms.norm
        pairs = [(e.id, norm(e.inputs[0], e).log_upper) for e in self.work.program.layers]
        return [(key, Value(log, Kind.CERTIFIED, statement="normscope norm")) for key, log in pairs]

    @functools.cached_property
    def normalizers(self) -> list[tuple[int, Value]]:
        """Return the constants that the paper prints for normalizers, or proved ones, by their places."""
        work, out = self.work, []
        for site in work.program.sites:
            if not acts_on_weights(site) and site.node in work.program.ends:
                seen = None if work.seen is None else work.seen.before_normalizers.get(site.node)
                known = site_constants(site, None if seen is None else seen.floor, work.options.mode)
                place = work.program.ends[site.node][0].id
                out.append((place, known.printed or known.on_floor or known.proved))
        return out

    @functools.cached_property
    def plain(self) -> bool:
        """Return whether the network is a plain chain."""
        return is_plain_chain(self.work.program)


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
    options = Options.of(options, settings)
    model, data = checked(model, data, options, limit)
    say = progress or (lambda text: None)
    limit = SAMPLES if limit is None else limit
    with untouched(model):
        say("capturing the graph")
        captured = captured_on(model, data, input_shape, device, limit)
        work = begin(captured, options, say, model, data, limit)
        samples = [] if data is None else one_at_a_time(work, limit)
        return _measured(work, samples, name or type(model).__name__)


def _measured(work: Work, samples: list[list[Tensor]], name: str) -> WeightResult:
    """Carry out the steps."""
    captured = work.captured
    weights = find_weights(captured.graph, captured.tensors, work.reference)
    work.program = weights.program
    if work.seen is not None and samples:  # floors that hold in exact arithmetic too
        work.seen.include(survey(captured, work.program, samples, activations={}, dtype=torch.float64))
    found = Found(weights, work)
    whole = everywhere_of(work)
    found.domains["global"] = Domain(whole)
    if work.seen is not None:
        found.domains["variance_floor"] = Domain(whole, work.seen.floors())
    for key, domain in found.domains.items():
        work.say(f"composing the bounds with respect to inner tensors: {key}")
        found.outputs[key] = output_constants(weights, Composition(work.program, domain, work.norms))
    _within_ranges(work, found)
    for i, inputs in enumerate(samples):
        work.say(f"activations: sample {i + 1} of {len(samples)}")
        found.samples.append(meet(captured, weights, inputs))
    on_data = Composition(work.program, _data_domain(work), work.norms)
    found.factors = [input_factors(weights, sample, on_data) for sample in found.samples]
    points = POINTS_LARGE if forward_cost(work.program) > LARGE / 10 else POINTS
    chosen = samples[: work.options.points or points]
    for i, inputs in enumerate(chosen):
        work.say(f"Jacobians in the weights: point {i + 1} of {len(chosen)}")
        found.norms.append(norms_at(captured, weights, inputs, seed=work.options.seed))
    found.stacked = _stacked(found, samples)
    table = [uncontradicted_weight(_row(found, leaf), work.messages) for leaf in range(len(weights.leaves))]
    return WeightResult(
        model=model_facts(work, name),
        input=input_facts(work) | {"data": bool(samples)},
        weights=tuple(table),
        jointly=_jointly(found, table),
        samples={"data": len(samples), "jacobians": len(found.norms)},
        residual=max((n.residual for n in found.norms), default=None),
        messages=(*messages(work), *_messages_on_weights(found, samples)),
    )


def _data_domain(work: Work) -> Domain:
    """Return inputs in the range of the data, on the floors seen."""
    if work.seen is None:
        return Domain()
    return Domain("the data", work.seen.floors(), tuple(work.seen.inputs))


def _within_ranges(work: Work, found: Found) -> None:
    """Where the variance floor alone leaves a constant infinite, keep the inputs in the range of the data as well."""
    outputs = found.outputs.get("variance_floor")
    if outputs is None or max(outputs.small, default=-INF) < INF:
        return
    work.say("composing the bounds with respect to inner tensors: within the range of the data")
    other = output_constants(found.weights, Composition(work.program, _data_domain(work), work.norms))
    found.ranged = {i for i, log in enumerate(outputs.small) if log == INF}
    found.ranged_weights = {i for i, logs in enumerate(outputs.any_size) if logs is not None and INF in logs}
    small = tuple(b if a == INF else a for a, b in zip(outputs.small, other.small, strict=True))
    better = tuple(other.any_size[i] if i in found.ranged_weights else logs for i, logs in enumerate(outputs.any_size))
    found.outputs["variance_floor"] = Outputs(small, better)


def _stacked(found: Found, samples: Sequence[list[Tensor]]) -> dict[str, dict[str, Value]]:
    """Return the constants of the first samples stacked into one input; none where that is already so, or too much.

    Where there is BatchNorm it uses the statistics of this batch.
    """
    work, captured, weights = found.work, found.work.captured, found.weights
    if len(samples) < 2 or not work.stacks_batches:
        return {}
    size = min(len(samples), BATCH)
    batch = [torch.cat(parts) if parts[0].ndim else parts[0] for parts in zip(*samples[:size], strict=True)]
    work.say("a stacked batch")
    mode, outputs = work.mode, found.outputs["variance_floor"].small
    if has_batch_norm(captured.graph) and work.options.mode == "running":
        mode = "batch"
        captured = replace(captured, graph=with_batch_statistics(captured.graph), example=batch)
        weights = find_weights(captured.graph, captured.tensors, batch)
        outputs, factors = _with_batch_statistics(work, captured, weights)
    else:
        factors = [_stacked_factor(found, use, size) for use in range(len(weights.uses))]
    norms = norms_at(captured, weights, batch, seed=work.options.seed)
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
    rows[""] = {"stacked_certified": certified(INF, statement="normscope Proposition W-6")}
    if norms.jointly is not None:
        rows[""]["stacked_attained"] = attained(log_of(norms.jointly))
    return rows


def _stacked_factor(found: Found, use: int, size: int) -> float:
    """Return the logarithm of ``||dW -> dY||`` of one use, Y the results at the first samples together."""
    met = [s.met[use] for s in found.samples[:size] if use in s.met]
    bound = _root_of_squares(f[use] for f in found.factors[:size])
    return bound if len(met) < size else min(bound, log_of(stacked_norm(met) * found.weights.uses[use].copies))


def _with_batch_statistics(work: Work, captured: Captured, weights: Weights) -> tuple[tuple[float, ...], list[float]]:
    """Return the constants with respect to results of uses, and the input factors, at a batch with its statistics."""
    program, batch = weights.program, captured.example
    seen = survey(captured, program, [batch], activations={}, dtype=torch.float64)
    ranges = (r.tightened(b.shape) for r, b in zip(seen.inputs, program.blocks, strict=True))
    composition = Composition(program, Domain("this batch", seen.floors(), tuple(ranges)), work.norms)
    sample = meet(captured, weights, batch)
    factors = input_factors(weights, sample, composition)
    for i, use in enumerate(weights.uses):
        if i in sample.met and before_batch_statistics(captured.graph, weights, use):
            factors[i] = log_of(stacked_norm([sample.met[i]], centred=True) * use.copies)
    return output_constants(weights, composition).small, factors


def _jointly(found: Found, table: Sequence[WeightRow]) -> dict[str, Value]:
    """Return the constants in all weights together: ``sqrt(sum L_i^2)``, and the norm of the whole Jacobian."""
    if not found.samples:
        return {}
    log = joint_constant([INF if row.best is None else row.best.log for row in table])
    domain = "these data points, at these weights"
    out = {"certified": Value(log, Kind.CERTIFIED, domain, found.work.mode, "normscope Proposition W-6", (MEASURED,))}
    attained = _attained(found, [n.jointly for n in found.norms])
    if attained is not None:
        out["attained"] = attained
    if found.stacked:
        parts = [row.stacked.get("certified") for row in table]
        log = joint_constant([INF if part is None else part.log for part in parts])
        out |= found.stacked[""]
        out["stacked_certified"] = replace(out["stacked_certified"], log=log)
    return out


def _messages_on_weights(found: Found, samples: list[list[Tensor]]) -> list[str]:
    """Return what a reader must know about the weights."""
    unknown = [u for u in found.weights.uses if u.kind == "unknown"]
    said = [f"{found.weights.leaves[use.leaf].name}: no bound, {use.reason}" for use in unknown[:8]]
    if any(leaf.effective for leaf in found.weights.leaves):
        said.append("constants of parametrized weights are with respect to the effective weight")
    if not samples:
        said.append("without data, only the constants with respect to layer outputs are bounded")
    return said


def _row(found: Found, leaf: int) -> WeightRow:
    """Return the row of one weight."""
    weights = found.weights
    uses, item = weights.of(leaf), weights.leaves[leaf]
    constants = _constants(found, leaf, uses, over_data=True) if found.samples else {}
    attained = _attained(found, [n.weights[leaf] for n in found.norms])
    one = uses[0] if len(uses) == 1 else None
    graph = found.work.captured.graph
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
        stacked=found.stacked.get(item.name, {}),
        printed=theorem,
        printed_is_bound=_decided(theorem, best, attained),
        unnormalized=None if one is None else _unnormalized(found, one),
        scale_free=None if site is None else (site.owner or site.node),
        notes=tuple(_notes(found, leaf, uses, site)),
    )


def _decided(printed: Value | None, best: Value | None, attained: Value | None) -> bool | None:
    """Return whether the printed number is a bound: at least a proved one, or below an attained one, or undecided."""
    if printed is None:
        return None
    if best is not None and printed.log >= best.log - 1e-9:  # what is proved has room for rounding in it
        return True
    return False if attained is not None and printed.log < attained.log else None


def _conditions(found: Found, key: str, leaf: int, *, small: bool, data: bool) -> str:
    """Return the domain of a constant in words."""
    floors = key == "variance_floor" and bool(found.domains[key].floors)
    needed = any(i in found.ranged for i in found.weights.of(leaf)) if small else leaf in found.ranged_weights
    ranged = key == "variance_floor" and needed
    if data:
        weight = "at these weights" if small else "all values of this weight"
        return f"these data points, {weight}" + (f" for which {_FLOOR}" if floors and not small else "")
    whole = found.domains[key].name
    conditions = [f"whose {_FLOOR}"] * floors + ["within the data's range and norms"] * ranged
    inputs = f"{'inputs' if whole == 'all inputs' else whole} {' and '.join(conditions)}" if conditions else whole
    return f"{inputs}, at these weights" if small else inputs


def _both(key: str, small: float, whole: float | None) -> Iterable[tuple[str, float, bool]]:
    """Yield what is worth reporting of a pair: name, logarithm, and whether it speaks of small changes only."""
    if whole is not None:
        yield key, whole, False
    if whole is None or small < whole - 1e-9:
        yield f"{key}_small", small, True


def _constants(found: Found, leaf: int, uses: Sequence[int], *, over_data: bool) -> dict[str, Value]:
    """Return ``||h, y||`` on every domain, y the stacked results of the uses; or ``||h, W||`` over the data."""
    factors = [[sample[i] for i in uses] for sample in found.factors]
    statement = "normscope Proposition W-3" if over_data else "normscope F13"
    assumptions = (EXACT, MEASURED) if over_data else (EXACT,)

    def together(logs: Sequence[float]) -> float:
        return max(weight_constant(logs, f) for f in factors) if over_data else _root_of_squares(logs)

    out: dict[str, Value] = {}
    for key, outputs in found.outputs.items():
        whole = outputs.any_size[leaf]
        small = together([outputs.small[i] for i in uses])
        for name, log, is_small in _both(key, small, None if whole is None else together(whole)):
            domain = _conditions(found, key, leaf, small=is_small, data=over_data)
            out[name] = Value(log, Kind.CERTIFIED, domain, found.work.mode, statement, assumptions)
    return out


def _root_of_squares(logs: Iterable[float]) -> float:
    """Return the logarithm of the root of a sum of squares, from logarithms, rounded up."""
    return log_sum((2 * x for x in logs), INF) / 2


def _input_norm(found: Found, uses: Sequence[int]) -> Value | None:
    """Return the largest norm of ``dW -> (y_u)`` over the data."""
    if not found.samples:
        return None
    log = max(_root_of_squares(sample[i] for i in uses) for sample in found.factors)
    return Value(log, Kind.CERTIFIED, "these data points", None, "normscope Proposition W-2", (MEASURED,))


def _attained(found: Found, values: Sequence[float | None]) -> Value | None:
    """Return the largest exact norm of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    domain = "these data points"
    return Value.of(max(known), Kind.LOWER, domain=domain, mode=found.work.mode, statement="normscope F13")


def _theorem(found: Found, index: int) -> Value | None:
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


def _unnormalized(found: Found, index: int) -> Value | None:
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


def _notes(found: Found, leaf: int, uses: Sequence[int], site: Site | None) -> Iterable[str]:
    """Return what a reader must know of one weight."""
    weights = found.weights
    yield from dict.fromkeys(weights.uses[i].reason for i in uses if weights.uses[i].reason)
    if weights.leaves[leaf].effective:
        yield "effective weight: constants are with respect to the result of the parametrization"
    if site is not None:
        mode = "" if site.spread is not None else " in training"
        kept = "only eps keeps a bound over all its values finite"
        end = kept if site.eps > 0 else "no bound holds for all its values"
        yield f"scale-invariant{mode}: at c W the derivative is 1/c times that at W, so {end}"
    shared = len(uses) > 1 and all(o.any_size[leaf] is None for o in found.outputs.values())
    if shared and not any(weights.uses[i].reason for i in uses):
        yield "used where it changes what it acts on, or in a constant: constants are for small changes"
    if any(math.isinf(log) for o in found.outputs.values() for log in (o.small[i] for i in uses)):
        yield "no finite constant through some operation: see the messages of analyze"
