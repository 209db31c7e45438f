"""NS204: BatchNorm that uses the statistics of the batch in evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.modules import modules_of
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject, place_of

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield BatchNorm modules left in train mode, and normalizers over the batch axis in evaluation."""
    left = set()
    whole = subject.model.training
    for path, module in modules_of(subject.model, _BATCH_NORM):
        if module.training and (not whole or subject.purpose == "inference"):
            left.add(path)
            while_ = "and is to be used for inference" if whole else "while the model is in evaluation"
            yield rule.finding(
                path,
                f"{type(module).__name__} is in train mode {while_}: its output depends on the other samples of the "
                "batch, and its running statistics move",
                fix="call model.eval() before inference"
                if whole
                else "call model.eval() after everything is built, and do not override train() of parts",
            )
    for site in subject.sites():
        spread = site.spread
        if spread is None or 0 not in spread.axes or len(site.shape) < 2 or place_of(site) in left:
            continue
        yield rule.finding(
            place_of(site),
            f"{site.kind} uses the statistics of the batch in evaluation: one sample's output depends on the others",
            {"eps": site.eps},
            severity=Severity.WARNING,
            certainty=Certainty.PROVED,
            fix="keep running statistics (track_running_stats=True), or use a normalizer of single samples",
        )


RULE = Rule(
    code="NS204",
    name="train-mode",
    title="batch statistics in evaluation",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    statement="normscope F2",
    why="In evaluation BatchNorm is meant to be a fixed affine map. With batch statistics the answer for one sample "
    "changes with its neighbours, accuracy depends on the order of the data, and running statistics keep moving.",
    effect="the answer for one sample changes with the others of its batch",
    fix="call model.eval(), and keep running statistics",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()\nmodel[1].train()",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()",
    needs=(),
    look=_look,
    threads=("yunjey/pytorch-tutorial/issues/62", "uci-cbcl/UFold/issues/18", "dragen1860/MAML-Pytorch/issues/44"),
)
