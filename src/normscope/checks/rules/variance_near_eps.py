"""NS301: channels whose variance is near or below eps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.checks.rule import Rule
from normscope.checks.subject import Subject, place_of
from normscope.core.finding import Certainty, Finding, Severity
from normscope.operators.site import Site

#: A variance within this factor of eps is near it.
NEAR = 10.0


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each normalizer with such channels: of running variances, or of groups seen in the data."""
    for site in subject.sites():
        for variance, words, certainty in _variances(subject, site):
            low = variance <= NEAR * site.eps
            if site.gamma is not None and site.gamma.numel() == variance.numel():
                low &= site.gamma.detach().double().flatten().to(low.device) != 0  # a closed channel does no harm
            if not bool(low.any()):
                continue
            least = float(variance.min())
            count = int(low.sum())
            yield rule.finding(
                place_of(site),
                f"{count} of {variance.numel()} {words} at most {NEAR:g} eps: least {least:.3g}, eps {site.eps:g}, so "
                f"eps decides the scale and the constant reaches {(max(least, 0.0) + site.eps) ** -0.5:.3g} |gamma|",
                {"channels": count, "of": variance.numel(), "least_variance": least, "eps": site.eps},
                certainty=certainty,
            )
            break


def _variances(subject: Subject, site: Site) -> Iterator[tuple[Tensor, str, Certainty]]:
    """Yield the variances a normalizer divides by: fixed ones, or the least of each group in the data."""
    if site.eps <= 0:
        return
    if site.running is not None:
        yield site.running[1].detach().double().flatten(), "running variances are", Certainty.PROVED
        return
    seen = subject.seen_before(site)
    spread = site.spread
    if seen is not None and seen.floor is not None and spread is not None and spread.size > 1:
        square = seen.floor.double().flatten().square() * spread.factor
        if spread.where == "inside":
            words = "groups of channels have a sample whose variance is"
            yield (
                square,
                words if square.numel() > 1 else "normalizers has a sample or token whose variance is",
                (Certainty.ESTIMATED),
            )


RULE = Rule(
    code="NS301",
    name="variance-near-eps",
    title="variance near or below eps",
    severity=Severity.WARNING,
    certainty=Certainty.PROVED,
    statement="normscope F1",
    why="The constant of a channel is |gamma|/sqrt(variance + eps). Where the variance falls to eps, the channel is "
    "nearly constant on the data, is amplified up to 1/sqrt(eps) times (316 for 1e-5), and is no longer normalized: "
    "a small shift of the data moves it by many standard deviations.",
    fix="remove the dead channel (its unit carries no signal), restart it, or raise eps above the noise",
    example="bn = nn.BatchNorm2d(16); bn.running_var[3] = 1e-8",
    good="bn = nn.BatchNorm2d(16)  # running_var of order one",
    needs=("program",),
    look=_look,
)
