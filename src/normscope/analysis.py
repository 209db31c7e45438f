"""``analyze``: from a model and some data to a capacity report. Every step below it is a function of its own."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.guard import untouched
from normscope.core.result import Coverage, LayerResult, NormalizerResult, OpaqueOperation, Result
from normscope.core.value import ALL_INPUTS, Kind, Value
from normscope.graph.capture import Captured, capture
from normscope.graph.fold import fold
from normscope.graph.inputs import guess_inputs, iterate
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.normalizers import OF_WEIGHTS, describe, site_constants
from normscope.lipschitz.printed import lemma_5, theorem_9
from normscope.lipschitz.search import Search, search
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.models.check import check_model
from normscope.operators.program import Program, Site, build_program
from normscope.statistics.survey import Survey, activation_inputs, survey

Progress = Callable[[str], None]
#: Rounding of the logarithms themselves, added to every certified total.
LOG_ROUNDING = 1e-12


@dataclass(frozen=True)
class Options:
    """How ``analyze`` works.

    Attributes:
        mode: what BatchNorm does: ``running`` or ``batch`` (the stacked batch is one input).
        points: data points at which the Jacobian is measured; ``None`` chooses by the size of the network.
        ascent: steps of the search for bad inputs; ``None`` chooses by the size of the network.
        tolerance: relative width aimed at for each norm.
        delta: failure probability of each probabilistic bound.
        without_normalizers: also bound the network with its normalizers removed.
        stacked: also bound the first batch as one stacked input with batch statistics; ``None``: if it is cheap.
        seed: of everything random.
    """

    mode: str = "running"
    points: int | None = None
    ascent: int | None = None
    tolerance: float = 5e-3
    delta: float = 1e-9
    without_normalizers: bool = True
    stacked: bool | None = None
    seed: int = 0


@dataclass(eq=False)
class _Work:
    """What the steps of one analysis share."""

    captured: Captured
    program: Program
    options: Options
    norms: SegmentNorms
    say: Progress
    seen: Survey | None = None
    messages: list[str] = field(default_factory=list)


def analyze(
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
) -> Result:
    """Measure the capacity of a network: Lipschitz constants layer by layer and end to end, each with its guarantee.

    Args:
        model: any PyTorch module; nothing of it is changed.
        data: a tensor, tuple, dict or DataLoader of inputs; without it nothing about data is claimed.
        input_shape: shape of one input without batch axis, where it cannot be guessed and there is no data.
        name: how the model is called in the result.
        options: an :class:`Options`; single fields may be given as keyword arguments instead.
        progress: called with a line of text at each step.
        limit: use at most this many samples of the data.
        device: where the graph is run; by default where the model is.

    Returns:
        The result, with ``to_dict``, ``to_json``, ``save``.

    Raises:
        NormscopeError: a subclass that says what is wrong with the model, its weights or the data.

    >>> result = analyze(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4))
    >>> result.end_to_end["global"].kind.value, result.coverage.understood == result.coverage.ops
    ('certified', True)
    """
    options = Options(**settings) if options is None else options
    if options.mode not in ("running", "batch"):
        raise InputError(f"mode is 'running' or 'batch' (BatchNorm), not {options.mode!r}")
    say = progress or (lambda text: None)
    if not isinstance(model, nn.Module):
        raise InputError(f"a torch.nn.Module is analyzed, not {type(model).__name__}")
    check_model(model)
    with untouched(model):
        say("capturing the graph")
        example = _example(model, data, input_shape, options)
        captured = _on(capture(model, example), device)
        return _analyze(captured, model, data, name or type(model).__name__, options, say, limit)


def _example(model: nn.Module, data: Any, shape: tuple[int, ...] | None, options: Options) -> Any:
    """Return example inputs: the first of the data, or guessed ones."""
    if data is None:
        return guess_inputs(model, shape, batch=2)
    return next(iter(iterate(data, model)))


def _on(captured: Captured, device: str | torch.device | None) -> Captured:
    """Move a captured model to a device."""
    if device is None:
        return captured
    tensors = {k: v.detach().to(device) for k, v in captured.tensors.items()}
    return Captured(captured.graph, tensors, [t.to(device) for t in captured.example], captured.input_names)


def _analyze(
    captured: Captured, model: nn.Module, data: Any, name: str, options: Options, say: Progress, limit: int | None
) -> Result:
    """Carry out the steps on a captured model."""
    if options.mode == "batch":
        graph = with_batch_statistics(captured.graph)
        captured = Captured(graph, captured.tensors, captured.example, captured.input_names)
    effort = Effort(options.tolerance, options.delta, options.seed)
    program = _program(captured, options)
    work = _Work(captured, program, options, SegmentNorms(effort, say), say)
    if data is not None:
        say("statistics of the data")
        work.seen = _survey(work, model, data, limit)
    layers = _layers(work)
    normalizers = _normalizers(work)
    end_to_end = _end_to_end(work, layers, normalizers, model, data)
    return Result(
        model=_model_facts(captured, model, name, options),
        input=_input_facts(captured, program, data is not None),
        coverage=_coverage(program, captured),
        normalizers=tuple(normalizers),
        layers=tuple(layers),
        end_to_end=end_to_end,
        statistics=_statistics(work),
        effect=_effect(normalizers, layers, end_to_end),
        messages=tuple(_messages(work, end_to_end)),
        blocks=tuple(block.to_dict() for block in fold(captured.graph)),
    )


def _couples_samples(captured: Captured) -> bool:
    """Tell whether some normalizer uses statistics over the batch, so that samples are not independent."""
    probe = build_program(captured.graph, captured.tensors, captured.example)
    return any(s.spread is not None and 0 in s.spread.axes and len(s.shape) > 1 for s in probe.sites)


def _program(captured: Captured, options: Options, *, without: bool = False) -> Program:
    """Walk the graph at a batch of one, or at the example's batch where samples are coupled."""
    try:
        coupled = options.mode == "batch" or _couples_samples(captured)
        inputs = captured.example if coupled else captured.at_batch(1)
        return build_program(captured.graph, captured.tensors, inputs, without_normalizers=without)
    except RuntimeError as error:
        raise InputError(f"the graph cannot be run on this input: {error}") from error


