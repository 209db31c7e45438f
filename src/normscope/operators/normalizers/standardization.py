r"""Standardization by constants of the data: ``(x - mean)/std`` with mean and deviation in buffers, a fixed affine map.

Deviations are distinguished from other constants (a range, a unit) by their name.
"""

import re

import torch
from torch import Tensor

from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import Normalizer
from normscope.operators.normalizers.batch_norm import running_constants
from normscope.operators.normalizers.frozen_batch_norm import FixedStatistics, axis_of, fixed_site
from normscope.operators.quadratic_form import behind_shapes
from normscope.operators.written_out import NormalizerCandidate, Surroundings, WrittenOut

#: Names of buffers of deviations.
_DEVIATION = re.compile(r"(std|sd|stdev|stddev|sigma|deviation)s?$", re.IGNORECASE)
#: Operations on one tensor that keep a deviation a deviation, keep it away from zero, or invert it.
_ALIKE = ("add", "clamp", "clamp_min", "maximum", "reciprocal", "mul")
_CONSTANTS = ("buffer", "constant", "parameter")


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    node, around = candidate.node, candidate.around
    if name_of(node) not in ("div", "mul") or len(node.args) < 2 or not all(isinstance(a, Ref) for a in node.args[:2]):
        return None
    difference = around.recogniser.through(node.args[0], repeating=False)
    if difference is None or name_of(difference) != "sub" or not all(isinstance(a, Ref) for a in difference.args[:2]):
        return None
    moving, subtracted = (around.graph[a.name] for a in difference.args[:2])
    mean, factor = _constant(subtracted, around), around.constant(node.args[1].name)
    if (
        mean is None
        or candidate.source(moving.name) is None
        or not _is_deviation(around.graph[node.args[1].name], around)
    ):
        return None
    if not isinstance(factor, Tensor) or factor.numel() != mean.numel() or not bool((factor > 0).all()):
        return None
    std = factor.detach().double().flatten()
    std = std if name_of(node) == "div" else std.reciprocal()
    found = FixedStatistics(
        moving.name,
        std.square(),
        0.0,
        torch.ones_like(std),
        mean.detach().double().flatten(),
        axis_of(factor, candidate),
    )
    return fixed_site(candidate, "standardization", found)


def _constant(node: Node, around: Surroundings) -> Tensor | None:
    """Return the value of a tensor of the model behind changes of shape, or ``None``."""
    behind = behind_shapes(node, around)
    value = around.constant(behind.name) if behind.op in _CONSTANTS else None
    return value if isinstance(value, Tensor) and value.is_floating_point() else None


def _is_deviation(node: Node, around: Surroundings) -> bool:
    """Return whether a constant is made of a tensor that is called a deviation, and of nothing else."""
    behind = behind_shapes(node, around)
    while name_of(behind) in _ALIKE and len(behind.inputs()) == 1:
        behind = behind_shapes(around.graph[behind.inputs()[0]], around)
    return behind.op in _CONSTANTS and bool(_DEVIATION.search(behind.target))


NORMALIZER = Normalizer(
    kind="standardization",
    formula="(x - mean)/std with mean and deviation in buffers, written out",
    constants=running_constants,
    estimated=False,
    written_out=_written_out,
)
