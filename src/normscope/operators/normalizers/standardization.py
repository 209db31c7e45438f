r"""Standardization by constants of the data: ``(x - mean)/std`` with mean and deviation in buffers, a fixed affine map.

Deviations are told from other constants (a range, a unit) by the name of their buffer.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import Constants, Normalizer
from normscope.operators.normalizers.batch_norm import running_constants
from normscope.operators.normalizers.frozen_batch_norm import (
    FixedStatistics,
    axis_of,
    buffer_behind,
    fixed_site,
    source_behind,
)
from normscope.operators.site import Site
from normscope.operators.written_out import Place, Surroundings, Written

#: What a buffer of deviations is called.
_DEVIATION = re.compile(r"(std|sd|stdev|stddev|sigma|deviation)s?$", re.IGNORECASE)
#: Operations that keep a deviation away from zero.
_STABILIZERS = ("add", "clamp", "clamp_min", "maximum")


def _written_out(place: Place) -> Written | None:
    node, around = place.node, place.around
    if name_of(node) != "div" or len(node.args) < 2 or not all(isinstance(a, Ref) for a in node.args[:2]):
        return None
    difference = around.recogniser.through(node.args[0], repeating=False)
    if difference is None or name_of(difference) != "sub" or not all(isinstance(a, Ref) for a in difference.args[:2]):
        return None
    moving, subtracted = (around.graph[a.name] for a in difference.args[:2])
    mean, divisor = buffer_behind(subtracted, around), around.constant(node.args[1].name)
    if mean is None or place.source(moving.name) is None or not _is_deviation(around.graph[node.args[1].name], around):
        return None
    if not isinstance(divisor, Tensor) or divisor.numel() != mean.numel() or not bool((divisor > 0).all()):
        return None
    std = divisor.detach().double().flatten()
    found = FixedStatistics(
        moving.name, std.square(), 0.0, torch.ones_like(std), mean.detach().double().flatten(), axis_of(divisor, place)
    )
    return fixed_site(place, "standardization", found)


def _is_deviation(node: Node, around: Surroundings) -> bool:
    """Tell whether a divisor is a buffer that is called a deviation, perhaps kept away from zero."""
    behind = source_behind(node, around)
    if behind is not None and name_of(behind) in _STABILIZERS and isinstance(behind.args[0], Ref):
        behind = source_behind(around.graph[behind.args[0].name], around)
    return behind is not None and behind.op == "buffer" and bool(_DEVIATION.search(behind.target))


def _constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    return running_constants(site, mode)


NORMALIZER = Normalizer(
    kind="standardization",
    formula="(x - mean)/std with mean and deviation in buffers, written out",
    constants=_constants,
    written_out=_written_out,
)