def _survey(work: _Work, model: nn.Module, data: Any, limit: int | None) -> Survey:
    """Run over the data once."""
    activations = activation_inputs(work.captured, work.program)
    batches = _batches(work.captured, model, data, limit)
    found = survey(
        work.captured,
        work.program,
        batches,
        activations=activations,
        progress=lambda n: work.say(f"statistics of the data: {n} samples"),
    )
    if found.samples == 0:
        raise InputError("the data is empty: at least one sample is needed (or leave the data out)")
    return found


def _batches(captured: Captured, model: nn.Module, data: Any, limit: int | None) -> Iterable[list[Tensor]]:
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


def _layers(work: _Work) -> list[LayerResult]:
    """Return the norm of every linear layer, alone and with the fixed normalization after it."""
    after = {}
    for before, out in work.program.ends.values():
        if out is not None and out.op is not None and out.op.kind == "diagonal":
            after[before.id] = out
    names = _numbered([e.op.owner or e.op.weight_name for e in work.program.layers])  # type: ignore[union-attr]
    results = []
    for expr, name in zip(work.program.layers, names, strict=True):
        op = expr.op
        if op is None:
            continue
        work.say(f"norm of {name}")
        bounds = work.norms.norm(expr.inputs[0], expr)
        folded = None
        if expr.id in after:
            together = work.norms.norm(expr.inputs[0], after[expr.id])
            folded = Value(together.log_upper, Kind.CERTIFIED, mode=work.options.mode, statement="normscope F1")
        results.append(
            LayerResult(
                name=name,
                kind=op.kind,
                shape=tuple(op.data["weight"].shape),
                upper=Value(bounds.log_upper, Kind.CERTIFIED, statement="normscope norm"),
                lower=Value(bounds.log_lower, Kind.LOWER, statement="normscope norm"),
                folded=folded,
                method=bounds.method,
                probable=None
                if bounds.delta == 0
                else Value(
                    bounds.log_probable, Kind.PROBABILISTIC, statement="kuczynski1992 Theorem 3.2", delta=bounds.delta
                ),
            )
        )
    return results


def _numbered(names: list[str]) -> list[str]:
    """Return names made unique by call number: a module called twice is two layers."""
    total, used = Counter(names), Counter[str]()
    result = []
    for name in names:
        used[name] += 1
        result.append(name if total[name] == 1 else f"{name or 'model'}#{used[name]}")
    return result


