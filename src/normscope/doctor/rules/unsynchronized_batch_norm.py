"""NS209: BatchNorm computed separately on each device."""

from torch import nn

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject

#: With this many samples per device, its statistics are good enough.
ENOUGH = 16


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield plain BatchNorms of a model that runs on several devices."""
    if not subject.parallel:
        return
    size = subject.batch_size
    few = size is not None and size < ENOUGH
    share = "" if size is None else f" of {size} samples"
    for path, bn in batch_norms(subject.model):
        if not isinstance(bn, nn.SyncBatchNorm) and (size is None or few):
            text = f"{type(bn).__name__} under {subject.parallel} normalizes by the share{share} of each device alone"
            severity = Severity.WARNING if few else Severity.INFO
            yield rule.finding(path, text, {"batch_size": size or 0, "wrapper": subject.parallel}, severity=severity)


RULE = Rule(
    code="NS209",
    title="BatchNorm separate on each device",
    certainty=Certainty.LIKELY,
    statement="the variance of m normal values has the relative standard error sqrt(2/(m - 1))",
    why="Data-parallel training splits the batch. Plain BatchNorm then sees only the share of its device: with few "
    "samples per device, the statistics are noise although the whole batch is large. With sixteen or more per device "
    "there is little to gain.",
    effect="training is noisier, and evaluation worse, than on one device with the same total batch",
    fix="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before wrapping it, or use GroupNorm",
    example="model = nn.DataParallel(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()))\n"
    "options = {'batch_size': 2}",
    good="model = nn.DataParallel(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()))\n"
    "options = {'batch_size': 32}",
    needs=(),
    not_for=("inference",),
    threads=("fundamentalvision/BEVFormer/issues/136", "pytorch/pytorch/issues/2584"),
    explains=("NS201",),
)
