"""NS203: running statistics that do not match the data."""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.doctor.modules import listed_channels
from normscope.doctor.probe import ChannelStatistics
from normscope.doctor.rule import Certainty, Finding, Findings, Rule, RunHistory, Subject, place_of
from normscope.doctor.rules.initial_statistics import are_new
from normscope.operators.normalizer import normalizers
from normscope.operators.site import Site

#: Limits for many channels: shift of a mean in running standard deviations, factor of a variance; for a single channel;
#: and the number of standard errors of the sample that are allowed in addition.
SHIFT, FACTOR, ALONE, ERRORS = 0.5, 2.0, 16.0, 4.0
#: Shares of channels that count as many and as most, and the fewest samples to judge by, unless they are images.
MANY, MOST, FEWEST = 0.25, 0.5, 16
#: Running statistics have settled when at most this share of their initial values is left.
FORGOTTEN = 0.05
#: Consecutive probes of a run that must agree.
PROBES = 3


@dataclass(frozen=True)
class Drift:
    """How far the statistics of data are from running statistics."""

    channels: tuple[int, ...]  #: the channels that are too far off
    of: int  #: how many there are
    shift: float  #: largest shift of a mean, in running standard deviations
    factor: float  #: largest factor of a variance, up or down
    up: bool = True  #: whether variances of the data are mostly larger


def drift(
    seen: ChannelStatistics,
    running: tuple[Tensor, Tensor],
    eps: float,
    samples: int,
    *,
    settled: bool = True,
    gamma: Tensor | None = None,
) -> Drift:
    """Compare the statistics of data with running statistics, channel by channel and as a whole.

    ``|m - mu| / sqrt(v + eps)`` and ``|log((s^2 + eps)/(v + eps))|``, against limits widened by four standard errors of
    a sample of this size (``1/sqrt(n)`` and ``sqrt(2/n)``; the places of one sample are not counted as independent).
    If only few channels are off, only those off by a factor of :data:`ALONE` count. With :data:`FEWEST` samples or more
    and statistics that have settled, the errors are those measured from sample to sample, reduced to as little as a
    third if all variances are off in one direction; then more than half of the channels must be off in the same way.
    Channels with a scale of zero are ignored.

    >>> import torch
    >>> zero, one = torch.zeros(2), torch.ones(2)
    >>> drift(ChannelStatistics(torch.tensor([0.0, 9.0]), one, zero, zero), (zero, one), 0.0, 100).channels
    (1,)
    """
    shift, log, deviation = _distances(seen.mean, seen.variance, running, eps)
    used = torch.ones_like(log, dtype=torch.bool)
    if gamma is not None and gamma.numel() == used.numel():
        used = gamma.detach().flatten().cpu() != 0
    more, wider = ERRORS / math.sqrt(samples), ERRORS * math.sqrt(2 / samples)
    far = ((shift > SHIFT + more) | (log.abs() > math.log(FACTOR) + wider)) & used
    if samples >= FEWEST and settled and bool(used.any()):
        error = ERRORS * seen.variance_error.cpu() / (seen.variance.cpu() + eps).clamp_min(1e-300)
        if bool((log[used] > 0).all()) or bool((log[used] < 0).all()):
            error = error / math.sqrt(min(int(used.sum()), 9))
        limit = math.log(FACTOR) + error
        aside = shift > SHIFT + ERRORS * seen.mean_error.cpu() / deviation
        for sharp in (aside & used, (log > limit) & used, (log < -limit) & used):
            far = far | sharp if int(sharp.sum()) > MOST * int(used.sum()) else far
    if int(far.sum()) < MANY * int(used.sum()):
        spread = seen.variance.cpu() > 0  # one channel that is constant on the data says nothing about statistics
        far = ((shift > math.sqrt(ALONE) + more) | ((log.abs() > math.log(ALONE) + wider) & spread)) & used
    which = tuple(far.nonzero().flatten().tolist())
    largest = float(log[far].abs().max().exp()) if which else 1.0
    return Drift(which, far.numel(), float(shift[far].max()) if which else 0.0, largest, bool(log.median() >= 0))


def has_settled(bn: nn.Module | None) -> bool:
    """Return whether running statistics have forgotten their initial values, by the number of batches counted.

    >>> bn = nn.BatchNorm1d(2)
    >>> has_settled(bn)  # no batch was counted: they are new, or were copied
    True
    >>> _ = bn.num_batches_tracked.fill_(3)
    >>> has_settled(bn)  # 0.9^3 of the initial values is left
    False
    """
    counted, momentum = getattr(bn, "num_batches_tracked", None), getattr(bn, "momentum", None)
    if not isinstance(counted, Tensor) or not isinstance(momentum, float) or int(counted) == 0:
        return True
    return (1 - momentum) ** int(counted) < FORGOTTEN