def _normalizers(work: _Work) -> list[NormalizerResult]:
    """Return every normalizer with its printed and proved constants."""
    sites = work.program.sites
    names = _numbered([s.owner or s.node for s in sites])
    results = []
    for site, name in zip(sites, names, strict=True):
        seen = None if work.seen is None else work.seen.before_normalizers.get(site.node)
        floor = None if seen is None else seen.floor
        constants = site_constants(site, floor, work.options.mode)
        details = describe(site) | _seen_facts(site, seen)
        if constants.slides is not None:
            details["slides"] = constants.slides.to_dict()
        results.append(
            NormalizerResult(
                name=name,
                kind=site.kind,
                printed=constants.printed,
                printed_is_bound=constants.printed_is_bound,
                proved=constants.proved,
                on_floor=constants.on_floor,
                floor=None if floor is None else float(floor.min()),
                details=details,
            )
        )
    return results


def _seen_facts(site: Site, seen: Any) -> dict[str, Any]:
    """Return what the data showed before a normalizer: variances, extremes, drift from the running statistics."""
    if seen is None or seen.moments.count == 0:
        return {}
    variance = seen.moments.variance
    facts = {
        "seen_variance_min": float(variance.min()),
        "seen_variance_mean": float(variance.mean()),
        "seen_variance_max": float(variance.max()),
        "seen_low": float(seen.moments.low.min()),
        "seen_high": float(seen.moments.high.max()),
        "largest_norm": seen.largest_norm,
    }
    if site.running is not None and site.running[1].numel() == variance.numel():
        mean, running = (t.detach().double().flatten().cpu() for t in site.running)
        spread = (running + site.eps).sqrt()
        facts["drift_mean"] = float(((seen.moments.mean.cpu() - mean).abs() / spread).max())
        ratio = ((variance.cpu() + site.eps) / (running + site.eps)).log()
        facts["drift_log_variance"] = float(ratio.abs().max())
    return facts


def _end_to_end(
    work: _Work, layers: list[LayerResult], normalizers: list[NormalizerResult], model: nn.Module, data: Any
) -> dict[str, Value | None]:
    """Return the end-to-end constants, printed and proved, on every domain."""
    mode = work.options.mode if any(s.kind == "batch_norm" for s in work.program.sites) else None
    weights = [x.upper for x in layers]
    printed_parts = [n.printed for n in normalizers if n.printed is not None]
    out: dict[str, Value | None] = {
        "printed": theorem_9(weights, printed_parts),
        "printed_weights": lemma_5(weights),
    }
    work.say("composing the bound on all inputs")
    everywhere = Composition(work.program, Domain(ALL_INPUTS), work.norms)
    out["global"], out["global_probabilistic"] = _values(everywhere, ALL_INPUTS, mode)
    floor_domain = None
    if work.seen is not None:
        work.say("composing the bound on the variance-floor domain")
        floor_domain, out["variance_floor"], out["variance_floor_probabilistic"] = _on_floor(work, mode)
    else:
        out["variance_floor"] = out["variance_floor_probabilistic"] = None
    out["without_normalizers"] = _without(work) if work.options.without_normalizers else None
    work.say("lower bounds")
    found = _search(work, model, data, floor_domain)
    out["lower"] = _lower(found.everywhere, ALL_INPUTS, mode)
    out["lower_on_floor"] = None if work.seen is None else _lower(found.on_floor, out["variance_floor"].domain, mode)  # type: ignore[union-attr]
    out["jacobian"] = _lower(found.jacobian, "these data points" if data is not None else "random points", mode)
    out["stacked_batch"], out["stacked_batch_lower"] = _stacked(work, model, data)
    return out


def _values(composition: Composition, domain: str, mode: str | None) -> tuple[Value, Value | None]:
    """Return the certified value of a composition, and the probabilistic one where it is smaller."""
    certified, probable, delta = composition.total()
    rest = {"domain": domain, "mode": mode, "statement": "normscope F10", "assumptions": ("exact real arithmetic",)}
    value = Value(_up(certified), Kind.CERTIFIED, **rest)  # type: ignore[arg-type]
    if delta == 0.0 or probable >= certified:
        return value, None
    return value, Value(_up(probable), Kind.PROBABILISTIC, delta=delta, **rest)  # type: ignore[arg-type]


def _up(log: float) -> float:
    """Round a logarithm up by more than the composition can have lost."""
    return log if math.isinf(log) else log + LOG_ROUNDING * max(1.0, abs(log))


