"""Symmetry groups of a network: which parameters they move, how, and how that was verified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import torch.autograd.forward_ad as forward
from torch import Tensor

from normscope.core.json_form import fields_of
from normscope.geometry.flow import Point


def velocity(path: Callable[[Tensor], Point]) -> dict[str, Tensor]:
    """Return the derivative of a path of parameters at time zero.

    >>> velocity(lambda time: {"w": torch.tensor([2.0]).double() * (3 * time).exp()})["w"].tolist()
    [6.0]
    """
    with forward.dual_level():
        time = forward.make_dual(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
        moved = {name: forward.unpack_dual(value) for name, value in path(time).items()}
    return {name: torch.zeros_like(p) if t is None else t for name, (p, t) in moved.items()}


class SymmetryFamily(ABC):
    """A family of directions along which the function does not change, linear in its coefficients."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Return the number of coefficients."""

    @abstractmethod
    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return the parameters that changed after moving along the orbit for a time."""

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the direction at a point, the velocity of its orbit; differentiable in the point."""
        return velocity(lambda time: self.move(point, coefficients, time))


class SplitFamily(SymmetryFamily):
    """A family that can be restricted to some of its coefficients."""

    basis: Any  #: what each coefficient moves

    @property
    def size(self) -> int:
        """Return the number of coefficients."""
        return len(self.basis)

    def subset(self, keep: Tensor) -> Self:
        """Return the family restricted to some of its coefficients."""
        basis = self.basis[keep] if isinstance(self.basis, Tensor) else tuple(self.basis[i] for i in keep.tolist())
        return replace(self, basis=basis)  # type: ignore[type-var]  # every such family is a dataclass


class StraightFamily(SymmetryFamily):
    """A family whose orbits are straight lines."""

    @abstractmethod
    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the direction at a point, differentiable in the point."""

    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return the parameters that changed."""
        return {name: point[name] + time * value for name, value in self.field(point, coefficients).items()}


@dataclass(frozen=True)
class Certificate:
    """How far a group is from being a symmetry, measured in float64."""

    derivative: float  #: ``||J X||`` at eps = 0, relative to a random direction as long on the same parameters
    orbit: float  #: largest change of the outputs along a finite orbit at eps = 0, relative to their size
    gradient: float | None = None  #: ``|<grad L, X>|/(||grad L|| ||X||)`` at eps = 0
    #: ``||H X + (DX)^T grad L||/||grad L||`` at eps = 0: for a scale this is ``||H w + grad L||``. ``None`` if it was
    #: not requested.
    hessian: float | None = None
    broken: float | None = None  #: ``<grad L, X>`` with the model's own eps
    predicted: float | None = None  #: what the stabilizers should make of it
    exact: bool = True  #: whether eps could be taken out; otherwise the numbers above are with it


@dataclass(frozen=True, eq=False)
class SymmetryGroup:
    """One group of symmetries."""

    kind: str  #: ``scale``, ``rescaling``, ``shift``, ``row``, ``linear``, ``rotation``, ``permutation`` or ``unused``
    parameters: tuple[str, ...]  #: the names of what it moves
    dimension: int  #: of its orbit; 0 for a discrete group
    statement: str  #: the symmetry in one line of text
    #: its directions and orbits, which are not stored; ``None`` for a discrete group
    family: SymmetryFamily | None = field(default=None, compare=False)
    certificate: Certificate | None = None  #: how it was verified
    details: dict[str, Any] = field(default_factory=dict)  #: sizes, of heads or groups, for a discrete group its order

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without what was not measured."""
        found = fields_of(self)
        proof = found.pop("certificate") or {}
        measured = {k: v for k, v in proof.items() if v is not None}
        return found | ({"certificate": measured} if measured else {})


def length(direction: Point) -> float:
    """Return the Euclidean length of a direction.

    >>> length({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return sum(float(value.double().square().sum()) for value in direction.values()) ** 0.5


def total(directions: Iterable[Point]) -> dict[str, Tensor]:
    """Return the sum of directions."""
    found: dict[str, Tensor] = {}
    for direction in directions:
        found |= {name: found[name] + value if name in found else value for name, value in direction.items()}
    return found


def random_like(direction: Point, seed: int = 0) -> dict[str, Tensor]:
    """Return a random direction that moves the same parameters, each by the same length."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in direction.items():
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        found[name] = drawn * (value.norm() / drawn.norm().clamp_min(1e-300))
    return found
