"""NS302: eps too small for the precision it is used in."""

import math

import torch

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.doctor.rules.half_precision_reduction import planned_graph, widened
from normscope.operators.site import Site

#: Slope at nearly equal entries that is worth a remark in float32, that of eps = 1e-10.
STEEP = 1e5


def precision(subject: Subject, site: Site) -> torch.dtype:
    """Return the dtype in which a normalizer computes, or the planned one if it is narrower."""
    own = getattr(torch, subject.graph[site.node].dtype or "float32", torch.float32)
    if not isinstance(own, torch.dtype) or not own.is_floating_point:
        own = torch.float32
    planned = subject.dtype
    if site.written_out:
        graph = planned_graph(subject)
        if graph is not None and widened(graph, site):
            return torch.float32
    return planned if planned is not None and torch.finfo(planned).bits < torch.finfo(own).bits else own


def steepest(site: Site) -> float:
    """Return the largest slope ``1/sqrt(eps)`` (``1/eps`` where eps is not under the root) at zero spread."""
    spread = site.spread
    outside = spread is not None and spread.where != "inside"
    root = site.eps if outside else math.sqrt(site.eps)
    return math.inf if root == 0 else 1.0 / root


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each normalizer whose eps is zero, vanishes, or lets its slope overflow."""
    for site in subject.sites():
        if site.spread is None:
            continue  # fixed statistics: the variance decides, not eps
        dtype = precision(subject, site)
        information, name = torch.finfo(dtype), str(dtype).removeprefix("torch.")
        evidence: dict[str, float | int | str] = {"eps": site.eps, "dtype": name}
        if site.eps <= 0:
            text = f"{site.kind} has eps = 0: a group of equal entries is divided by zero"
        elif site.written_out and site.eps <= information.smallest_normal * information.eps / 2:
            text = (
                f"{site.kind} adds eps = {site.eps:g} in {name}, where it rounds to zero: equal entries are divided by "
                "zero"
            )
        elif steepest(site) > information.max:
            text = (
                f"{site.kind} with eps = {site.eps:g} in {name}: its slope reaches {steepest(site):.3g}, beyond the "
                f"largest {name} ({information.max:g}), so gradients overflow where the spread is small"
            )
            evidence["slope"] = steepest(site)
        elif steepest(site) >= STEEP and dtype is torch.float32:
            text = (
                f"{site.kind} with eps = {site.eps:g} in float32: where entries are nearly equal its slope reaches "
                f"{steepest(site):.3g}, and in half precision eps is zero"
            )
            yield rule.finding(place_of(site), text, evidence | {"slope": steepest(site)}, severity=Severity.INFO)
            continue
        else:
            continue
        own = subject.dtype is None or dtype is not subject.dtype
        yield rule.finding(place_of(site), text, evidence, certainty=Certainty.PROVED if own else Certainty.LIKELY)


RULE = Rule(
    code="NS302",
    title="eps too small for the precision",
    certainty=Certainty.PROVED,
    statement="normscope F3",
    why="eps protects a group of nearly equal entries from division by zero. In half precision, 1e-12 rounds to zero "
    "if it is added by hand; otherwise the slope 1/sqrt(eps) = 1e6 exceeds the largest number (65504): gradients "
    "become infinite, then NaN.",
    effect="gradients become infinite, then NaN, where entries are nearly equal",
    fix="use eps of at least 1e-5 for float16 (1e-6 in float32), or compute the normalizer in float32",
    example="model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64, eps=1e-12)).half()\n"
    "options = {'input_shape': (64,)}",
    good="model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64, eps=1e-5)).half()\n"
    "options = {'input_shape': (64,)}",
    explains=("NS306",),
    threads=("huggingface/diffusers/pull/13316", "nomic-ai/gpt4all/pull/1946", "keras-team/keras/issues/2960"),
)
