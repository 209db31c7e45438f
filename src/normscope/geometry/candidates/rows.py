r"""Row shifts ``W -> W + u v^T`` for any ``v``, where a normalizer or softmax removes the direction ``u`` of its input.

LayerNorm removes the mean over its features, so ``u = 1``, or the inverse of a gain in between, such as a layer scale;
GroupNorm and norms of heads remove the mean of each group; cross-entropy does not see a shift common to all classes.
Weight standardization removes the mean of each weight vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.geometry.candidates.gains import GainPath, Gains
from normscope.geometry.channels.labels import ChannelLabels
from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import SplitFamily, StraightFamily, SymmetryGroup, velocity
from normscope.graph.recognise import name_of
from normscope.operators.registry import arguments_of


@dataclass(frozen=True, eq=False)
class RowShifts(StraightFamily):
    """The same vector added to all rows of a weight, or to all rows of each group."""

    source: str  #: the name of the weight
    shape: torch.Size  #: of the parameter
    axis: int  #: the axis along which the same is added
    groups: int = 1  #: how many groups the axis has
    path: GainPath | None = None  #: gains before the mean is removed, by which the shift is divided

    @property
    def size(self) -> int:
        """Return the number of coefficients."""
        return self.groups * (self.shape.numel() // self.shape[self.axis])

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return ``u v^T``."""
        axis = self.axis % len(self.shape)
        rest = [size for dim, size in enumerate(self.shape) if dim != axis]
        rows = coefficients.reshape(self.groups, *rest).repeat_interleave(self.shape[axis] // self.groups, 0)
        return {self.source: (rows * self.pattern(point).reshape(-1, *(1,) * len(rest))).movedim(0, axis)}

    def weight(self, point: Point) -> Tensor:
        """Return the weight whose rows are added to."""
        return point[self.source]

    def pattern(self, point: Point) -> Tensor:
        """Return ``u``: ones, or the inverse of the gains behind."""
        if self.path is None:
            return torch.ones(self.shape[self.axis], dtype=torch.float64)
        return 1.0 / self.path.factors(point)


@dataclass(frozen=True, eq=False)
class NormalizedRowShifts(RowShifts):
    """The same for a weight ``w = g v/||v||``: v changes by ``||v||/g`` times what is added, g with the length of v."""

    gain: str = ""  #: the name of g

    def weight(self, point: Point) -> Tensor:
        """Return ``g v/||v||``."""
        return point[self.source] * self._ratio(point)

    def _ratio(self, point: Point) -> Tensor:
        """Return ``g/||v||``."""
        v = point[self.source]
        lengths = v.flatten(1).norm(dim=1).reshape(-1, *(1,) * (v.ndim - 1))
        return point[self.gain].reshape(lengths.shape) / lengths

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the directions of v and g."""
        return velocity(lambda time: self.move(point, coefficients, time))

    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return v and g after the weight moved along a straight line."""
        v = point[self.source]
        moved = v + time * super().field(point, coefficients)[self.source] / self._ratio(point)
        growth = moved.flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)
        return {self.source: moved, self.gain: point[self.gain] * growth.reshape(point[self.gain].shape)}


@dataclass(frozen=True, eq=False)
class WeightVectorShifts(StraightFamily, SplitFamily):
    """One constant for each weight vector, added to all of its entries, with a sign for each parameter."""

    signs: dict[str, float]  #: the sign for each parameter
    shape: torch.Size  #: of the parameters
    basis: Tensor  #: the vectors that are moved

    @property
    def source(self) -> str:
        """Return the first of the parameters."""
        return next(iter(self.signs))

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the constants."""
        made = torch.zeros(self.shape[0], dtype=torch.float64).index_copy(0, self.basis, coefficients)
        made = made.reshape(-1, *(1,) * (len(self.shape) - 1)).expand(self.shape)
        return {name: sign * made for name, sign in self.signs.items()}


def row_groups(function: ModelFunction, labels: ChannelLabels) -> list[SymmetryGroup]:
    """Return the candidates: every weight whose outputs have a mean that is removed later."""
    seen = {labels.kin.find(label) for label in labels.summed if label >= 0}
    last = labels.outputs if function.loss == "cross_entropy" else set()
    sizes, gains = group_sizes(function), Gains(labels)
    found: list[SymmetryGroup] = []
    done: set[str] = set()
    gain_of = {normalized.parameter: gain for normalized, gain in labels.weight_normalized}
    for product in [*labels.products, *(normalized for normalized, _ in labels.weight_normalized)]:
        outputs = product.outputs.tolist()
        means = any(labels.kin.find(label) in seen for label in outputs)
        if product.parameter in done or not (means or any(label in last for label in outputs)):
            continue
        done.add(product.parameter)
        shape = function.tensors[product.parameter].shape
        axis = _axis(product.index, shape)
        for path in (None, *gains.paths(product.outputs)[1:]) if axis is not None else ():
            found += _candidates(product.parameter, shape, axis or 0, sizes, path, gain_of.get(product.parameter, ""))
    for entry in labels.entries:
        shape = function.tensors[entry.parameter].shape
        if len(shape) < 2:
            continue
        if any(labels.kin.find(label) in seen for label in torch.unique(entry.labels).tolist()):
            found += _candidates(entry.parameter, shape, len(shape) - 1, sizes)
        if shape[0] > 1:
            vectors = WeightVectorShifts({entry.parameter: 1.0}, shape, torch.arange(shape[0]))
            words = f"a constant added to each weight vector of {entry.parameter}, removed by weight standardization"
            found.append(SymmetryGroup("row", (entry.parameter,), vectors.size, words, vectors))
    return found


def _axis(index: Tensor, shape: torch.Size) -> int | None:
    """Return the axis of the parameter that holds the outputs."""
    if index.shape[0] == shape[0] and int(index.reshape(index.shape[0], -1)[0, -1]) < shape.numel() // shape[0]:
        return 0
    return 1 if len(shape) > 1 and index.shape[0] == shape[1] else None


def _candidates(
    name: str, shape: torch.Size, axis: int, sizes: set[int], path: GainPath | None = None, gain: str = ""
) -> list[SymmetryGroup]:
    """Return the candidates of one parameter: one vector for all, or one for each group."""
    found = []
    for count in group_counts(sizes, shape[axis]):
        family = (
            NormalizedRowShifts(name, shape, axis, count, path, gain)
            if gain
            else RowShifts(name, shape, axis, count, path)
        )
        each = "all rows" if count == 1 else f"all rows of each of {count} groups"
        by = "" if path is None else f", divided by {', '.join(gain for gain, _ in path.gains)},"
        words = f"the same{by} added to {each} of {name}, removed by the normalizer or softmax after it"
        names = (name, gain) if gain else (name,)
        found.append(SymmetryGroup("row", names, family.size, words, family, details={"groups": count}))
    return found


def group_counts(sizes: set[int], width: int) -> list[int]:
    """Return the possible numbers of groups of these sizes, largest first; always including one."""
    return sorted({1} | {width // size for size in sizes if width % size == 0 and size > 1}, reverse=True)


def group_sizes(function: ModelFunction) -> set[int]:
    """Return the numbers of channels per group of all GroupNorms and LayerNorms."""
    sizes: set[int] = set()
    for node in function.graph:
        if name_of(node) in ("group_norm", "native_group_norm") and node.shape is not None:
            given = arguments_of(node)
            sizes.add(node.shape[1] // (given.get("num_groups") or given["group"]))
        elif name_of(node) in ("layer_norm", "native_layer_norm"):
            sizes.add(int(arguments_of(node)["normalized_shape"][-1]))
    return sizes
