r"""Column shifts ``W -> W + v (1/gamma)^T`` of a weight after a LayerNorm, whose normalized values sum to zero.

What reaches the outputs of ``W`` is the constant ``v sum(beta/gamma)``, which a bias compensates. A convolution has one
such vector for each place of its kernel; with zero padding the output must not reveal which places lie outside.
Where no bias compensates the shift of the LayerNorm, the columns of all weights that read it do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normscope.geometry.candidates.biases import Biases
from normscope.geometry.candidates.gains import GainPath, Gains
from normscope.geometry.candidates.shifts import BiasShifts, FlatLine, alike, all_but_one, certified, free_entries
from normscope.geometry.channels.labels import ChannelLabels, ChannelWeight
from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import SplitFamily, SymmetryFamily, SymmetryGroup
from normscope.graph.interpreter import resolve
from normscope.graph.ir import Node
from normscope.operators.registry import arguments_of, call_by_name


@dataclass(frozen=True, eq=False)
class ColumnShifts(BiasShifts):
    """``W + v (1/gamma)^T``; ``path`` holds the gains, the basis is one of the outputs and places of the kernel."""

    kind = "column"
    #: flat positions in the weight: outputs, inputs, places of the kernel
    index: Tensor = field(default_factory=lambda: torch.zeros(1, 1, 1, dtype=torch.int64))
    beta: str = ""  #: the name of the LayerNorm's shift, empty for none

    @property
    def nearby(self) -> set[str]:
        """Return parameters before the source on which the direction depends."""
        return super().nearby | ({self.beta} if self.beta else set())

    def start(self, point: Point, coefficients: Tensor) -> Tensor:
        """Return ``v (1/gamma)^T``, as the weight is stored."""
        assert self.path is not None
        outputs, inputs, places = self.index.shape
        line = self.combined(coefficients, outputs * places)
        made = line.reshape(outputs, 1, places) / self.path.factors(point).reshape(1, inputs, 1)
        weight = self.function.tensors[self.source]
        flat = torch.zeros(weight.numel(), dtype=torch.float64)
        return flat.index_copy(0, self.index.reshape(-1), made.reshape(-1)).reshape(weight.shape)


def column_groups(
    function: ModelFunction, labels: ChannelLabels, biases: Biases, rows: Mapping[str, int], seed: int
) -> list[SymmetryGroup]:
    """Return the verified column shifts of all weights that read only a LayerNorm."""
    gains = Gains(labels)
    centred: dict[tuple[int, ...], tuple[GainPath, str]] = {}
    for line, beta in labels.centred:
        centred |= {path.channels: (path, beta) for path in gains.paths(line)}
    uses = [product.parameter for product in labels.products]
    found: list[FlatLine] = []
    for product in labels.products:
        path, beta = centred.get(labels.channels(product.inputs[0]), (None, ""))
        if path is None or not product.full or uses.count(product.parameter) > 1:
            continue
        index = product.index.reshape(*product.index.shape[:2], -1)
        shared = rows.get(product.parameter, 0)  # what is common to a group of rows is among the rows already
        outputs = all_but_one(len(index), shared) if shared else torch.arange(len(index))
        whole = (outputs[:, None] * index.shape[2] + torch.arange(index.shape[2])).reshape(-1)
        family = ColumnShifts(function, biases, product.parameter, whole, path=path, index=index, beta=beta)
        found += _flat_part(
            family, _narrower_bases(function, product, outputs), alike(labels, product.outputs[outputs]), seed
        )
    return certified(function, found)


def _flat_part(family: ColumnShifts, narrower: Iterator[Tensor], alike: Sequence[Tensor], seed: int) -> list[FlatLine]:
    """Return the flat part of a family: all of it, or that of the first narrower basis with any flat direction."""
    words = f"{family.source} plus v (1/gamma)^T: the output of the LayerNorm before it sums to zero"
    found = family.flat_line(seed, words)
    for basis in narrower:
        if found is not None:
            break
        part = replace(family, basis=basis)
        found = None if torch.equal(basis, family.basis) else part.flat_line(seed, words)
        if found is None:
            count = len(basis) // sum(map(len, alike))  # coefficients of one output
            several = [(keep[:, None] * count + torch.arange(count)).reshape(-1) for keep in alike]
            kept = free_entries(part, several, seed)
            found = replace(part, basis=kept).flat_line(seed, words) if len(kept) else None
    return [] if found is None else [found]


def _narrower_bases(function: ModelFunction, product: ChannelWeight, outputs: Tensor) -> Iterator[Tensor]:
    """Yield narrower bases: combinations of kernel positions that zero padding does not reveal."""
    node = function.graph[product.node]
    if "conv" not in node.op:
        yield outputs
        return
    seen = _places_in_image(function, node, product.index.shape[2:])
    for constraint in (seen - seen.mean(1, keepdim=True), seen):
        _, values, right = torch.linalg.svd(constraint.mT)
        free = right[int((values > 1e-9 * max(1.0, float(values.max()))).sum()) :]
        if len(free):
            yield torch.kron(torch.eye(len(product.index), dtype=torch.float64)[outputs], free.contiguous())


def _places_in_image(function: ModelFunction, node: Node, kernel: torch.Size) -> Tensor:
    """Return for each kernel position (row) at which output positions it reads the image and not the padding."""
    given = arguments_of(node)
    read = function.graph[given["input"].name].shape
    assert read is not None
    units = torch.eye(kernel.numel(), dtype=torch.float64).reshape(-1, 1, *kernel)
    swapped = "transpose" in node.op or bool(given.get("transposed"))
    plain = {
        "input": torch.ones(1, 1, *read[-len(kernel) :], dtype=torch.float64),
        "weight": units.transpose(0, 1) if swapped else units,
        "bias": None,
        "groups": 1,
    }
    return call_by_name(resolve(node.op), given | plain)[0].flatten(1)


@dataclass(frozen=True, eq=False)
class LayerNormShifts(SplitFamily):
    r"""``beta + d`` for the shift of a LayerNorm, and ``W - W d (1/gamma)^T/sum((beta + d)/gamma)`` for what reads it.

    The matrix that multiplies every ``W`` leaves normalized values, which sum to zero, and takes ``beta + d`` back to
    ``beta``.
    """

    source: str  #: the shift
    path: GainPath  #: the scale of the LayerNorm
    #: every weight that reads it, and its flat positions: outputs, inputs, places of the kernel
    readers: tuple[tuple[str, Tensor], ...]
    basis: Tensor  #: the entries of the shift that are moved

    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return the moved shift and the weights that make up for it."""
        beta, inverse = point[self.source], 1.0 / self.path.factors(point)
        added = torch.zeros(len(inverse), dtype=torch.float64).index_copy(0, self.basis, time * coefficients)
        moved = beta + added.reshape(beta.shape)
        row = inverse / (moved.reshape(-1) * inverse).sum()
        found = {self.source: moved}
        for name, index in self.readers:
            weight = point[name].reshape(-1)
            part = torch.einsum("oip,i->op", weight[index], added)[:, None] * row[:, None]
            found[name] = weight.index_add(0, index.reshape(-1), -part.reshape(-1)).reshape(point[name].shape)
        return found


