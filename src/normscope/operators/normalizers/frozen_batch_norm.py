r"""Batch normalization whose statistics are buffers and whose formula is written out: a fixed affine map.

``y = x s + (beta - mean s)`` with ``s = gamma/sqrt(var + eps)``, or ``(x - mean) s + beta``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of, operand_pairs
from normscope.operators.normalizer import Normalizer, Symmetry
from normscope.operators.normalizers.batch_norm import running_constants
from normscope.operators.quadratic_form import behind_shapes, roots_behind
from normscope.operators.spread_division import compact
from normscope.operators.written_out import NormalizerCandidate, Surroundings, WrittenOut


@dataclass(frozen=True, eq=False)
class FixedStatistics:
    """A product with a constant over the root of a buffer."""

    source: str  #: the node that is normalized, before its mean is subtracted
    variance: Tensor  #: the buffer
    eps: float  #: the stabilizer
    gamma: Tensor  #: the scale beside the root
    mean: Tensor | None  #: the constant that is subtracted, or ``None``
    #: the axis of the source along which the statistics lie, or ``None`` if there is not just one
    axis: int | None = None


def fixed_statistics_at(candidate: NormalizerCandidate) -> FixedStatistics | None:
    """Return the fixed statistics that a product or quotient normalizes by, or ``None``."""
    node, around = candidate.node, candidate.around
    for moving, other in operand_pairs(node):
        if candidate.source(moving.name) is None or around.expression(other.name) is not None:
            continue
        root = next(roots_behind(around.graph[other.name], around), None)
        known = None if root is None else _variance(root, around)
        scale = around.constant(other.name)
        if known is None or not isinstance(scale, Tensor):
            continue
        gain = compact(1.0 / scale.double() if name_of(node) == "div" else scale.double(), nearly=True)
        if gain.numel() not in (1, known[0].numel()):
            continue
        gamma = gain.flatten() * (known[0] + known[1]).sqrt()
        source, mean = _mean(candidate, moving, other)
        return FixedStatistics(source, known[0], known[1], gamma, mean, axis_of(scale, candidate))
    return None


def axis_of(constant: Tensor, candidate: NormalizerCandidate) -> int | None:
    """Return the only axis along which a constant has more than one entry, or ``None``."""
    first = len(candidate.call.shape) - constant.ndim
    axes = [first + i for i, n in enumerate(constant.shape) if n > 1]
    return axes[0] if len(axes) == 1 and first >= 0 else None


def _variance(root: Node, around: Surroundings) -> tuple[Tensor, float] | None:
    """Return the buffer and the stabilizer under a root."""
    below = around.recogniser.through(root.args[0])
    eps = 0.0
    if below is not None and name_of(below) == "add":
        number = around.recogniser.stabilizer(below.args[1])
        if number is None or not isinstance(below.args[0], Ref):
            return None
        eps, below = number, around.recogniser.through(below.args[0])
    value = None if below is None else buffer_behind(below, around)
    if value is None or value.numel() < 2 or bool((value < 0).any()):
        return None
    return value.detach().double().flatten(), eps


def buffer_behind(node: Node | None, around: Surroundings) -> Tensor | None:
    """Return the value of a buffer behind changes of shape, or ``None``."""
    node = None if node is None else behind_shapes(node, around)
    value = around.constant(node.name) if node is not None and node.op == "buffer" else None
    return value if isinstance(value, Tensor) and value.is_floating_point() else None


def _mean(candidate: NormalizerCandidate, moving: Ref, scale: Ref) -> tuple[str, Tensor | None]:
    """Return what is normalized, and the mean that is subtracted before, or times the scale afterwards."""
    around = candidate.around
    before = around.recogniser.through(moving, repeating=False)
    if before is not None and name_of(before) == "sub" and isinstance(before.args[0], Ref):
        mean = _buffer_of(before.args[1], around)
        if mean is not None and candidate.source(before.args[0].name) is not None:
            return before.args[0].name, mean
    for name in around.users[candidate.node.name]:
        user = around.graph[name]
        others = [a for a in user.args[:2] if isinstance(a, Ref) and a.name != candidate.node.name]
        shift = around.recogniser.through(others[0]) if others and name_of(user) in ("add", "sub") else None
        while shift is not None and name_of(shift) in ("add", "sub") and len(shift.args) > 1:
            parts = [around.recogniser.through(a) for a in shift.args[:2] if isinstance(a, Ref)]
            shift = next((p for p in parts if p is not None and name_of(p) == "mul"), None)
        if shift is not None and name_of(shift) == "mul":
            found = [m for m in (_buffer_of(a, around) for a in shift.args[:2]) if m is not None]
            if found:
                return moving.name, found[0]
    return moving.name, None


def _buffer_of(value: Any, around: Surroundings) -> Tensor | None:
    found = buffer_behind(around.graph[value.name], around) if isinstance(value, Ref) else None
    return None if found is None else found.detach().double().flatten()


def fixed_site(candidate: NormalizerCandidate, kind: str, found: FixedStatistics) -> WrittenOut:
    """Return a normalizer by fixed statistics; the rules of its operations, which are affine, give everything else."""
    source = candidate.source(found.source)
    assert source is not None
    mean = torch.zeros_like(found.variance) if found.mean is None else found.mean
    gamma, scale = found.gamma, candidate.around.affine_after(candidate.node)[0]
    if scale is not None and scale.numel() in (1, gamma.numel()):
        gamma = gamma * scale.detach().double().flatten()
    details = {} if found.axis is None else {"axis": float(found.axis)}
    known: dict[str, Any] = {"gamma": gamma, "running": (mean, found.variance), "eps": found.eps, "details": details}
    return candidate.written(kind, source, found.source, **known)


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    found = fixed_statistics_at(candidate)
    return None if found is None or found.mean is None else fixed_site(candidate, "frozen_batch_norm", found)


NORMALIZER = Normalizer(
    kind="frozen_batch_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta with mean and var in buffers, written out",
    constants=running_constants,
    symmetry=Symmetry("neuron", shift=True),
    written_out=_written_out,
)
