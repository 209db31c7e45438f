"""NS303: a scale symmetry that eps breaks."""

import math

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.doctor.structure import NormalizedLayer

#: Share of eps in variance + eps at which the symmetry counts as broken.
SHARE = 0.05
#: Share that is worth a warning.
HALF = 0.5


def _typical(subject: Subject, normalized: NormalizedLayer) -> tuple[float, Certainty, str] | None:
    """Return the variance a normalizer divides by: the median running variance, or the smallest in the data."""
    site = next((s for s in subject.sites() if s.node == normalized.site.node), None)
    if site is None:
        return None
    if site.running is not None:
        return float(site.running[1].detach().double().median()), Certainty.PROVED, "half of its channels"
    variances = subject.least_variances(site)
    return None if variances is None else (float(variances.min()), Certainty.MEASURED, "some sample")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each scale-invariant weight whose normalizer divides mostly by eps."""
    for normalized in subject.structure.normalized_layers:
        typical = _typical(subject, normalized)
        site, op = normalized.site, normalized.layer.op
        if typical is None or op is None:
            continue
        variance, certainty, where = typical
        divisor = variance + site.eps
        part = site.eps / divisor if divisor > 0 else 0.0
        if part < SHARE or not subject.structure.is_scale_invariant(normalized):
            continue
        doubled = math.sqrt(4 * divisor / (4 * variance + site.eps))
        yield rule.finding(
            op.owner,
            f"the scale of {op.weight_name or op.owner} matters: eps is {part:.0%} of what {site.kind} "
            f"{place_of(site)} divides by in {where}; doubling the weight multiplies the output there by {doubled:.3g}",
            {"share": part, "variance": variance, "eps": site.eps, "doubling": doubled},
            certainty=certainty,
            severity=Severity.WARNING if certainty is Certainty.PROVED and part >= HALF else Severity.INFO,
        )


RULE = Rule(
    code="NS303",
    title="scale symmetry broken by eps",
    certainty=Certainty.PROVED,
    statement="N(c x) = N(x) only up to eps/(c^2 var + eps)",
    why="Before a normalizer, the scale of a weight should not matter; the theory of effective learning rates and "
    "weight decay relies on that. Where eps is a large part of the denominator, the scale does matter: weight decay "
    "then shrinks the output, and the network slowly loses the layer.",
    effect="the theory of effective learning rates does not apply; weight decay slowly shuts the layer down",
    fix="rescale the weight (and the running variance) up, lower eps, or reduce weight decay on this layer",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()).eval()\n"
    "model[1].running_var.fill_(1e-6)  # eps is 1e-5",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()).eval()\n"
    "model[1].running_var.fill_(0.5)",
)
