"""NS203: running statistics that no longer match the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject, place_of
from normscope.operators.site import Site

#: Shift of a mean in running standard deviations, and factor of a variance, that are too much; and how many standard
#: errors of the sample are allowed on top.
SHIFT, FACTOR, ERRORS = 0.5, 2.0, 4.0
#: Fewer samples say nothing.
FEWEST = 16


@dataclass(frozen=True)
class Drift:
    """How far a channel's statistics are from the running ones.

    Attributes:
        channels: how many channels are too far.
        of: how many there are.
        shift: largest shift of a mean, in running standard deviations.
        factor: largest factor of a variance, up or down.
    """

    channels: int
    of: int
    shift: float
    factor: float


def drift(mean: Tensor, variance: Tensor, running: tuple[Tensor, Tensor], eps: float, samples: int) -> Drift:
    """Compare statistics of data with running ones, channel by channel.

    ``|m - mu| / sqrt(v + eps)`` and ``|log((s^2 + eps)/(v + eps))|``, against limits widened by four standard errors of
    a sample of this size (``1/sqrt(n)`` and ``sqrt(2/n)``; the places of one sample are not counted as independent).

    >>> import torch
    >>> zero, one = torch.zeros(2), torch.ones(2)
    >>> drift(torch.tensor([0.0, 9.0]), one, (zero, one), 0.0, 100).channels
    1
    """
    mu, v = (t.detach().double().flatten().cpu() for t in running)
    shift = (mean.cpu() - mu).abs() / (v + eps).sqrt()
    log = ((variance.cpu() + eps) / (v + eps)).log().abs()
    far = (shift > SHIFT + ERRORS / math.sqrt(samples)) | (log > math.log(FACTOR) + ERRORS * math.sqrt(2 / samples))
    return Drift(int(far.sum()), far.numel(), float(shift.max()), float(log.max().exp()))


def _initial(site: Site) -> bool:
    """Tell whether running statistics are exactly those of a new layer."""
    return site.running is not None and bool((site.running[0] == 0).all()) and bool((site.running[1] == 1).all())


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield one finding at the first normalizer that drifted, and one if none was ever updated."""
    sites = [s for s in subject.sites() if s.running is not None]
    new = [s for s in sites if _initial(s)]
    if new:
        yield rule.finding(
            place_of(new[0]),
            f"{len(new)} of {len(sites)} running statistics are those of a new layer (mean 0, variance 1): the model "
            "was never trained, or never with them",
            {"sites": len(new), "of": len(sites)},
            severity=Severity.INFO,
            certainty=Certainty.PROVED,
            fix="train, load weights, or run the training data through the model in train mode once",
        )
    samples = 0 if subject.seen is None else subject.seen.samples
    if samples < FEWEST:
        return
    found: list[tuple[Site, Drift]] = []
    for site in sites:
        seen = subject.seen_before(site)
        if site in new or seen is None or site.running is None or seen.moments.mean.numel() != site.running[0].numel():
            continue
        far = drift(seen.moments.mean, seen.moments.variance, site.running, site.eps, samples)
        if far.channels:
            found.append((site, far))
    if found:
        site, first = found[0]
        worst = max(found, key=lambda pair: max(pair[1].shift, pair[1].factor))
        yield rule.finding(
            place_of(site),
            f"running statistics do not match the data from here on: {first.channels} of {first.of} channels, "
            f"{len(found)} of {len(sites)} normalizers; worst {place_of(worst[0])}: a mean off by {worst[1].shift:.3g} "
            f"standard deviations, a variance by a factor {worst[1].factor:.3g}",
            {
                "normalizers": len(found),
                "channels": first.channels,
                "largest_shift": worst[1].shift,
                "largest_factor": worst[1].factor,
                "samples": samples,
            },
        )


RULE = Rule(
    code="NS203",
    name="drifted-statistics",
    title="running statistics do not match the data",
    severity=Severity.WARNING,
    certainty=Certainty.ESTIMATED,
    statement="normscope F1",
    why="In evaluation BatchNorm divides by what it remembers. If the data is distributed otherwise (other "
    "preprocessing, another domain, weights changed after the last training batch), channels arrive shifted and "
    "scaled, and the error grows from layer to layer.",
    fix="check the preprocessing (--normalize), or estimate the statistics anew: run training data in train mode with "
    "momentum=None",
    example="normscope.check(trained, data=images_of_0_to_255)",
    good="normscope.check(trained, data=images_as_in_training)",
    needs=("program", "data"),
    look=_look,
)