def _on_floor(work: _Work, mode: str | None) -> tuple[Domain, Value, Value | None]:
    """Return the bound where every normalizer's spread stays above what the data showed.

    Where that is infinite (gates, attention without a normalizer) the inputs are also kept in the range of the data.
    """
    seen = work.seen
    if seen is None:
        raise InputError("the variance-floor domain needs data")
    floors = seen.floors()
    name = "inputs whose normalizer stds stay above those seen in the data" if floors else ALL_INPUTS
    domain = Domain(name, floors)
    value, probable = _values(Composition(work.program, domain, work.norms), name, mode)
    if math.isinf(value.log) and value.log > 0:
        name = (
            "inputs whose normalizer stds stay above those seen, and " if floors else "inputs "
        ) + "within the data's range and norm"
        domain = Domain(name, floors, tuple(seen.inputs))
        value, probable = _values(Composition(work.program, domain, work.norms), name, mode)
    return domain, value, probable


def _without(work: _Work) -> Value | None:
    """Return the bound of the same network with its normalizers of activations removed."""
    if not any(s.kind not in OF_WEIGHTS for s in work.program.sites):
        return None
    work.say("composing the bound without normalizers")
    program = _program(work.captured, work.options, without=True)
    domain = Domain(ALL_INPUTS)
    value, _ = _values(Composition(program, domain, work.norms), ALL_INPUTS, None)
    if math.isinf(value.log) and value.log > 0 and work.seen is not None:
        name = "inputs within the data's range and norm"
        value, _ = _values(Composition(program, Domain(name, {}, tuple(work.seen.inputs)), work.norms), name, None)
    return value


def _search(work: _Work, model: nn.Module, data: Any, domain: Domain | None) -> Search:
    """Search for inputs with a large Jacobian or quotient."""
    inputs: list[list[Tensor]]
    coupled = work.program.blocks and work.program.blocks[0].shape[:1] != (1,)
    if data is None or coupled:
        inputs = [work.captured.example if coupled else work.captured.at_batch(1)]
    else:
        size = int(work.captured.graph.batch) if work.captured.graph.batch != "dynamic" else 1
        inputs = []
        for batch in _batches(work.captured, model, data, 64):
            inputs += [[t[i : i + size] if t.ndim else t for t in batch] for i in range(0, batch[0].shape[0], size)]
            if len(inputs) >= 64:
                break
    return search(
        work.captured,
        work.program,
        inputs,
        floors={} if domain is None else domain.floors,
        ranges=() if domain is None else domain.ranges,
        points=work.options.points,
        ascent=work.options.ascent,
        seed=work.options.seed,
        progress=work.say,
    )


def _lower(log: float | None, domain: str, mode: str | None) -> Value | None:
    """Return a lower bound as a value."""
    if log is None:
        return None
    return Value(log, Kind.LOWER, domain=domain, mode=mode, statement="normscope Jacobian")


def _stacked(work: _Work, model: nn.Module, data: Any) -> tuple[Value | None, Value | None]:
    """Return the bound of a batch as one stacked input, BatchNorm using its statistics, near that batch."""
    options = work.options
    wanted = options.stacked
    if wanted is None:
        wanted = sum(t.numel() for t in work.captured.tensors.values()) < 2_000_000
    if data is None or not wanted or options.mode == "batch" or not has_batch_norm(work.captured.graph):
        return None, None
    if work.captured.graph.batch != "dynamic":
        return None, None
    batch = next(iter(_batches(work.captured, model, data, 16)))
    if batch[0].shape[0] < 2:
        return None, None
    work.say("composing the bound on a stacked batch")
    graph = with_batch_statistics(work.captured.graph)
    captured = Captured(graph, work.captured.tensors, batch, work.captured.input_names)
    program = build_program(graph, captured.tensors, batch)
    seen = survey(captured, program, [batch], activations={})
    name = f"stacked batches of {batch[0].shape[0]} whose channel stds stay above those of the first batch"
    value, _ = _values(Composition(program, Domain(name, seen.floors()), work.norms), name, "batch")
    found = search(captured, program, [batch], floors=seen.floors(), points=1, ascent=0, seed=options.seed)
    return value, _lower(found.jacobian, name, "batch")


def _coverage(program: Program, captured: Captured) -> Coverage:
    """Return how much was understood."""
    opaque = []
    for expr in program.opaque:
        rule = expr.atom
        opaque.append(OpaqueOperation(rule.name, rule.op, rule.owner, rule.reason, rule.known))
    unknown = {o.name for o in opaque if not o.known}
    total = sum(v.numel() for k, v in captured.tensors.items() if _is_parameter(captured, k))
    lost = {w for name in unknown for w in program.used_weights.get(name, ())}
    missing = sum(captured.tensors[w].numel() for w in lost if w in captured.tensors)
    share = 1.0 if total == 0 else (total - missing) / total
    return Coverage(program.total, program.total - len(unknown), share, total, tuple(opaque))


