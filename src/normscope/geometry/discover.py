"""Find the symmetries of a model and verify each of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Stored
from normscope.geometry.candidates.biases import Absorber, Biases, find_biases
from normscope.geometry.candidates.columns import column_groups, offset_groups
from normscope.geometry.candidates.gains import Gains
from normscope.geometry.candidates.matrices import Mixing, matrix_groups
from normscope.geometry.candidates.permutations import permutation_groups
from normscope.geometry.candidates.rows import Rows, group_sizes, row_groups
from normscope.geometry.candidates.scales import scale_groups
from normscope.geometry.candidates.shifts import (
    Line,
    Opposite,
    Shift,
    alike,
    all_but_one,
    certified,
    free_entries,
    ones,
)
from normscope.geometry.certificate import coefficients_of, seems_flat, verify, verify_all
from normscope.geometry.function import Function, function_of
from normscope.geometry.groups import Group, random_like
from normscope.geometry.identities import with_identities
from normscope.geometry.independence import independent
from normscope.geometry.labelling import Labelling
from normscope.geometry.labels import Labels
from normscope.geometry.orbits import Orbit, orbits
from normscope.geometry.stabilizers import reads_constant
from normscope.graph.capture import capture, uncompiled
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs, guess_inputs, iterate

Progress = Callable[[str], None]


def discovered(
    function: Function, say: Progress, seed: int = 0, *, identities: bool = True
) -> tuple[Labels, list[Group]]:
    """Return the labelled channels of a function and its verified continuous symmetries, with their certificates."""
    exact = _evaluable(function)
    say("labelling channels")
    walk = Labelling(function)
    labels = walk.run()
    shapes = {name: function.tensors[name].shape for name in function.names}
    found: list[Group] = _unused(function, labels)
    say("matrices of heads and streams")
    matrices = verify_all(exact, matrix_groups(function, labels), seed)
    say("scales")
    scales = verify_all(exact, scale_groups(labels, shapes, without=_covered(labels, matrices)), seed)
    # with eps no normalizer undoes a scale; what passes is a weight of zeros, whose bias is among the shifts
    found += [group for group in scales if exact is not function or group.kind != "scale"]
    found += matrices
    say("rows")
    rows = _rows(exact, labels, seed)
    say("shifts")
    found = independent(found + rows + _shifts(exact, labels, rows, seed))
    if not identities:
        return labels, found
    say("gradient and Hessian")
    return labels, with_identities(function, exact, walk, found, seed)


def scalings(function: Function, say: Progress, seed: int = 0) -> list[Group]:
    """Return the verified scales of weights that a normalizer undoes: one derivative for all of them."""
    say("labelling channels")
    labels = Labelling(function).run()
    say("scales")
    shapes = {name: function.tensors[name].shape for name in function.names}
    found = [group for group in scale_groups(labels, shapes) if group.kind == "scale"]
    return verify_all(_evaluable(function), found, seed)


def _evaluable(function: Function) -> Function:
    """Return the function without stabilizers, or with them where a channel is constant and needs them."""
    chosen = function if reads_constant(function) else function.exact()
    for candidate in (chosen, function):
        if bool(candidate.derivative(random_like(candidate.point)).isfinite().all()):
            return candidate
    raise InputError("Derivatives of the outputs are not finite: perhaps a normalizer with eps = 0 reads a constant.")


def _unused(function: Function, labels: Labels) -> list[Group]:
    """Return the parameters that nothing reads."""
    used = {e.parameter for e in labels.entries} | {p.parameter for p in labels.products}
    used |= {name for f in labels.frozen for name in (f.gamma, f.beta)}
    users = function.graph.users()
    read = {function.canonical(n.target) for n in function.graph if n.op == "parameter" and users[n.name]}
    return [
        Group("unused", (name,), function.tensors[name].numel(), f"nothing reads {name}")
        for name in function.names
        if name not in used and name not in read
    ]


def _covered(labels: Labels, groups: list[Group]) -> frozenset[int]:
    """Return the labels whose scales are part of a matrix group."""
    families = [g.family for g in groups if isinstance(g.family, Mixing) and g.family.algebra == "full"]
    found = {label for family in families for frame in family.frames for label in frame.labels}
    return frozenset(label for label in range(1, labels.size) if labels.same.find(label) in found)


def _rows(exact: Function, labels: Labels, seed: int) -> list[Group]:
    """Return the verified rows: for each parameter the largest family."""
    likely: dict[str, Group] = {}
    others: list[Group] = []
    for i, group in enumerate(row_groups(exact, labels)):
        name, family = group.parameters[0], group.family
        if not isinstance(family, Rows):
            others.append(group)
        elif name not in likely and seems_flat(exact, family.field(exact.point, coefficients_of(family, seed + i))):
            likely[name] = group
    return verify_all(exact, [*likely.values(), *others], seed)


def _shifts(exact: Function, labels: Labels, rows: list[Group], seed: int) -> list[Group]:
    """Return the verified shifts of biases, of tables and of what is added to each other."""
    biases = find_biases(exact)
    found: list[Group] = []
    freedom: dict[str, int] = {}  # groups of ones that are free for a parameter; -1 for every entry
    for group in rows:
        if isinstance(group.family, Rows):
            freedom[group.family.parameter] = group.family.groups
    found += column_groups(exact, labels, biases, freedom, seed)
    sizes, gains = group_sizes(exact), Gains(labels)
    lines = [
        line
        for absorber in biases.sources.values()
        for line in _own_shifts(exact, labels, gains, biases, absorber, sizes, freedom, seed)
    ]
    found += certified(exact, lines)
    found += verify_all(exact, offset_groups(exact, labels, found), seed)
    for pair in biases.pairs:
        shape = exact.tensors[pair[0]].shape
        family = Opposite(pair, torch.arange(shape.numel()), shape)
        words = f"{pair[0]} plus s, {pair[1]} minus s"
        found += verify(exact, Group("shift", pair, family.size, words, family), seed)
    return found + _beside(exact, biases, freedom, seed)


def _own_shifts(
    exact: Function,
    labels: Labels,
    gains: Gains,
    biases: Biases,
    absorber: Absorber,
    sizes: set[int],
    freedom: dict[str, int],
    seed: int,
) -> list[Line]:
    """Return the shifts of one bias, or of all rows of a table, that something behind takes away or up."""
    name = absorber.parameter
    shape = exact.tensors[name].shape
    width = shape[-1] if absorber.table else shape.numel()
    single = Shift(exact, biases, name, torch.eye(width).double() if absorber.table else torch.arange(width))
    shared = freedom.get(name, 0)  # what is common to a group is among the rows already
    found = single.tried(seed)
    if found is not None:
        freedom[name] = -1
        part = found.shift.subset(all_but_one(width, shared)) if shared > 0 else None
        found = found if part is None else part.tried(seed)
        words = f"{name} plus any vector, removed by the normalizer or absorbed after it"
        return [] if found is None else [replace(found, words=words)]
    if shared > 0 or absorber.table:
        return []
    channels = _channels(labels, name)
    counts = sorted({1} | {width // size for size in sizes if size > 1 and width % size == 0}, reverse=True)
    tried = (None, *gains.behind(name)) if channels is None or _averaged(exact, labels, channels) else ()
    for path, count in [(path, count) for path in tried for count in counts]:
        found = Shift(exact, biases, name, ones(width, count), path=path).tried(seed)
        if found is not None:
            freedom[name] = count
            each = "a constant" if count == 1 else f"a constant for each of {count} groups"
            return [replace(found, words=f"{name} plus {each}, removed after it")]
    kept = free_entries(single, [] if channels is None else alike(labels, channels), seed)
    found = Shift(exact, biases, name, kept).tried(seed) if len(kept) else None
    return [] if found is None else [replace(found, words=f"{len(kept)} entries of {name} plus any number")]


def _channels(labels: Labels, name: str) -> Tensor | None:
    """Return the channels that a vector is added to."""
    for entry in labels.entries:
        if entry.parameter == name:
            return entry.labels.reshape(-1)
    return next((frozen.outputs for frozen in labels.frozen if frozen.beta == name), None)


def _averaged(function: Function, labels: Labels, channels: Tensor) -> bool:
    """Return whether something takes a mean over channels, or the loss does not see it."""
    seen = {labels.kin.find(label) for label in labels.summed if label >= 0}
    last = {labels.same.find(max(label, 0)) for label in labels.outputs} if function.loss == "cross_entropy" else set()
    return any(labels.kin.find(max(i, 0)) in seen or labels.same.find(max(i, 0)) in last for i in channels.tolist())


def _beside(exact: Function, biases: Biases, freedom: dict[str, int], seed: int) -> list[Group]:
    """Return shifts of one summand that another one takes up."""
    lines: list[Line] = []
    closed: set[str] = set()
    reachable = {a.parameter for several in biases.beside.values() for a in several}
    sources = [a for a in biases.sources.values() if freedom.get(a.parameter) != -1]
    names = {a.parameter for a in sources}
    sources += [
        Absorber(name, None)
        for name in exact.names
        if name not in names and exact.tensors[name].ndim > 1 and _enters_by_joining(exact, name)
    ]
    for source in sources:
        shape = exact.tensors[source.parameter].shape
        width = shape[-1] if source.table else shape.numel()
        basis = torch.eye(width).double() if source.table else torch.arange(width)
        family = Shift(exact, biases, source.parameter, basis, beside=True, closed=frozenset(closed))
        direction, _ = family.push(torch.ones(width, dtype=torch.float64))
        others = [name for name in direction if name != source.parameter]
        if not set(others) & reachable:
            continue
        found = family.tried(seed)
        if found is None and not source.table and not freedom.get(source.parameter):
            found = replace(family, basis=ones(width)).tried(seed)
        if found is None:
            continue
        both = [freedom.get(source.parameter, 0), *(freedom.get(name, 0) for name in others if name in reachable)]
        if min(both) > 0:  # what is common to a group is free on both sides already
            part = found.shift.subset(all_but_one(width, min(both)))
            found = part.tried(seed) if part.size else None
        closed.add(source.parameter)
        if found is not None:
            lines.append(replace(found, words=f"{source.parameter} plus s, {', '.join(others)} minus s"))
    return certified(exact, lines)


def _enters_by_joining(function: Function, name: str) -> bool:
    """Return whether a parameter is put beside other tokens: expanded and concatenated."""
    users = function.graph.users()
    start = [n.name for n in function.graph if n.op == "parameter" and function.canonical(n.target) == name]
    reached = [user for node in start for user in users[node]]
    return len(reached) == 1 and any(part in function.graph[reached[0]].op for part in ("expand", "cat", "repeat"))


@dataclass(frozen=True, eq=False, repr=False)
class Symmetries(Stored, Shown):
    """The symmetries of a model.

    Attributes:
        model: its name.
        mode: what BatchNorm does: ``batch`` or ``running``.
        loss: ``cross_entropy`` if a common shift of the classes counts as no change, else ``none``.
        parameters: number of trainable parameters.
        groups: the verified groups, continuous ones first.
        measured_on: the model as a function of its parameters; ``None`` in a result that was read from a file.
        orbits: how the outputs change along and across one orbit of each kind, if that was asked for.
    """

    _kind = "symmetry"
    _derived = ("dimension",)
    _layout = ("normscope.report.symmetry", "symmetry_sections")
    _rows = "groups"

    model: str
    mode: str
    loss: str
    parameters: int
    groups: tuple[Group, ...]
    measured_on: Function | None = field(default=None, repr=False, compare=False)
    orbits: tuple[Orbit, ...] = ()

    @property
    def function(self) -> Function:
        """Return the model as a function of its parameters, for measuring on.

        Raises:
            InputError: if this result was read from a file.
        """
        if self.measured_on is None:
            raise InputError("These symmetries were read from a file, without the model. Call symmetry(model) again.")
        return self.measured_on

    @property
    def dimension(self) -> int:
        """Return the dimension of the orbits: how many directions of the parameters change nothing."""
        return sum(group.dimension for group in self.groups)

    @property
    def scale_invariant(self) -> tuple[Group, ...]:
        """Return the groups of scales that a normalizer undoes."""
        return tuple(group for group in self.groups if group.kind == "scale")


def symmetry(
    model: nn.Module,
    data: Any = None,
    *,
    mode: str = "batch",
    loss: str = "auto",
    input_shape: tuple[int, ...] | None = None,
    batch: int = 8,
    name: str = "",
    seed: int = 0,
    progress: Progress | None = None,
    follow_orbits: bool = False,
    search: str = "all",
    seconds: float = math.inf,
) -> Symmetries:
    """Find the symmetries of a model: changes of its parameters that leave its function unchanged.

    Candidates come from the graph; each is verified in float64 with the stabilizers of the normalizers set to zero,
    and those that fail are not reported. The model is not changed.

    Args:
        model: any PyTorch module.
        data: inputs as for ``analyze``; the first samples are used.
        mode: ``batch``: BatchNorm uses the statistics of the batch, as in training; ``running``: the stored ones.
        loss: ``cross_entropy`` if a shift common to all classes counts as no change; ``none`` for the outputs
            themselves; ``auto`` takes cross-entropy if the data has integer labels.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        batch: how many samples to verify on.
        name: name of the model in the result.
        seed: random seed.
        progress: called with a line of text at each step.
        follow_orbits: measure how the outputs change along and across one orbit of each kind, for the report.
        search: ``all``; ``directions`` for the continuous symmetries alone; ``scales`` for those of them that
            rescale weights in front of normalizers, which is fast for large models.
        seconds: the time for the search, once the model is captured.

    Returns:
        The verified groups.

    Raises:
        NormscopeError: a subclass that says what is wrong.
        OutOfTimeError: if the search does not end in time.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> symmetry(net, torch.randn(16, 3)).dimension
    12
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a Module, got {type(model).__name__}.")
    if search not in ("all", "directions", "scales"):
        raise InputError(f"Expected search 'all', 'directions' or 'scales', got {search!r}.")
    if loss not in ("auto", "cross_entropy", "none"):
        raise InputError(f"Expected loss 'auto', 'cross_entropy' or 'none', got {loss!r}.")
    model = uncompiled(model)
    say = progress or (lambda text: None)
    say("capturing the model")
    inputs = _first_samples(model, data, input_shape, batch)
    if loss == "auto":
        integer = inputs.labels is not None and not inputs.labels.is_floating_point()
        loss = "cross_entropy" if integer else "none"
    with untouched(model):
        function = function_of(capture(model, inputs), mode=mode, loss=loss)
    function = replace(function, deadline=time.monotonic() + seconds)
    if not function.names:
        return Symmetries(name or type(model).__name__, mode, loss, 0, (), function)
    if search == "scales":
        groups = scalings(function, say, seed)
    else:
        labels, groups = discovered(function, say, seed, identities=search == "all")
    if search == "all":
        say("permutations")
        groups = [*groups, *permutation_groups(function, labels, seed)]
    count = sum(function.tensors[n].numel() for n in function.names)
    followed: tuple[Orbit, ...] = ()
    if follow_orbits:
        say("orbits")
        followed = tuple(orbits(function, groups, seed=seed))
    function = replace(function, deadline=math.inf)
    return Symmetries(name or type(model).__name__, mode, loss, count, tuple(groups), function, followed)


def _first_samples(model: nn.Module, data: Any, shape: tuple[int, ...] | None, batch: int) -> ModelInputs:
    """Return a few samples of the data, or guessed ones."""
    if data is None:
        return guess_inputs(model, shape, batch=batch)
    found = next(iterate(data, model, batch=batch))

    def cut(value: Any) -> Any:
        return value[:batch] if isinstance(value, Tensor) and value.ndim else value

    return ModelInputs(tuple(map(cut, found.args)), {k: cut(v) for k, v in found.kwargs.items()}, cut(found.labels))
