r"""Diagonal symmetries ``theta -> theta exp(t E)``: scales that normalizers undo, rescalings between layers.

One linear system over the channels of the network gives all of them: BatchNorm's per channel, GroupNorm's per group,
LayerNorm's and RMSNorm's per layer, weight normalization's per vector, ReLU's between layers and through
``(gamma, beta)``, those of residual streams with all writers and readers tied, of shared weights, of gates and heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import listed
from normscope.geometry.channels.labels import ChannelLabels, ChannelWeight, unique
from normscope.geometry.flow import Point
from normscope.geometry.groups import SplitFamily, SymmetryGroup


@dataclass(frozen=True, eq=False)
class ChannelScales(SplitFamily):
    """Diagonal symmetries: solutions of the equations between the scales of channel labels."""

    labels: ChannelLabels  #: the labelled network
    classes: np.ndarray  #: the class of every label
    basis: tuple[dict[int, float], ...]  #: one solution per coefficient: the scale of each class
    parameters: tuple[str, ...]  #: the names of what they move
    shapes: dict[str, torch.Size]  #: of these parameters

    def offset(self, name: str) -> float:
        """Return the constant added to a parameter before it is scaled."""
        return self.labels.offsets.get(name, 0.0)

    def of_labels(self, coefficients: Tensor) -> Tensor:
        """Return the scale of every label."""
        found = np.zeros(len(self.classes))
        for c, solution in zip(coefficients.tolist(), self.basis, strict=True):
            for label, value in solution.items():
                found[label] += c * value
        return torch.from_numpy(found[self.classes])

    def exponents(self, scale: Tensor) -> dict[str, Tensor]:
        """Return the exponent of every entry of every parameter that is moved, given the scale of every label."""
        wanted = set(self.parameters)
        found: dict[str, Tensor] = {}
        for name, index, labels, sign in self.labels.terms(wanted):
            before = found.get(name, torch.zeros(self.shapes[name], dtype=torch.float64)).reshape(-1)
            made = before.index_add(0, index.reshape(-1), sign * scale[labels.clamp_min(0)].reshape(-1))
            found[name] = made.reshape(self.shapes[name])
        for frozen in self.labels.fixed_batch_norms:
            if frozen.gamma in wanted or frozen.beta in wanted:
                found[frozen.gamma] = scale[frozen.outputs] - scale[frozen.inputs.clamp_min(0)]
                found[frozen.beta] = scale[frozen.outputs]
        return found

    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return ``theta exp(t E)``, and what BatchNorms with fixed statistics and normed weights need besides."""
        scale = self.of_labels(coefficients) * time
        found = {
            name: (point[name] + self.offset(name)) * e.exp() - self.offset(name)
            for name, e in self.exponents(scale).items()
        }
        for frozen in self.labels.fixed_batch_norms:
            if frozen.beta in found:
                x, y = scale[frozen.inputs.clamp_min(0)], scale[frozen.outputs]
                extra = y.exp() * point[frozen.gamma] * torch.expm1(-x) * frozen.offset
                found[frozen.beta] = found[frozen.beta] + extra
        for normalized, gain in self.labels.weight_normalized:
            if gain in self.parameters:  # g' = g ||v'||/||v||
                v, factors = point[normalized.parameter], _product(normalized, scale).exp()
                ratio = (v * factors).flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)
                found[gain] = point[gain] * ratio.reshape(point[gain].shape)
        return found


def _product(product: ChannelWeight, scale: Tensor) -> Tensor:
    """Return the exponents of a weight: the scales of its outputs minus those of its inputs."""
    return torch.stack([sign * scale[labels.clamp_min(0)] for _, _, labels, sign in product.terms()]).sum(0)


def scale_groups(
    labels: ChannelLabels, shapes: dict[str, torch.Size], *, without: frozenset[int] = frozenset()
) -> list[SymmetryGroup]:
    """Return the diagonal candidates except those of some labels; those that move the same parameters are one group."""
    classes, basis = labels.solve()
    where = _parameters_by_class(labels, shapes, classes)
    skipped = {int(classes[label]) for label in without}
    found: dict[tuple[str, ...], list[dict[int, float]]] = defaultdict(list)
    for solution in basis:
        if set(solution) <= skipped:
            continue
        parameters = tuple(sorted({name for label in solution for name in where.get(label, ())}))
        if parameters:
            found[parameters].append(solution)
    order = {name: i for i, name in enumerate(shapes)}
    groups = []
    for parameters, members in found.items():
        family = ChannelScales(
            labels, classes, tuple(members), tuple(sorted(parameters, key=order.__getitem__)), shapes
        )
        groups.append(_group(family))
    return [group for group in groups if group is not None]


def _parameters_by_class(labels: ChannelLabels, names: Container[str], roots: np.ndarray) -> dict[int, set[str]]:
    """Return which parameters each class of labels moves."""
    where: dict[int, set[str]] = defaultdict(set)

    def note(name: str, found: Tensor) -> None:
        for label in unique(found):
            if label > 0:
                where[int(roots[label])].add(name)

    for name, _, found, _ in labels.terms(names):
        note(name, found)
    for frozen in labels.fixed_batch_norms:
        for name in (frozen.gamma, frozen.beta):
            note(name, frozen.outputs)
            note(name, frozen.inputs)
    for normalized, gain in labels.weight_normalized:
        note(gain, normalized.outputs)
        note(gain, normalized.inputs)
    return where


def _group(family: ChannelScales) -> SymmetryGroup | None:
    """Return a group of scales with its statement, or ``None`` if nothing moves."""
    scale = family.of_labels(torch.ones(family.size, dtype=torch.float64))
    exponents = family.exponents(scale)
    for normalized, gain in family.labels.weight_normalized:
        exponents |= {gain: _product(normalized, scale)} if gain in family.parameters else {}
    moved = {name: e for name, e in exponents.items() if bool((e != 0).any())}
    if not moved:
        return None
    family = replace(family, parameters=tuple(name for name in family.parameters if name in moved))
    up = [name for name in family.parameters if bool((moved[name] > 0).any())]
    down = [name for name in family.parameters if bool((moved[name] < 0).any())]
    many = f"{family.size} positive factors" if family.size > 1 else "one positive factor"
    if up and down:
        kind, words = "rescaling", f"{many}: {listed(up, 4)} times c, {listed(down, 4)} divided by c"
    else:
        kind, words = "scale", f"{many}: {listed(up or down, 4)} times c, undone by the normalizer after it"
    return SymmetryGroup(kind, family.parameters, family.size, words, family)
