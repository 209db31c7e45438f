"""NS207: a frozen BatchNorm whose running statistics still change."""

from torch import nn

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Subject


def is_frozen(module: nn.Module) -> bool:
    """Return whether a module has parameters and none of them is trained.

    >>> is_frozen(nn.BatchNorm1d(2).requires_grad_(False)), is_frozen(nn.ReLU())
    (True, False)
    """
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield frozen BatchNorms in train mode, if anything else is trained."""
    if not any(p.requires_grad for p in subject.model.parameters()):
        return  # the whole model is frozen, for inference: NS204 checks its mode
    for path, bn in batch_norms(subject.model):
        if bn.training and bn.running_mean is not None and is_frozen(bn):
            yield rule.finding(
                path,
                f"{type(bn).__name__} is frozen (requires_grad is off) but in train mode: it normalizes by the batch, "
                "and its running statistics move",
            )


RULE = Rule(
    code="NS207",
    title="frozen BatchNorm in train mode",
    certainty=Certainty.PROVED,
    why="requires_grad=False stops the gradient. It does not stop BatchNorm from using the statistics of the batch, "
    "nor from writing them into its buffers; model.train() puts frozen parts, teachers and momentum encoders back into "
    "train mode at every epoch.",
    effect="the frozen part drifts to the new data and is no longer the network that was loaded",
    fix="call .eval() on the frozen part after every model.train(), or override train() of the model to do so",
    example="model = nn.Sequential(nn.BatchNorm1d(8).requires_grad_(False), nn.Linear(8, 2)).train()",
    good="model = nn.Sequential(nn.BatchNorm1d(8).requires_grad_(False), nn.Linear(8, 2)).train()\nmodel[0].eval()",
    needs=(),
    not_for=("inference",),
    threads=("pytorch/pytorch/issues/86590", "pgniewko/gt-pyg/issues/112",
             "Sharpiless/yolov5-knowledge-distillation/issues/5"),
)  # fmt: skip