def offset_groups(function: ModelFunction, labels: ChannelLabels, shifts: list[SymmetryGroup]) -> list[SymmetryGroup]:
    """Return the candidates: the shift of every LayerNorm read only by weights, as far as no bias compensates it."""
    gains = Gains(labels)
    uses = [product.parameter for product in labels.products]
    found: list[SymmetryGroup] = []
    for line, beta in labels.centred:
        if not beta:
            continue
        path = gains.paths(line)[:2][-1]
        readers = [p for p in labels.products if labels.channels(p.inputs[0]) == path.channels]
        entries = _remaining_entries(
            len(line), [g.family for g in shifts if g.kind == "shift" and g.parameters[0] == beta]
        )
        total = float((function.tensors[beta].reshape(-1) / path.factors(function.tensors)).sum())
        if not readers or not len(entries) or not all(p.full and uses.count(p.parameter) == 1 for p in readers):
            continue
        if abs(total) > 1e-3 * float(function.tensors[beta].abs().max()):  # else the step is too long for any orbit
            where = tuple((p.parameter, p.index.reshape(*p.index.shape[:2], -1)) for p in readers)
            family = LayerNormShifts(beta, path, where, entries)
            words = f"{beta} plus any vector, absorbed by columns of {', '.join(name for name, _ in where)}"
            found.append(SymmetryGroup("column", (beta, *(name for name, _ in where)), family.size, words, family))
    return found


def _remaining_entries(width: int, known: list[SymmetryFamily | None]) -> Tensor:
    """Return the entries of a shift that are not already known to be free."""
    free = torch.zeros(width, dtype=torch.bool)
    for family in known:
        if isinstance(family, BiasShifts) and family.basis.ndim == 1:
            free[family.basis] = True
        elif isinstance(family, BiasShifts):
            free[family.basis.abs().argmax(1)] = True
    return torch.arange(width)[~free]
