"""NS602: vectors near zero that weight normalization divides by their length."""

import torch

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, layer_of
from normscope.operators.normalizer import normalizers

#: Length of a vector, relative to the median of its layer, that counts as near zero.
SMALL = 1e-3


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each layer with such vectors."""
    for site in subject.weight_sites():
        stored = subject.captured.tensors.get(site.source)
        undone = normalizers()[site.kind].symmetry
        if undone is None or undone.shift or stored is None or stored.ndim < 1:
            continue
        weight = stored.detach().double()
        each = weight.ndim > 1 and undone.per == "neuron"
        lengths = weight.flatten(1).norm(dim=1) if each else weight.norm().reshape(1)
        typical = float(lengths.median())
        floor = max(SMALL * typical, float(torch.finfo(stored.dtype).eps) ** 2)
        small = lengths <= floor
        if bool(small.any()):
            least = float(lengths.min())
            yield rule.finding(
                layer_of(site),
                f"{int(small.sum())} of {lengths.numel()} vectors that {site.kind} divides by their length are nearly "
                f"zero: smallest {least:.3g}, median {typical:.3g}",
                {"vectors": int(small.sum()), "of": lengths.numel(), "least": least, "median": typical},
                severity=Severity.ERROR if least == 0 else Severity.WARNING,
            )


RULE = Rule(
    code="NS602",
    title="weight-normalized vector near zero",
    certainty=Certainty.PROVED,
    statement="d(g v/||v||)/dv = (g/||v||) (I - v v^T/||v||^2)",
    why="Weight normalization divides a vector by its length. Near zero its gradient grows as 1/||v||, so one step can "
    "turn it in any direction; at zero the weight is NaN.",
    effect="one step can turn the vector in any direction; at zero the weight is NaN",
    fix="scale the vector up: only its direction counts, so v -> c v changes nothing",
    example="model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))\n"
    "model[0].parametrizations.weight.original1.data[0] *= 1e-6",
    good="model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))",
    threads=("pytorch/pytorch/issues/19126",),
)