def _is_learned(module: nn.Module | None) -> bool:
    """Return whether the mean or the deviation of a module is a trained parameter."""
    own = [] if module is None else module.named_parameters(recurse=False)
    return any(p.requires_grad and re.search(r"mean|std|sd|sigma|dev", name) is not None for name, p in own)


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every normalizer whose own statistics do not match the data."""
    samples = subject.batched
    modules = dict(subject.model.named_modules())
    sites = [s for s in subject.sites() if s.running is not None]
    for site in sites:
        found = subject.batch_statistics.get(site.node)
        module = modules.get(place_of(site))
        if found is None or site.running is None or found.mean.numel() != site.running[0].numel():
            continue
        if are_new(*site.running) or (not normalizers()[site.kind].estimated and _is_learned(module)):
            continue  # NS205 reports new statistics; learned ones are not estimated
        if samples < FEWEST and not (len(site.shape) > 3 or isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d)):
            continue
        if subject.calls[subject.first_path(place_of(site))] > 1:
            continue  # shared by several calls, which NS213 reports
        far = drift(found, site.running, site.eps, samples, settled=has_settled(module), gamma=subject.scale_of(site))
        if far.channels:
            yield _finding(rule, subject, site, far, first=site is sites[0])


def _finding(rule: Rule, subject: Subject, site: Site, far: Drift, *, first: bool) -> Finding:
    """Return the finding for one normalizer, with a likely cause."""
    every = len(far.channels) == far.of
    which = "all channels" if every else f"{len(far.channels)} of {far.of} channels ({listed_channels(far.channels)})"
    means = f"a mean is off by up to {far.shift:.3g} standard deviations"
    widths = f"a variance is {'above' if far.up else 'below'} the running one by up to a factor of {far.factor:.3g}"
    if first and subject.seen is not None and subject.seen.inputs:
        inside = subject.seen.inputs[0]
        cause = (
            f"the inputs range from {inside.low:.3g} to {inside.high:.3g}: were they scaled as in training? If so, the "
            "layer before was changed after the statistics were estimated"
        )
    else:
        cause = "the layers before were changed after the statistics were estimated, or the statistics were changed"
    return rule.finding(
        place_of(site),
        f"the running statistics of {which} do not match the data: {means}, {widths}; {cause}",
        {
            "channels": len(far.channels),
            "of": far.of,
            "first_channel": far.channels[0],
            "largest_shift": far.shift,
            "largest_factor": far.factor,
            "samples": subject.batched,
        },
    )


def channel_drift(mean: Tensor, variance: Tensor, running: tuple[Tensor, Tensor], eps: float) -> float:
    """Return the drift of the median channel: the larger of its shift and the logarithm of its factor.

    >>> import torch
    >>> zero, one = torch.zeros(3), torch.ones(3)
    >>> channel_drift(torch.tensor([0.0, 2.0, 9.0]), one, (zero, one), 0.0)
    2.0
    """
    shift, log, _ = _distances(mean, variance, running, eps)
    return float(torch.maximum(shift, log.abs()).median())


def _distances(
    mean: Tensor, variance: Tensor, running: tuple[Tensor, Tensor], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return shifts in running standard deviations, logarithms of variance ratios, and the running deviations."""
    mu, v = (t.detach().double().flatten().cpu() for t in running)
    v = v.clamp_min(0.0) + eps
    return (mean.double().cpu() - mu).abs() / v.sqrt(), ((variance.double().cpu() + eps) / v).log(), v.sqrt()


def check_history(rule: Rule, history: RunHistory) -> Findings:
    """Yield the normalizers whose median channel was off at the last three probes."""
    limit = math.log(FACTOR) + ERRORS * math.sqrt(2 / max(history.samples, 1))
    for metric in history.metrics("drift"):
        recent = [drift for step, drift in metric.points if step > 0][-PROBES:]
        if len(recent) == PROBES and min(recent) > limit:
            yield rule.finding(
                metric.place,
                f"since step {metric.since(limit)} its running statistics do not match those of the batch: at step "
                f"{metric.steps[-1]} half of its channels are off by {recent[-1]:.3g} or more (shift of the mean in "
                "standard deviations, or log of the variance ratio)",
                {"drift": recent[-1], "limit": limit, "step": int(metric.steps[-1])},
                fix="lower the learning rate or raise momentum so that the statistics keep up, and check that the "
                "layer is in train mode; before evaluation, estimate them again with momentum=None",
            )


_NET = (
    "model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))\n"
    "for _ in range(50):\n"
    "    model(torch.randn(64, 8))\n"
    "model.eval()\n"
    "data = {}"
)

RULE = Rule(
    code="NS203",
    title="running statistics do not match the data",
    certainty=Certainty.MEASURED,
    statement="normscope F1",
    why="In evaluation, BatchNorm divides by its running statistics. Each layer is compared with the batch while the "
    "layers before it normalize by the batch, so that a layer is reported only for its own mismatch. At the first "
    "layer the inputs are the likely cause (different preprocessing), at a later one its statistics or the weights "
    "before it (an average without buffers, weights changed after the last batch, a conversion). Normalizers written "
    "by hand with their own buffers, and inputs standardized by a mean and a standard deviation, are checked too.",
    effect="evaluation is worse than training, on the same data",
    fix="check the preprocessing (--normalize), or estimate the statistics again: run training data in train mode with "
    "momentum=None",
    example=_NET.format("255 * torch.rand(64, 8)  # other preprocessing than in training"),
    good=_NET.format("torch.randn(64, 8)"),
    needs=("program", "data", "samples"),
    metrics=("drift",),
    threads=(
        "apache/mxnet/issues/12063",
        "fadel/pytorch_ema/issues/13",
        "sha2nkt/deco/issues/22",
        "bonlime/pytorch-tools/issues/97",
        "fastai/fastai/issues/3370",
    ),
    explains=("NS601", "NS301", "NS303", "NS501"),
)
