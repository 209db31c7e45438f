"""Layer by layer: the norm of every linear map, the constants of every normalizer."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.analysis.context import AnalysisContext
from normscope.core.errors import attempt, unless_stopped
from normscope.core.names import numbered
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import Kind, Value
from normscope.operators.expression import Expr
from normscope.operators.normalizer import acts_on_weights, site_constants
from normscope.operators.program import Program
from normscope.operators.site import Site, describe
from normscope.operators.survey import InputStatistics, Survey

#: Cost of the smallest layer, in weights, for estimates of the remaining time.
LEAST_COST = 500_000
_NO_BOUND, _NOT_PRINTED = Value(math.inf, Kind.CERTIFIED), Value(math.inf, Kind.PRINTED)


class TimeLeft:
    """An estimate of the time left, from the share of the costs that is done.

    >>> left = TimeLeft([1.0, 1.0, 2.0], clock=iter([0.0, 10.0]).__next__)
    >>> left.text(1)
    ', about 30 s left'
    """

    def __init__(self, costs: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self.costs = list(costs)
        self._clock, self._start = clock, clock()

    def text(self, done: int) -> str:
        """Return the estimate after some steps as the end of a line; nothing below two seconds."""
        spent, total = sum(self.costs[:done]), sum(self.costs)
        seconds = (self._clock() - self._start) * (total / spent - 1.0) if spent else 0.0
        return "" if seconds < 2 else f", about {seconds:.0f} s left"


@dataclass(frozen=True, eq=False)
class LayerTables:
    """The tables of a result that have one row for each layer or normalizer."""

    layers: list[LayerResult]  #: the norm of every linear layer
    normalizers: list[NormalizerResult]  #: the constants of every normalizer


def layer_tables(context: AnalysisContext, seen: Survey | None, messages: list[str]) -> LayerTables:
    """Return the norm of every linear layer and the constants of every normalizer, on the variance floors seen."""
    layers = layer_rows(context, messages)
    return LayerTables(layers, normalizer_rows(context, seen, layers, messages))


def layer_rows(context: AnalysisContext, messages: list[str]) -> list[LayerResult]:
    """Return the norm of every linear layer, alone and with the fixed normalization after it."""
    after = fixed_normalization(context.program)
    results: list[LayerResult] = []
    left = TimeLeft([LEAST_COST + x.op.data["weight"].numel() for x in context.program.layers if x.op is not None])
    for expr, name in zip(context.program.layers, layer_names(context.program), strict=True):
        op = expr.op
        if op is None:
            continue
        context.say(f"norms of layers: {name}, {len(results) + 1} of {len(left.costs)}{left.text(len(results))}")
        unknown = LayerResult(name, op.kind, tuple(op.data["weight"].shape), _NO_BOUND, Value(-math.inf, Kind.LOWER))
        step = functools.partial(_layer, context, unknown, expr, after.get(expr.id, ("", None))[1])
        results.append(unless_stopped(f"the norm of {name}", step, unknown, messages))
    return results


def _layer(context: AnalysisContext, row: LayerResult, expr: Expr, after: Expr | None) -> LayerResult:
    """Return the row of a layer with its norm, alone and together with the normalization after it."""
    source = before_padding(expr)
    bounds = context.norms.norm(source, expr)
    folded = probable = None
    if after is not None:
        log = context.norms.norm(source, after).log_upper
        folded = Value(log, Kind.CERTIFIED, mode=context.options.mode, statement="normscope F1")
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


def fixed_normalization(program: Program) -> dict[int, tuple[str, Expr]]:
    """Return node and output of every normalizer with fixed statistics, by the id of its input."""
    fixed = {s.node for s in program.sites if s.running is not None}
    ends = program.ends.items()
    return {before.id: (node, out) for node, (before, out) in ends if node in fixed and out is not None}


def before_padding(layer: Expr) -> Expr:
    """Return the input of a layer; a padding that is an operation of its own counts as part of its convolution."""
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


def normalizer_rows(
    context: AnalysisContext, seen: Survey | None, layers: list[LayerResult], messages: list[str]
) -> list[NormalizerResult]:
    """Return every normalizer with its printed and proved constants; one of weights has those of its layer."""
    sites = context.program.sites
    results = []
    for site, name in zip(sites, numbered([s.owner or s.node for s in sites]), strict=True):
        unknown = NormalizerResult(name, site.kind, _NOT_PRINTED, None, _NO_BOUND, details={"eps": site.eps})
        if acts_on_weights(site) and not site.of_array:
            step = functools.partial(_of_weight, context.program, layers, unknown, site)
        else:
            before = None if seen is None else seen.before_normalizers.get(site.node)
            step = functools.partial(_normalizer, unknown, site, before, context.options.mode)
        results.append(attempt(f"the constant of {name}", step, unknown, messages))
    return results


def _normalizer(row: NormalizerResult, site: Site, seen: InputStatistics | None, mode: str) -> NormalizerResult:
    floor = None if seen is None else seen.floor
    constants = site_constants(site, floor, mode)
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


def _of_weight(program: Program, layers: list[LayerResult], row: NormalizerResult, site: Site) -> NormalizerResult:
    """Return the row of a normalizer of weights: the norm of its layer as it acts, the largest over its uses.

    What it leaves of the weight says nothing about the layer: a convolution is not its reshaped kernel.
    """
    pairs = [(e.op, x.upper) for e, x in zip(program.layers, layers, strict=True) if e.op is not None]
    found = [v for op, v in pairs if op.weight_name == site.source] or [v for op, v in pairs if op.owner == site.owner]
    details = describe(site)
    if not found:
        return replace(row, printed=None, details=details)
    proved = replace(max(found, key=lambda v: v.log), statement="the norm of its layer")
    return replace(row, printed=None, proved=proved, details=details)


def _seen_facts(site: Site, seen: InputStatistics | None) -> dict[str, Any]:
    """Return statistics of the data before a normalizer: variances, extremes, drift from the running statistics."""
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


#: A channel is hot above this many times the median; and most channels that are listed for a normalizer.
HOT, KEPT = 3.0, 5


def hot_channels(site: Site, seen: InputStatistics | None) -> list[dict[str, Any]]:
    """Return the channels of a normalizer that stand out, hottest first.

    The factor of channel c is ``|gamma_c| / sqrt(s_c^2 + eps)``, s the running standard deviation, or else the least
    one the data showed, or zero. Its variance is that of the data before the normalizer, if there is data. Both are
    also given as ``..._over_median``.

    >>> site = Site("n", "x", "bn", "batch_norm", gamma=torch.tensor([1.0, 1.0, 8.0]), shape=(1, 3), eps=1.0,
    ...     running=(torch.zeros(3), torch.zeros(3)))
    >>> hot_channels(site, None)
    [{'channel': 2, 'factor': 8.0, 'factor_over_median': 8.0}]
    """
    variance = None if seen is None or seen.moments.count == 0 else seen.moments.variance.flatten().cpu()
    given = {"factor": _factors(site, seen), "variance": variance}
    columns = {key: t for key, t in given.items() if t is not None}
    if len({t.numel() for t in columns.values()}) > 1:  # the data was seen along another axis than the scale acts on
        del columns["variance"]
    ratios = {key: _over_median(t) for key, t in columns.items() if t.numel() > 1}
    if not ratios:
        return []
    heat = torch.stack(list(ratios.values())).amax(0)
    rows: list[dict[str, Any]] = []
    for channel in heat.argsort(descending=True, stable=True)[:KEPT].tolist():
        if float(heat[channel]) > HOT:
            row: dict[str, Any] = {"channel": channel}
            for key, ratio in ratios.items():
                row |= {key: float(columns[key][channel]), f"{key}_over_median": float(ratio[channel])}
            rows.append(row)
    return rows


def _factors(site: Site, seen: InputStatistics | None) -> Tensor | None:
    """Return the factor of each channel, or ``None`` if there are no channels to tell apart."""
    gamma = None if site.gamma is None else site.gamma.detach().double().flatten().abs().cpu()
    if site.running is not None:
        variance = site.running[1].detach().double().flatten().cpu()
        scale = torch.ones_like(variance) if gamma is None else gamma
        return scale / (variance + site.eps).sqrt() if scale.numel() == variance.numel() else None
    if gamma is None or gamma.numel() < 2:
        return None
    floor = torch.zeros(1) if seen is None or seen.floor is None else seen.floor
    floor = floor.detach().double().flatten().cpu()
    if gamma.numel() % floor.numel():
        return gamma
    spread = floor.repeat_interleave(gamma.numel() // floor.numel())
    return gamma / (spread.square() + site.eps).sqrt() if site.eps > 0 or bool((spread > 0).all()) else gamma


def _over_median(values: Tensor) -> Tensor:
    """Return values divided by their median; a positive value over a zero median is infinite.

    >>> _over_median(torch.tensor([0.0, 0.0, 1.0])).tolist()
    [1.0, 1.0, inf]
    """
    median = values.median()
    if float(median) > 0.0:
        return values / median
    return torch.where(values > median, math.inf, 1.0)
