r"""Bias shifts: a constant added to a channel that a normalizer or softmax removes, or another bias compensates.

Each bias is moved in a forward-mode run of the network; where the change reaches another bias as a constant per
channel, that bias cancels it. The shift is a symmetry if nothing arrives at the outputs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.autograd.forward_ad as forward
from torch import Tensor

from normscope.geometry.candidates.biases import Biases, equal, takes_up
from normscope.geometry.candidates.gains import GainPath
from normscope.geometry.certificate import FLAT, TOLERANCE, across, coefficients_of
from normscope.geometry.channels.labels import ChannelLabels, unique
from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import Certificate, SplitFamily, StraightFamily, SymmetryGroup
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of


class _MovesError(Exception):
    """A shift changes the outputs."""


class _EndedError(Exception):
    """All changes caused by a shift are compensated."""


def _averaged(tangent: Tensor, of_values: Tensor | None) -> Tensor:
    """Return the change behind attention as that of its values, where all of them change alike.

    Torch cannot differentiate a forward derivative of softmax, and averages of a constant need none.
    """
    if of_values is not None and of_values.shape[:-2] == tangent.shape[:-2]:
        constant = of_values[..., :1, :].expand_as(tangent)
        if equal(constant, tangent, 0.0):
            return constant
    return tangent.detach()


@dataclass(frozen=True, eq=False)
class BiasShifts(StraightFamily, SplitFamily):
    """Constants added to one parameter and compensated by others."""

    kind = "shift"

    function: ModelFunction  #: the model
    biases: Biases  #: where parameters are added
    source: str  #: the parameter that is moved
    #: what each coefficient adds to it: indices of single entries, or a matrix with one row per coefficient
    basis: Tensor
    beside: bool = False  #: whether the other summand of a sum may compensate
    closed: frozenset[str] = frozenset()  #: parameters that must not compensate
    path: GainPath | None = None  #: gains by which what is added is divided
    read: frozenset[str] = frozenset()  #: parameters that the change passes before it is compensated

    def start(self, point: Point, coefficients: Tensor) -> Tensor:
        """Return the change of the source parameter."""
        shape = self.function.tensors[self.source].shape
        line = self.combined(coefficients, shape.numel())
        if self.path is not None:
            line = line / self.path.factors(point)
        return line.expand(shape) if line.numel() != shape.numel() else line.reshape(shape)

    def combined(self, coefficients: Tensor, size: int) -> Tensor:
        """Return the combination of the basis with these coefficients, of a given size where it is single entries."""
        if self.basis.ndim == 2:
            return coefficients @ self.basis
        return torch.zeros(size, dtype=torch.float64).index_copy(0, self.basis, coefficients)

    def push(
        self, coefficients: Tensor, point: Point | None = None, *, until: float = math.inf
    ) -> tuple[dict[str, Tensor], Tensor, set[str]]:
        """Return the whole direction, how the outputs change along it, and the nodes that change.

        Args:
            coefficients: one for each row of the basis.
            point: where; the function's own parameters by default.
            until: give up as soon as the outputs are known to move by more, and nothing behind can compensate.

        Raises:
            _MovesError: if it gave up.
        """
        here = self.function.point if point is None else point
        direction, changed = {self.source: self.start(here, coefficients)}, set[str]()
        known = self.function.known if point is None else {}
        with torch.no_grad():
            tangents = self._run(here, direction, changed, known, until)
        moved = torch.cat([(torch.zeros_like(p) if t is None else t).reshape(-1) for p, t in tangents])
        return direction, moved, changed

    def _differentiable(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the direction at the function's own parameters, as a function of them."""
        near = self.nearby | self.read | {self.source}
        here = {name: value if name in near else self.function.tensors[name] for name, value in point.items()}
        direction = {self.source: self.start(here, coefficients)}
        with contextlib.suppress(_EndedError):
            self._run(here, direction, set(), {}, ends=True)
        return direction

    @property
    def nearby(self) -> set[str]:
        """Return parameters before the source on which the direction depends."""
        return set() if self.path is None else {name for name, _ in self.path.gains}

    def _read(self, nodes: set[str]) -> set[str]:
        """Return the parameters that some nodes read, also transposed or otherwise computed without the inputs."""
        graph, behind = self.function.graph, set[str]()
        found: set[str] = set()
        made: dict[str, set[str]] = {}  # the parameters that what does not depend on the inputs is made of
        for node in graph:
            if node.op == "input" or not behind.isdisjoint(node.inputs()):
                behind.add(node.name)
            elif node.op == "parameter":
                made[node.name] = {self.function.canonical(node.target)}
            else:
                made[node.name] = {name for before in node.inputs() for name in made[before]}
            if node.name in nodes:
                found |= {name for before in node.inputs() for name in made.get(before, ())}
        return found

    def _run(
        self,
        here: Point,
        direction: dict[str, Tensor],
        changed: set[str],
        known: Mapping[str, Any],
        until: float = math.inf,
        *,
        ends: bool = False,
    ) -> list[Any]:
        """Return the outputs and their tangents; biases compensate changes on the way.

        Args:
            here: the parameters.
            direction: of the source; those of the biases are added.
            changed: receives the nodes that change.
            known: values of nodes where nothing changes.
            until: give up as soon as the outputs are known to move by more.
            ends: end the run when nothing changes any more.
        """
        noise = 1e-11 * float(direction[self.source].detach().abs().max())
        last, open_ends = self.function.graph.last_uses, set[str]()

        def visit(node: Node, value: Any, values: Any) -> Any:
            open_ends.difference_update(last[node.name])
            several = [item for item in value if isinstance(item, Tensor)] if isinstance(value, tuple | list) else []
            if any(forward.unpack_dual(item).tangent is not None for item in several):
                changed.add(node.name)
                if self._taken_inside(node, values, direction, noise):
                    return type(value)(forward.unpack_dual(item).primal for item in value)
                open_ends.add(node.name)
            if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
                return None
            primal, tangent = forward.unpack_dual(value)
            if tangent is None:
                if ends and changed and not open_ends:
                    raise _EndedError
                return None
            changed.add(node.name)
            ended = known.get(node.name, primal)
            kept = None
            if tangent.requires_grad and name_of(node) == "scaled_dot_product_attention":
                tangent = _averaged(tangent, forward.unpack_dual(values[node.args[2].name]).tangent)
                kept = forward.make_dual(primal, tangent)
            if float(tangent.detach().abs().max()) <= noise and not (tangent.requires_grad and takes_up(node)):
                return ended
            candidates = [self.biases.own[node.name]] if node.name in self.biases.own else []
            candidates += self.biases.beside.get(node.name, []) if self.beside else []
            for absorber in candidates:
                if absorber.parameter in direction or absorber.parameter in self.closed:
                    continue
                taken = absorber.absorbed(tangent, self.function.tensors[absorber.parameter].shape, noise)
                if taken is not None:
                    direction[absorber.parameter] = taken.clone()
                    return ended
            open_ends.add(node.name)
            if until < math.inf and len(open_ends) == 1 and self._moves(node, tangent, until):
                raise _MovesError
            return kept

        with forward.dual_level():
            moved = {**here, self.source: forward.make_dual(here[self.source], direction[self.source])}
            return [forward.unpack_dual(t) for t in self.function.outputs(moved, visit, everywhere=False)]

    def _taken_inside(self, node: Node, values: Mapping[str, Any], direction: dict[str, Tensor], noise: float) -> bool:
        """Let the biases of a recurrent layer compensate a change of its inputs; return whether they do."""
        several = self.biases.inside.get(node.name, [])
        if not several or any(bias in direction or bias in self.closed for _, bias in several):
            return False
        point = {self.function.canonical(n.target): n.name for n in self.function.graph if n.op == "parameter"}
        found: dict[str, Tensor] = {}
        for weight, bias in several:
            tangent = forward.unpack_dual(values[node.args[0].name] @ values[point[weight]].mT).tangent
            if tangent is None:
                continue
            line = tangent.reshape(-1, tangent.shape[-1])[0]
            if not equal(line.expand_as(tangent), tangent, noise):
                return False
            found[bias] = -line
        direction |= found
        return bool(found)

    def _moves(self, node: Node, tangent: Tensor, until: float) -> bool:
        """Return whether a change that goes through one node alone moves the outputs by more than a number.

        A change that varies between samples and along every other axis is no constant that a later bias can compensate.
        """
        back = self.function.backwards
        batch = self.function.inputs[0].shape[:1]
        if node.name not in back.nodes or tangent.ndim < 2 or tangent.shape[:1] != batch:
            return False
        least = 1e-6 * float(tangent.abs().max())
        axes = [dim for dim, size in enumerate(tangent.shape) if size > 1 or dim == 0]
        if any(float((tangent - tangent.narrow(dim, 0, 1)).abs().max()) <= least for dim in axes):
            return False
        gradient = back.nodes[node.name]
        along = abs(float((gradient * tangent).sum()))
        return along > max(back.length * until, 1e-9 * float(gradient.norm() * tangent.norm()))

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the direction; it depends on the point through the weights between the biases."""
        if any(value.requires_grad for value in point.values()):
            return self._differentiable(point, coefficients)
        return self.push(coefficients, point)[0]

    def flat_line(self, seed: int = 0, words: str = "") -> FlatLine | None:
        """Return a random direction of the family if the outputs do not change along it, else ``None``.

        Args:
            seed: of the coefficients.
            words: the statement of the symmetry.
        """
        drawn = coefficients_of(self, seed)
        size = across(self.function, {self.source: self.start(self.function.point, drawn)})
        try:
            direction, left, changed = self.push(drawn, until=FLAT * size)
        except _MovesError:
            return None
        along = float(left.norm())
        if not along <= FLAT * size:
            return None
        family = replace(self, read=frozenset(self._read(changed)))
        return FlatLine(family, direction, along / size if size else 0.0, words)


def free_entries(shift: BiasShifts, alike: Sequence[Tensor], seed: int = 0) -> Tensor:
    """Return the entries that may be shifted one by one, tested in sets of entries that are used alike."""
    kept = [shift.basis[keep] for keep in alike if len(alike) > 1 and shift.subset(keep).flat_line(seed)]
    return torch.cat([shift.basis[:0], *kept])


def alike(labels: ChannelLabels, channels: Tensor) -> list[Tensor]:
    """Group positions in a list of channels by how the channels are used."""
    marked = [*(labels.unmixable, labels.squared, labels.summed, labels.unscalable), *map(unique, labels.averaged)]
    marked += [unique(t) for both in labels.attention for t in both]
    roots = [{labels.same.find(label) for label in marks if label >= 0} for marks in marked]
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, root in enumerate(labels.channels(channels)):
        held = frozenset(site.parameter for site in labels.holding(root))
        found.setdefault((held, *(root in marks for marks in roots)), []).append(i)
    return [torch.tensor(positions) for positions in found.values()]


def all_but_one(width: int, groups: int = 1) -> Tensor:
    """Return all entries but the last of each group, for shifts modulo those common to a group.

    >>> all_but_one(6, 2).tolist()
    [0, 1, 3, 4]
    """
    return torch.arange(width).reshape(groups, -1)[:, :-1].reshape(-1)


def ones(width: int, groups: int = 1) -> Tensor:
    """Return the indicator of each group."""
    return torch.block_diag(*[torch.ones(1, width // groups)] * groups).double()


@dataclass(frozen=True, eq=False)
class FlatLine:
    """A family of shifts along which the outputs have no derivative, with one of its directions."""

    shift: BiasShifts  #: the family
    direction: dict[str, Tensor]  #: one direction of it
    derivative: float  #: how far the outputs move along it, relative to a random change of the source
    words: str  #: the statement of the symmetry


def certified(function: ModelFunction, lines: Sequence[FlatLine]) -> list[SymmetryGroup]:
    """Return the groups of those lines along which the outputs do not change, testing all lines at once first."""
    if not lines:
        return []
    moved = function.point
    for line in lines:
        moved |= {name: moved[name] + 0.5 * value for name, value in line.direction.items()}
    orbit = function.change(moved)
    if orbit <= TOLERANCE:
        proofs = [Certificate(line.derivative, orbit) for line in lines]
        return [
            SymmetryGroup(line.shift.kind, tuple(line.direction), line.shift.size, line.words, line.shift, proof)
            for line, proof in zip(lines, proofs, strict=True)
        ]
    half = len(lines) // 2
    return certified(function, lines[:half]) + certified(function, lines[half:]) if half else []
