"""``weight_lipschitz``: how much a change of each weight changes the output, exact at data points and certified."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.capacity import begin, checked
from normscope.analysis.context import Progress, Work, captured_on, one_at_a_time
from normscope.analysis.contradiction import uncontradicted_weight
from normscope.analysis.end_to_end import everywhere_of
from normscope.analysis.facts import input_facts, messages, model_facts
from normscope.analysis.options import Options
from normscope.analysis.weight_rows import MEASURED, Found, rows
from normscope.analysis.weight_stack import Stacked, stacked
from normscope.core.value import Kind, Value
from normscope.graph.guard import untouched
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.cost import LARGE, forward_cost
from normscope.lipschitz.weights.bounds import Outputs, input_factors, joint_constant, output_constants
from normscope.lipschitz.weights.pointwise import norms_at
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.lipschitz.weights.samples import meet
from normscope.lipschitz.weights.uses import find_weights
from normscope.operators.nonlinear import INF
from normscope.operators.survey import survey

#: Samples used where nothing else is said.
SAMPLES = 64
#: Points at which Jacobians are measured where nothing else is said, in a small and in a large network.
POINTS, POINTS_LARGE = 4, 1


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
        work = begin(captured, model, data, options, say, limit)
        samples = [] if data is None else one_at_a_time(work, model, data, limit)
        return _measured(work, model, samples, name or type(model).__name__)


def _measured(work: Work, model: nn.Module, samples: list[list[Tensor]], name: str) -> WeightResult:
    """Carry out the steps."""
    captured = work.captured
    coupled = work.stacked is not None
    weights = find_weights(captured.graph, captured.tensors, work.reference)
    work = replace(work, program=weights.program)
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
    batch = stacked(found, samples, coupled=coupled)
    table = [uncontradicted_weight(row, work.messages) for row in rows(found, batch)]
    return WeightResult(
        model=model_facts(captured, model, name, work.options),
        input=input_facts(work, bool(samples)),
        weights=tuple(table),
        jointly=_jointly(found, table, batch),
        samples={"data": len(samples), "jacobians": len(found.norms)},
        residual=max((n.residual for n in found.norms), default=None),
        messages=(*messages(work), *_more(found, samples)),
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


def _jointly(found: Found, table: Sequence[WeightRow], batch: Stacked | None) -> dict[str, Value]:
    """Return the constants in all weights together: ``sqrt(sum L_i^2)``, and the norm of the whole Jacobian."""
    if not found.samples:
        return {}
    log = joint_constant([INF if row.best is None else row.best.log for row in table])
    domain = "these data points, at these weights"
    mode = found.mode
    out = {"certified": Value(log, Kind.CERTIFIED, domain, mode, "normscope Proposition W-6", (MEASURED,))}
    norms = [n.jointly for n in found.norms if n.jointly is not None]
    if norms:
        where = "these data points"
        out["attained"] = Value.of(max(norms), Kind.LOWER, domain=where, mode=mode, statement="normscope F13")
    if batch is not None:
        out |= batch.jointly([row.stacked.get("certified") for row in table])
    return out


def _more(found: Found, samples: list[list[Tensor]]) -> list[str]:
    """Return what a reader must know about the weights."""
    unknown = [u for u in found.weights.uses if u.kind == "unknown"]
    said = [f"{found.weights.leaves[use.leaf].name}: no bound, {use.reason}" for use in unknown[:8]]
    if any(leaf.effective for leaf in found.weights.leaves):
        said.append("constants of parametrized weights are with respect to the effective weight")
    if not samples:
        said.append("without data, only the constants with respect to layer outputs are bounded")
    return said
