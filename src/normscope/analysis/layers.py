"""Layer by layer: the norm of every linear map, the constants of every normalizer."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from normscope.analysis.channels import hot_channels
from normscope.analysis.context import Work
from normscope.core.attempt import attempt
from normscope.core.names import numbered
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import Kind, Value
from normscope.operators.expression import Expr
from normscope.operators.normalizer import acts_on_weights, site_constants
from normscope.operators.program import Program
from normscope.operators.site import Site, describe

_NO_BOUND, _NOT_PRINTED = Value(math.inf, Kind.CERTIFIED), Value(math.inf, Kind.PRINTED)


def layers(work: Work) -> list[LayerResult]:
    """Return the norm of every linear layer, alone and with the fixed normalization after it."""
    after = {}
    fixed = {s.node for s in work.program.sites if s.running is not None}
    for node, (before, out) in work.program.ends.items():
        if node in fixed and out is not None:
            after[before.id] = out
    results = []
    for expr, name in zip(work.program.layers, layer_names(work.program), strict=True):
        op = expr.op
        if op is None:
            continue
        work.say(f"norm of {name}")
        unknown = LayerResult(name, op.kind, tuple(op.data["weight"].shape), _NO_BOUND, Value(-math.inf, Kind.LOWER))
        step = functools.partial(_layer, work, unknown, expr, after.get(expr.id))
        results.append(attempt(f"the norm of {name}", step, unknown, work.messages))
    return results


def _layer(work: Work, row: LayerResult, expr: Expr, after: Expr | None) -> LayerResult:
    """Return the row of a layer with its norm, and with that together with the normalization after it."""
    source = before_padding(expr)
    bounds = work.norms.norm(source, expr)
    folded = probable = None
    if after is not None:
        log = work.norms.norm(source, after).log_upper
        folded = Value(log, Kind.CERTIFIED, mode=work.options.mode, statement="normscope F1")
    if bounds.delta != 0:
        krylov = "normscope Krylov certificate"
        probable = Value(bounds.log_probable, Kind.PROBABILISTIC, statement=krylov, delta=bounds.delta)
    return replace(
        row,
        upper=Value(bounds.log_upper, Kind.CERTIFIED, statement="normscope norm"),
        lower=Value(bounds.log_lower, Kind.LOWER, statement="normscope norm"),
        folded=folded,
        method=bounds.method,
        probable=probable,
    )


def before_padding(layer: Expr) -> Expr:
    """Return what a layer acts on: the padding of a convolution, where it is an operation of its own, is part of it."""
    source = layer.inputs[0]
    while layer.op is not None and source.op is not None and layer.op.kind == "convolution":
        pads = source.op.data.get("pads") or (source.op.kind == "embedding" and len(source.inputs) == 1)
        if not pads or source.op.owner != layer.op.owner or source.op.bias is not None:
            break
        source = source.inputs[0]
    return source


def layer_names(program: Program) -> list[str]:
    """Return the name of every linear layer of a program."""
    return numbered([e.op.owner or e.op.weight_name for e in program.layers])  # type: ignore[union-attr]


def normalizers(work: Work, layers: Sequence[LayerResult]) -> list[NormalizerResult]:
    """Return every normalizer with its printed and proved constants; one of weights has those of its layer."""
    sites = work.program.sites
    results = []
    for site, name in zip(sites, numbered([s.owner or s.node for s in sites]), strict=True):
        unknown = NormalizerResult(name, site.kind, _NOT_PRINTED, None, _NO_BOUND, details={"eps": site.eps})
        of_weight = acts_on_weights(site) and not site.of_array
        make = functools.partial(_of_weight, layers=layers) if of_weight else _normalizer
        step = functools.partial(make, work, unknown, site)
        results.append(attempt(f"the constant of {name}", step, unknown, work.messages))
    return results


def _normalizer(work: Work, row: NormalizerResult, site: Site) -> NormalizerResult:
    """Return the row of a normalizer with its constants."""
    seen = None if work.seen is None else work.seen.before_normalizers.get(site.node)
    floor = None if seen is None else seen.floor
    constants = site_constants(site, floor, work.options.mode)
    details = describe(site) | _seen_facts(site, seen)
    if constants.slides is not None:
        details["slides"] = constants.slides
    hot = hot_channels(site, seen)
    if hot:
        details["hot_channels"] = hot
    return replace(
        row,
        printed=constants.printed,
        printed_is_bound=constants.printed_is_bound,
        proved=constants.proved,
        on_floor=constants.on_floor,
        floor=None if floor is None else float(floor.min()),
        details=details,
    )


def _of_weight(work: Work, row: NormalizerResult, site: Site, layers: Sequence[LayerResult]) -> NormalizerResult:
    """Return the row of a normalizer of weights: the norm of its layer as it acts, the largest over its uses.

    What it leaves of the weight says nothing of the layer: a convolution is not its reshaped kernel.
    """
    pairs = [(e.op, x.upper) for e, x in zip(work.program.layers, layers, strict=True) if e.op is not None]
    found = [v for op, v in pairs if op.weight_name == site.source] or [v for op, v in pairs if op.owner == site.owner]
    details = describe(site)
    if not found:
        return replace(row, printed=None, details=details)
    proved = replace(max(found, key=lambda v: v.log), statement="the norm of its layer")
    return replace(row, printed=None, proved=proved, details=details)


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
