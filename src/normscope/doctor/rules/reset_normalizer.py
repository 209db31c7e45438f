"""NS606: a normalizer that was reset since an earlier checkpoint."""

from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of
from normscope.doctor.rules.initial_statistics import are_new
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.site import Site

#: Smallest ratio of two eps that counts as a change.
OTHER = 1.5


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield normalizers whose scale, shift or statistics have their initial values again, or whose eps changed."""
    if not subject.earlier.differs:
        return  # the values were folded into another layer
    old = _by_place([s for s in subject.earlier.sites if not acts_on_weights(s)])
    for place, sites in _by_place(subject.sites()).items():
        for was, site in zip(old.get(place, ()), sites, strict=False):
            lost = list(_lost(was, site)) if was.kind == site.kind else []
            if lost:
                yield rule.finding(
                    place,
                    f"since the earlier checkpoint {', and '.join(lost)}; the outputs are off by "
                    f"{subject.earlier.distance:.0%} of their size",
                    {"lost": len(lost), "distance": subject.earlier.distance},
                )


def _by_place(sites: list[Site]) -> dict[str, list[Site]]:
    """Return normalizers by place, in the order of their calls."""
    found: dict[str, list[Site]] = {}
    for site in sites:
        found.setdefault(place_of(site), []).append(site)
    return found


def _lost(was: Site, site: Site) -> Iterator[str]:
    if not _is(was.gamma, 1.0) and _is(site.gamma, 1.0):
        yield "its scale was reset to one"
    if not _is(was.beta, 0.0) and _is(site.beta, 0.0):
        yield "its shift was reset to zero"
    if was.running is not None and site.running is not None and not are_new(*was.running) and are_new(*site.running):
        yield "its running statistics were reset to mean 0 and variance 1"
    if max(was.eps, site.eps) > OTHER * min(was.eps, site.eps):
        yield f"its eps changed from {was.eps:g} to {site.eps:g}"


def _is(value: Tensor | None, first: float) -> bool:
    """Return whether a scale or shift has its initial value or does not exist."""
    return value is None or bool((value.detach() == torch.tensor(first, dtype=value.dtype)).all())


RULE = Rule(
    code="NS606",
    title="normalizer reset since the earlier checkpoint",
    certainty=Certainty.PROVED,
    why="A converter whose list of names misses one, strict=False, or a rebuilt layer leaves a scale of one, a shift "
    "of zero or new statistics where there were others, or another framework's eps. Every shape fits, so there is no "
    "error. Comparing with an earlier checkpoint shows it. Nothing is reported if the outputs are unchanged: then the "
    "values were folded into another layer.",
    effect="the network no longer computes the function it was trained for",
    fix="copy every parameter, buffer and eps of the normalizer from the earlier checkpoint, and compare outputs",
    example="import copy\n\n"
    "model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))\n"
    "nn.init.normal_(model[1].bias)\n"
    "options = {'before': copy.deepcopy(model)}\n"
    "nn.init.zeros_(model[1].bias)  # its key was missing",
    good="import copy\n\n"
    "model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))\n"
    "nn.init.normal_(model[1].bias)\n"
    "options = {'before': copy.deepcopy(model)}",
    needs=("earlier graph",),
    threads=("baidu-baige/LoongForge/pull/109", "qqwweee/keras-yolo3/issues/451"),
    explains=("NS203", "NS205", "NS216", "NS301"),
)
