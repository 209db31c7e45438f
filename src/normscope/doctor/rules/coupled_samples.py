"""NS208: a normalizer that couples samples although the purpose requires independent ones."""

from torch import nn

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject

_WHY = {
    "private": "the gradient of one sample depends on the others, so there is no per-sample gradient to clip",
    "gan": "a gradient penalty is meant for each sample alone, but here its gradient runs through the whole batch",
    "contrastive": "batch statistics reveal which samples share a batch, and the loss rewards using that",
}


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every normalizer that uses the statistics of the batch in training."""
    why = _WHY.get(subject.purpose)
    if why is None:
        return
    for path, bn in batch_norms(subject.model):
        if subject.purpose == "contrastive" and isinstance(bn, nn.SyncBatchNorm):
            continue
        if not bn.training and subject.model.training and bn.running_mean is not None:
            continue  # frozen: an affine map
        text = f"{type(bn).__name__} couples the samples of a batch: {why}"
        severity = Severity.ERROR if subject.purpose == "private" else None
        yield rule.finding(path, text, {"purpose": subject.purpose}, severity=severity)


RULE = Rule(
    code="NS208",
    title="BatchNorm where samples must stay independent",
    certainty=Certainty.PROVED,
    statement="normscope F2",
    why="In training BatchNorm makes every output a function of the whole batch. Differential privacy needs gradients "
    "of single samples, a gradient penalty constrains the critic at single samples, and contrastive learning must not "
    "be able to tell which samples share a batch.",
    effect="privacy accounting is void; the penalty constrains the wrong function; the representation learns a "
    "shortcut",
    fix="use GroupNorm, LayerNorm or InstanceNorm (for contrastive learning also SyncBatchNorm or shuffled batches)",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())\n"
    "options = {'purpose': 'private'}",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU())\noptions = {'purpose': 'private'}",
    needs=("purpose",),
    threads=(
        "meta-pytorch/opacus/issues/319",
        "facebookresearch/moco/issues/137",
        "eriklindernoren/Keras-GAN/issues/253",
    ),
)