def _is_parameter(captured: Captured, target: str) -> bool:
    """Tell whether a tensor is a parameter of the model."""
    return any(n.op == "parameter" and n.target == target for n in captured.graph)


def _model_facts(captured: Captured, model: nn.Module, name: str, options: Options) -> dict[str, Any]:
    """Return facts about the model and how it was looked at."""
    from normscope import __version__

    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "front_end": captured.graph.front_end,
        "batch": captured.graph.batch,
        "mode": options.mode,
        "norm": "l2",
        "normscope": __version__,
        "torch": torch.__version__,
        "notes": list(captured.graph.notes),
        "options": {k: getattr(options, k) for k in ("tolerance", "delta", "seed")},
    }


def _input_facts(captured: Captured, program: Program, with_data: bool) -> dict[str, Any]:
    """Return what counts as the network input."""
    return {
        "blocks": [{"name": b.name, "shape": list(b.shape), "kind": b.kind} for b in program.blocks],
        "held_fixed": list(program.fixed),
        "outputs": [name for name, _ in program.outputs],
        "data": with_data,
    }


def _statistics(work: _Work) -> dict[str, Any]:
    """Return what the data showed, or nothing."""
    seen = work.seen
    if seen is None:
        return {}
    owners = {a.atom.name: a.atom.owner for a in work.program.atoms}
    activations = [
        {
            "name": owners.get(name) or name,
            "node": name,
            "variance_mean": float(item.moments.variance.mean()),
            "variance_min": float(item.moments.variance.min()),
            "variance_max": float(item.moments.variance.max()),
            "largest_norm": item.largest_norm,
        }
        for name, item in seen.before_activations.items()
        if item.moments.count
    ]
    inputs = [{"low": r.low, "high": r.high, "largest_norm": r.norm} for r in seen.inputs]
    return {"samples": seen.samples, "inputs": inputs, "before_activations": activations}


def _effect(
    normalizers: list[NormalizerResult], layers: list[LayerResult], end_to_end: dict[str, Value | None]
) -> dict[str, Any]:
    """Return what the normalizers change, as printed and in a form that does not notice rescaled weights."""
    out: dict[str, Any] = {}
    printed = [n.printed for n in normalizers if n.printed is not None]
    if printed:
        out["printed_product"] = {
            "log10": math.fsum(v.log10 for v in printed),
            "kind": "printed",
            "note": "moves by c for every normalizer when the weight before it is scaled by c: it measures the "
            "parametrization, not the function",
        }
    folded = [x for x in layers if x.folded is not None]
    if folded:
        out["folded_product"] = {
            "log10": math.fsum(x.folded.log10 for x in folded if x.folded is not None),
            "weights_log10": math.fsum(x.upper.log10 for x in folded),
            "kind": "certified",
            "note": "product of ||diag(gamma/sigma) W||: unchanged when a weight is rescaled",
        }
    whole, bare = end_to_end.get("variance_floor") or end_to_end["global"], end_to_end.get("without_normalizers")
    if whole is not None and bare is not None and not math.isinf(whole.log) and not math.isinf(bare.log):
        out["change_of_bound"] = {
            "log10": whole.log10 - bare.log10,
            "kind": "estimate",
            "note": "difference of two upper bounds, with and without normalizers; the second moves with the scale of "
            "the weights",
        }
    return out


def _messages(work: _Work, end_to_end: dict[str, Value | None]) -> Iterable[str]:
    """Return what a reader must know before the numbers."""
    yield from work.captured.graph.notes
    yield from work.messages
    unknown = [a.atom for a in work.program.opaque if not a.atom.known]
    for rule in itertools.islice({r.op: r for r in unknown}.values(), 8):
        yield f"{rule.op} in {rule.owner or 'the model'} is not understood, so bounds through it are infinite: {rule.reason}"
    broken = [a.atom for a in work.program.opaque if a.atom.known]
    for rule in itertools.islice({r.op: r for r in broken}.values(), 8):
        yield f"{rule.op} in {rule.owner or 'the model'} is not Lipschitz: {rule.reason}"
    if any(b.kind == "embedding output" for b in work.program.blocks):
        yield "tokens are discrete: constants are with respect to the embedding output"
    if work.program.fixed:
        yield f"held fixed: {', '.join(work.program.fixed)}"
    if not work.program.outputs:
        yield "no output depends on a floating input: every constant is zero"
    if work.seen is None:
        yield "no data was given: nothing is said about data"
