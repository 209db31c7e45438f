"""The description of a kind of normalizer, and the registry of all kinds: one file each in ``normalizers/``.

A module of ``operators/normalizers`` that defines ``NORMALIZER`` is a normalizer, under the module's name. Its rules
for operations register themselves with ``@rule``; everything else is in its :class:`Normalizer`.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.core.lazy import modules_in
from normscope.core.value import Kind, Value
from normscope.graph.ir import Node
from normscope.graph.recognise import Match
from normscope.operators.expression import Expr
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from normscope.operators.quadratic_form import RootQuotient
from normscope.operators.site import Site
from normscope.operators.spread_division import Spread, division_constant
from normscope.operators.written_out import NormalizerCandidate, Surroundings, WrittenOut


@dataclass(frozen=True)
class Constants:
    """The Lipschitz constants of one normalizer in a network."""

    proved: Value  #: certified, on all inputs
    on_floor: Value | None = None  #: where the spread before it stays above the floor, if there is one
    printed: Value | None = None  #: what the paper prints for the same situation
    printed_is_bound: bool | None = None  #: whether the printed number is at least the proved one there
    slides: Value | None = None  #: what the slides print, scale included


#: The constants of a normalizer at a site, given the least spreads seen before it and what BatchNorm does: ``running``,
#: ``batch`` or ``frozen-batch``.
ConstantsOf = Callable[[Site, Tensor | None, str], Constants]


@dataclass(frozen=True)
class Symmetry:
    """Changes of the weights ``W x + b`` before a normalizer that do not change its output, up to ``eps``.

    >>> Symmetry("layer", row=True, shift=True).dimension(neurons=4, inputs=3)
    5
    """

    #: what has a positive factor of its own: every ``neuron``, every ``group`` of them, or the ``layer``
    per: Literal["neuron", "group", "layer"]
    row: bool = False  #: one row may be added to all rows of such a unit, ``W + 1 v^T``
    shift: bool = False  #: one number may be added to all biases of such a unit

    def dimension(self, neurons: int, inputs: int, groups: int = 1) -> int:
        """Return the number of directions of ``(W, b)`` to which the output is invariant."""
        units = {"neuron": neurons, "group": groups, "layer": 1}[self.per]
        return units * (1 + inputs * self.row + self.shift)


@dataclass(frozen=True)
class Normalizer:
    """One kind of normalizer."""

    kind: str  #: its name, which is that of its file
    formula: str  #: what it computes, in one line
    constants: ConstantsOf  #: its constants at a site
    ops: tuple[str, ...] = ()  #: the operations of torch that are this normalizer
    modules: tuple[type[nn.Module], ...] = ()  #: the module classes of torch that are this normalizer
    #: given such a module and the shape of its input, how it divides
    module_spread: Callable[[Any, tuple[int, ...]], Spread] | None = None
    #: the changes of the weights before it to which it is invariant; of the weight itself, for one of weights
    symmetry: Symmetry | None = None
    adaptive: str = ""  #: its kind if its scale and shift depend on the input; empty if that is the same
    across_batch: bool = False  #: in training its statistics are those of the batch, so that samples interact
    keeps_mean_square: bool = False  #: its running statistic is a mean square, not a mean and a variance
    estimated: bool = True  #: its running statistics are estimated in training, not set from the data beforehand
    verified: bool = True  #: it is recognized by its values at random inputs, not by its pattern alone
    #: whether a division by a spread, written out of elementary operations, is this normalizer
    claims: Callable[[Match, Spread], bool] | None = None
    takes_any_axes: bool = False  #: it claims divisions over any axes; more specific normalizers come first
    #: finds it written out in another way
    written_out: Callable[[NormalizerCandidate], WrittenOut | None] | None = None
    #: builds it from a tensor over a root of its own quadratic form, if that is this normalizer
    fits: Callable[[NormalizerCandidate, RootQuotient, Expr], WrittenOut | None] | None = None
    #: whether a node made of parameters is this normalizer of weights
    of_weight: Callable[[Node, Surroundings], bool] | None = None

    @property
    def of_weights(self) -> bool:
        """Return whether it acts on weights: it changes the effective weight, and has no constant in the input."""
        return self.of_weight is not None


@functools.cache
def normalizers() -> dict[str, Normalizer]:
    """Return every normalizer by its kind, in alphabetical order.

    >>> normalizers()["group_norm"].ops
    ('group_norm', 'native_group_norm')
    """
    found = [getattr(module, "NORMALIZER", None) for module in modules_in("normscope.operators.normalizers")]
    return {normalizer.kind: normalizer for normalizer in found if normalizer is not None}


@functools.cache
def kinds_by_op() -> dict[str, str]:
    """Return the kind of normalizer that each operation of torch is.

    >>> kinds_by_op()["native_group_norm"]
    'group_norm'
    """
    return {op: kind for kind, normalizer in normalizers().items() for op in normalizer.ops}


def acts_on_weights(site: Site) -> bool:
    """Return whether a normalizer acts on a weight or another learned array, not on what depends on the input."""
    return site.of_array or normalizers()[site.kind].of_weights


def row_of_weights(row: Any) -> bool:
    """Return whether a row of a result is a normalizer of weights, by its kind and the statement of its constant."""
    return normalizers()[row.kind].of_weights or str(row.proved.statement).startswith("acts on a learned array")


def couples_samples(kind: str) -> bool:
    """Return whether the statistics of a kind of normalizer are those of a batch while training."""
    return normalizers()[kind].across_batch


def module_kind(module: nn.Module) -> str | None:
    """Return the kind of normalizer that a module of torch is, or ``None``.

    >>> module_kind(nn.GroupNorm(1, 2)), module_kind(nn.Linear(1, 1))
    ('group_norm', None)
    """
    return next((kind for kind, n in normalizers().items() if isinstance(module, n.modules)), None)


def site_constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    """Return the constants of a normalizer in a network."""
    return of_the_weight(site, floor, mode) if site.of_array else normalizers()[site.kind].constants(site, floor, mode)


def of_the_weight(site: Site, floor: Tensor | None, mode: str) -> Constants:
    """Return the constants of a normalizer of weights, which does not depend on the input."""
    what = "acts on a learned array, which does not depend on the input"
    what = what if site.of_array else "acts on the weight: see the effective weight of its layer"
    return Constants(Value(0.0, Kind.CERTIFIED, statement=what))


def proved(number: float, statement: str = "", mode: str | None = None) -> Constants:
    """Return constants that are one number, certified on all inputs."""
    return Constants(Value.of(number, Kind.CERTIFIED, mode=mode, statement=statement))


def no_bound(statement: str = "") -> Constants:
    """Return the constants of a normalizer without a finite bound on all inputs."""
    return proved(math.inf, statement)


#: What a paper prints: the number as a function of the least spreads and eps, and its statement.
Printed = tuple[Callable[[Tensor, float], float], str]


def spread_constants(
    statement: str, printed: Printed | None = None, *, across_batch: bool = False, fixed: ConstantsOf | None = None
) -> ConstantsOf:
    """Return the function that computes ``||Gamma P|| / sqrt(s^2 + eps)`` at a site, with s = 0 on all inputs.

    Args:
        statement: the statement that proves it.
        printed: what a paper prints for it.
        across_batch: its groups reach across the batch, so that the mode of BatchNorm belongs to the value.
        fixed: the constants of the same normalizer with fixed statistics.
    """

    def constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
        if site.running is not None and fixed is not None:
            return fixed(site, floor, mode)
        spread = site.spread
        if spread is None:
            return no_bound()
        batch = "batch" if across_batch else None
        shape = [1 if i != spread.channel_axis else n for i, n in enumerate(spread.view)]
        zero = torch.zeros(shape, dtype=torch.float64)
        proved = Value.of(scaled_constant(site, spread, zero), Kind.CERTIFIED, mode=batch, statement=statement)
        on_floor = None
        if floor is not None:
            number = scaled_constant(site, spread, floor)
            on_floor = Value.of(number, Kind.CERTIFIED, domain=_floor_name(floor), mode=batch, statement=statement)
        if printed is None:
            return Constants(proved, on_floor)
        number = printed[0](zero if floor is None else floor, site.eps)
        value = Value.of(number, Kind.PRINTED, mode=batch, statement=printed[1])
        against = proved if on_floor is None else on_floor
        return Constants(proved, on_floor, value, value.log >= against.log - 1e-12)

    return constants


def _floor_name(floor: Tensor) -> str:
    least = f"{float(floor.min()):.6g}"
    if float(floor.max()) > float(floor.min()):
        return f"standard deviations before it above those seen, each channel its own (the smallest is {least})"
    return f"std before it >= {least}"


def scaled_constant(site: Site, spread: Spread, floor: Tensor) -> float:
    """Return the constant of division and scale together, at the least spreads of the groups."""
    constants = division_constant(spread, floor).flatten()
    if bool(torch.isinf(constants).any()):
        return math.inf
    gamma = None if site.gamma is None else site.gamma.detach().double()
    if gamma is None or gamma.numel() == 1:
        scale = 1.0 if gamma is None else float(gamma.abs().max())
        return float(constants.max()) * scale * (1 + 1e-14)
    if spread.channel_axis is None:
        scale = centered_scale_norm(gamma.flatten()) if _centres_over(gamma, spread) else float(gamma.abs().max())
        return float(constants.max()) * scale * (1 + 1e-14)
    groups = spread.view[spread.channel_axis]
    per_group = gamma.flatten().reshape(groups, -1)
    norms = per_group.abs().amax(1)
    if spread.centered and per_group.shape[1] > 1:
        repeated = per_group.repeat_interleave(min(spread.size // per_group.shape[1], 3), dim=1)
        norms = torch.tensor([centered_scale_norm(g) for g in repeated], dtype=torch.float64)
    return float((norms * constants.expand(groups)).max()) * (1 + 1e-14)


def _centres_over(gamma: Tensor, spread: Spread) -> bool:
    """Return whether the scale has one entry per element of a centred group: its axes are exactly the averaged ones."""
    rank = len(spread.view)
    varies = {axis for axis, length in enumerate(gamma.shape, rank - gamma.ndim) if length > 1}
    covered = {axis % rank for axis in spread.axes if spread.view[axis] > 1}
    return spread.centered and gamma.ndim <= rank and varies == covered and gamma.numel() == spread.size
