r"""Diagonal symmetries ``theta -> theta exp(t E)``: scales that normalizers undo, rescalings between layers.

One linear system over the channels of the network gives all of them: BatchNorm's per channel, GroupNorm's per group,
LayerNorm's and RMSNorm's per layer, weight normalization's per vector, ReLU's between layers and through
``(gamma, beta)``, those of residual streams with all writers and readers tied, of shared weights, of gates and heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from normscope.geometry.groups import Group, Point
from normscope.geometry.labels import Labels, Product, Solution


@dataclass(frozen=True, eq=False)
class Scales:
    """Solutions of the system of scales.

    Attributes:
        labels: the labelled network.
        solution: the solved system.
        basis: one solution per coefficient: the scale of each class.
        parameters: the names of what they move.
        shapes: of these parameters.
    """

    labels: Labels
    solution: Solution
    basis: tuple[dict[int, float], ...]
    parameters: tuple[str, ...]
    shapes: dict[str, torch.Size]

    @property
    def size(self) -> int:
        """Return the number of solutions."""
        return len(self.basis)

    def subset(self, keep: Tensor) -> Scales:
        """Return some of the solutions."""
        return replace(self, basis=tuple(self.basis[i] for i in keep.tolist()))

    def offset(self, name: str) -> float:
        """Return what is added to a parameter before anything is scaled."""
        return self.labels.offsets.get(name, 0.0)

    def of_labels(self, coefficients: Tensor) -> Tensor:
        """Return the scale of every label."""
        return self.solution.of_labels(coefficients.tolist(), self.basis)

    def exponents(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the exponent of every entry of every parameter that is moved."""
        scale = self.of_labels(coefficients)
        found: dict[str, Tensor] = {}
        wanted = set(self.parameters)
        for entry in self.labels.entries:
            if entry.parameter in wanted:
                found[entry.parameter] = scale[entry.labels.clamp_min(0)]
        for product in self.labels.products:
            if product.parameter not in wanted or product.parameter in found:
                continue
            made = torch.zeros(self.shapes[product.parameter].numel(), dtype=torch.float64)
            of_inputs = scale[product.inputs.clamp_min(0)]
            both = scale[product.outputs][:, None] - of_inputs
            index = product.index
            made[index.reshape(-1)] = (
                both.reshape(*both.shape, *(1,) * (index.ndim - 2)).expand(index.shape).reshape(-1)
            )
            others = [p for p in self.labels.products if p.parameter == product.parameter and p is not product]
            for other in others:  # a parameter used in slices
                more = scale[other.outputs][:, None] - scale[other.inputs.clamp_min(0)]
                place = other.index
                wide = more.reshape(*more.shape, *(1,) * (place.ndim - 2)).expand(place.shape)
                made[place.reshape(-1)] = wide.reshape(-1)
            found[product.parameter] = made.reshape(self.shapes[product.parameter])
        for lifted, _ in self.labels.lifted:
            if lifted.parameter in wanted:
                found[lifted.parameter] = found[lifted.parameter] + self.of_lifted(lifted, scale)
        for frozen in self.labels.frozen:
            if frozen.gamma in wanted or frozen.beta in wanted:
                found[frozen.gamma] = scale[frozen.outputs] - scale[frozen.inputs.clamp_min(0)]
                found[frozen.beta] = scale[frozen.outputs]
        return found

    def of_lifted(self, lifted: Product, scale: Tensor) -> Tensor:
        """Return the exponents of a weight ``g v/||v||``, by the scales of what it gives and reads."""
        both = scale[lifted.outputs][:, None] - scale[lifted.inputs.clamp_min(0)]
        return both.reshape(*both.shape, *(1,) * (lifted.index.ndim - 2)).expand(lifted.index.shape)

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return ``E theta``, and what a BatchNorm with fixed statistics needs besides."""
        found = {name: e * (point[name] + self.offset(name)) for name, e in self.exponents(coefficients).items()}
        scale = self.of_labels(coefficients)
        for frozen in self.labels.frozen:
            if frozen.beta in found:
                extra = -scale[frozen.inputs.clamp_min(0)] * point[frozen.gamma] * frozen.offset
                found[frozen.beta] = found[frozen.beta] + extra
        for lifted, gain in self.labels.lifted:
            if gain in self.parameters:  # g' = g ||v'||/||v||
                squares = point[lifted.parameter].square()
                rate = (self.of_lifted(lifted, scale) * squares).flatten(1).sum(1) / squares.flatten(1).sum(1)
                found[gain] = point[gain] * rate.reshape(point[gain].shape)
        return found

    def move(self, point: Point, coefficients: Tensor, time: float) -> dict[str, Tensor]:
        """Return ``theta exp(t E)``."""
        found = {
            name: (point[name] + self.offset(name)) * (time * e).exp() - self.offset(name)
            for name, e in self.exponents(coefficients).items()
        }
        scale = self.of_labels(coefficients) * time
        for frozen in self.labels.frozen:
            if frozen.beta in found:
                x, y = scale[frozen.inputs.clamp_min(0)], scale[frozen.outputs]
                found[frozen.beta] = (
                    found[frozen.beta] + y.exp() * point[frozen.gamma] * torch.expm1(-x) * frozen.offset
                )
        for lifted, gain in self.labels.lifted:
            if gain in self.parameters:
                v, factors = point[lifted.parameter], self.of_lifted(lifted, scale).exp()
                ratio = (v * factors).flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)
                found[gain] = point[gain] * ratio.reshape(point[gain].shape)
        return found


def scale_groups(
    labels: Labels, shapes: dict[str, torch.Size], *, without: frozenset[int] = frozenset()
) -> list[Group]:
    """Return the diagonal candidates, those that move the same parameters in one group.

    Args:
        labels: the labelled network.
        shapes: of every parameter.
        without: labels whose scales are part of a larger group.
    """
    solved = labels.solve()
    where = _parameters_by_class(labels, solved.classes)
    skipped = {int(solved.classes[label]) for label in without}
    found: dict[tuple[str, ...], list[dict[int, float]]] = defaultdict(list)
    for solution in solved.basis:
        if set(solution) <= skipped:
            continue
        parameters = tuple(sorted({name for label in solution for name in where.get(label, ())}))
        if parameters:
            found[parameters].append(solution)
    order = {name: i for i, name in enumerate(shapes)}
    groups = []
    for parameters, members in found.items():
        family = Scales(labels, solved, tuple(members), tuple(sorted(parameters, key=order.__getitem__)), shapes)
        groups.append(_group(family))
    return [group for group in groups if group is not None]


def _parameters_by_class(labels: Labels, roots: np.ndarray) -> dict[int, set[str]]:
    """Return which parameters each class of labels moves."""
    where: dict[int, set[str]] = defaultdict(set)

    def note(name: str, found: Tensor) -> None:
        for label in torch.unique(found).tolist():
            if label > 0:
                where[int(roots[label])].add(name)

    for entry in labels.entries:
        note(entry.parameter, entry.labels)
    for product in labels.products:
        note(product.parameter, product.outputs)
        note(product.parameter, product.inputs)
    for frozen in labels.frozen:
        for name in (frozen.gamma, frozen.beta):
            note(name, frozen.outputs)
            note(name, frozen.inputs)
    for lifted, gain in labels.lifted:
        for name in (lifted.parameter, gain):
            note(name, lifted.outputs)
            note(name, lifted.inputs)
    return where


def _group(family: Scales) -> Group | None:
    """Return a group of scales with its statement, or ``None`` if nothing moves."""
    each = torch.ones(family.size, dtype=torch.float64)
    exponents = family.exponents(each)
    for lifted, gain in family.labels.lifted:
        exponents |= {gain: family.of_lifted(lifted, family.of_labels(each))} if gain in family.parameters else {}
    moved = {name: e for name, e in exponents.items() if bool((e != 0).any())}
    if not moved:
        return None
    family = replace(family, parameters=tuple(name for name in family.parameters if name in moved))
    up = [name for name in family.parameters if bool((moved[name] > 0).any())]
    down = [name for name in family.parameters if bool((moved[name] < 0).any())]
    many = f"{family.size} positive factors" if family.size > 1 else "one positive factor"
    if up and down:
        kind, words = "rescaling", f"{many}: {_list(up)} times c, {_list(down)} divided by c"
    else:
        kind, words = "scale", f"{many}: {_list(up or down)} times c, undone by the normalizer after it"
    return Group(kind, family.parameters, family.size, words, family)


def _list(names: Sequence[str]) -> str:
    """Return a few names."""
    shown = list(names[:4])
    return ", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
