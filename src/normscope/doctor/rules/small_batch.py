"""NS201: a batch too small for BatchNorm."""

import math

from torch import nn

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.operators.normalizer import couples_samples

#: With fewer samples, or values per channel, the statistics of a batch are mostly noise.
SAMPLES = 8
VALUES = 16


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the worst BatchNorm for the batch size, and a last batch that cannot be normalized at all."""
    size = subject.batch_size or 0
    synchronized = {path for path, bn in batch_norms(subject.model) if isinstance(bn, nn.SyncBatchNorm)}
    places = {
        place_of(s): math.prod(s.shape[2:])
        for s in subject.sites()
        if couples_samples(s.kind) and place_of(s) not in synchronized
    }
    if not places:
        return
    worst = min(places, key=lambda p: places[p])
    values = size * places[worst]
    evidence: dict[str, float | int | str] = {"batch_size": size, "values_per_channel": values, "sites": len(places)}
    if values == 1:
        text = "BatchNorm sees one value per channel: training raises an error (or outputs only the shift)"
        yield rule.finding(worst, text, evidence, severity=Severity.ERROR, certainty=Certainty.PROVED)
    elif size < SAMPLES or values < VALUES:
        noise = math.sqrt(2.0 / (values - 1))
        yield rule.finding(
            worst,
            f"BatchNorm estimates a variance from {values} values of {size} samples: a relative error of about "
            f"{noise:.0%} or more from batch to batch",
            evidence | {"relative_error": noise},
        )
    rest = 0 if subject.samples is None or not size else subject.samples[0] % size
    if subject.samples is not None and not subject.samples[1] and rest * places[worst] == 1:
        yield rule.finding(
            worst,
            f"the last of the batches has one sample ({subject.samples[0]} samples in batches of {size}): BatchNorm "
            "raises an error there in training",
            {"samples": subject.samples[0], "batch_size": size},
            severity=Severity.ERROR,
            certainty=Certainty.PROVED,
            fix="build the loader with drop_last=True",
        )


RULE = Rule(
    code="NS201",
    title="batch too small for BatchNorm",
    certainty=Certainty.MEASURED,
    statement="the variance of m normal values has the relative standard error sqrt(2/(m - 1))",
    why="BatchNorm divides by the variance of the batch. Estimated from few values it is noise: training and "
    "evaluation then see different networks, and the noise grows with every layer. Values of one image are not "
    "independent, so large feature maps help less than samples. Accumulating the gradients of several batches does not "
    "help: what counts is the size of one forward pass.",
    effect="training is noisy, and evaluation uses a different network than training",
    fix="use a larger batch, SyncBatchNorm across devices, or GroupNorm or LayerNorm, which do not use the batch",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))\noptions = {'batch_size': 2}",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))\noptions = {'batch_size': 64}",
    needs=("program", "batch size"),
    not_for=("inference",),
    threads=("fastai/fastai/issues/1352", "ultralytics/yolov5/issues/1630", "STVIR/PMTD/issues/6"),
)
