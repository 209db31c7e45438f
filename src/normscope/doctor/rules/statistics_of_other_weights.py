"""NS216: weights that changed between two checkpoints without their statistics, or statistics without weights."""

import torch

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Subject
from normscope.doctor.rules.frozen_in_train_mode import is_frozen

#: Smallest relative change of a tensor that counts.
CHANGED = 1e-3


def change(old: torch.Tensor, new: torch.Tensor) -> float:
    """Return the relative change of a tensor.

    >>> change(torch.ones(2), torch.tensor([1.0, 1.0]))
    0.0
    """
    a, b = old.detach().double(), new.detach().double()
    size = float(a.norm())
    return float((b - a).norm()) / size if size else float(b.norm())


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield BatchNorms whose buffers did not change while the weights did, and frozen ones whose buffers changed."""
    assert subject.before is not None
    old = dict(batch_norms(subject.before))
    before = dict(subject.before.named_parameters())
    pairs = [(before[name], p) for name, p in subject.parameters.items() if name in before and p.ndim > 1]
    moved = max((change(a, b) for a, b in pairs if a.shape == b.shape), default=0.0)
    for path, bn in batch_norms(subject.model):
        was = old.get(path)
        if was is None or bn.running_var is None or was.running_var is None:
            continue
        far = max(change(getattr(was, name), getattr(bn, name)) for name in ("running_mean", "running_var"))
        if far == 0 and moved >= CHANGED:
            yield rule.finding(
                path,
                f"the weights moved by {moved:.2g} of their size since the earlier checkpoint, but the running "
                "statistics of this layer did not: they belong to the old weights",
                {"weights": moved},
            )
        elif far >= CHANGED and is_frozen(bn):
            yield rule.finding(
                path,
                f"its parameters are frozen, but its running statistics moved by {far:.2g} of their size since the "
                "earlier checkpoint",
                {"statistics": far},
                fix="keep frozen layers in evaluation mode: call .eval() on them after every model.train()",
            )


RULE = Rule(
    code="NS216",
    title="weights and statistics do not belong together",
    certainty=Certainty.PROVED,
    why="Running statistics belong to the weights they were estimated with. An average, a merge or a converter that "
    "writes only parameters leaves the statistics of the old weights; a frozen layer in train mode changes its "
    "statistics but not its weights. Comparing two checkpoints shows both.",
    effect="evaluation is worse than it was, without any error",
    fix="copy or average buffers as well, or estimate the statistics again: run training data in train mode",
    example="import copy\n\n"
    "model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8))\n"
    "options = {'before': copy.deepcopy(model)}\n"
    "nn.init.normal_(model[0].weight)  # other weights, the same statistics",
    good="import copy\n\n"
    "model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8))\n"
    "options = {'before': copy.deepcopy(model)}\n"
    "nn.init.normal_(model[0].weight)\n"
    "model(torch.randn(64, 8))  # in train mode: the statistics follow",
    needs=("before",),
    threads=("fadel/pytorch_ema/issues/13", "facebookresearch/moco/issues/70"),
)
