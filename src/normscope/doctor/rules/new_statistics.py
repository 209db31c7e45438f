"""NS205: running statistics of a new layer under trained weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject


def is_new(bn: nn.Module) -> bool:
    """Tell whether running statistics are exactly those of a new layer.

    >>> is_new(nn.BatchNorm1d(2)), is_new(nn.Identity())
    (True, False)
    """
    mean, variance = getattr(bn, "running_mean", None), getattr(bn, "running_var", None)
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return False
    return bool((mean == 0).all()) and bool((variance == 1).all())


def is_trained(bn: nn.Module) -> bool:
    """Tell whether scale and shift are no longer those of a new layer: the shifts differ from channel to channel.

    >>> bn = nn.BatchNorm1d(2)
    >>> is_trained(bn)
    False
    >>> bn.bias.data[0] = 0.1
    >>> is_trained(bn)
    True
    """
    shift, scale = getattr(bn, "bias", None), getattr(bn, "weight", None)
    # Some recipes draw the scales at random; none draws the shifts.
    moved = shift if isinstance(shift, Tensor) else scale
    if not isinstance(moved, Tensor):
        return False
    with torch.no_grad():
        return moved.numel() > 1 and bool((moved != moved.flatten()[0]).any())


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield every layer whose statistics are new although its scale and shift, or its count, are not."""
    modules = list(batch_norms(subject.model))
    new = [(path, bn) for path, bn in modules if is_new(bn)]
    for path, bn in new:
        counted = int(getattr(bn, "num_batches_tracked", None) or 0)
        if not is_trained(bn) and not counted:
            continue  # a new layer
        because = "its scale and shift were trained" if is_trained(bn) else f"it has counted {counted} batches"
        yield rule.finding(
            path,
            f"running statistics are those of a new layer (mean 0, variance 1), and {because}",
            {"new": len(new), "of": len(modules)},
        )


RULE = Rule(
    code="NS205",
    name="new-statistics",
    title="running statistics of a new layer under trained weights",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    statement="",
    why="Running statistics are buffers, not parameters. They are lost when only parameters are saved, averaged "
    "(EMA) or loaded, when keys do not match and strict=False hides it, and when a functional copy is trained. "
    "In evaluation BatchNorm then divides by one and subtracts nothing.",
    effect="evaluation is close to chance, while training looks fine",
    fix="save and load the whole state_dict, average buffers too, or gather the statistics anew: run training data "
    "through the model in train mode with momentum=None",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())\n"
    "nn.init.normal_(model[1].bias)  # trained weights were loaded, their statistics were not",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())\n"
    "nn.init.normal_(model[1].bias)\n"
    "model(torch.randn(64, 3, 8, 8))  # in train mode: the statistics are gathered",
    needs=(),
    look=_look,
    threads=("CuriousAI/mean-teacher/issues/9", "hiwonjoon/tf-frrn/issues/2", "facebookresearch/higher/issues/55"),
    explains=("NS203", "NS601", "NS301", "NS303", "NS501"),
)
