"""Find the symmetries of a model and verify each of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Stored
from normscope.geometry.candidates.biases import AddedParameter, find_biases
from normscope.geometry.candidates.columns import column_groups, offset_groups
from normscope.geometry.candidates.gains import Gains
from normscope.geometry.candidates.matrices import MatrixFamily, matrix_groups
from normscope.geometry.candidates.permutations import permutation_groups
from normscope.geometry.candidates.rows import RowShifts, WeightVectorShifts, group_counts, group_sizes, row_groups
from normscope.geometry.candidates.scales import scale_groups
from normscope.geometry.candidates.shifts import BiasShifts, FlatLine, alike, all_but_one, certified, free_entries, ones
from normscope.geometry.certificate import coefficients_of, holding_elsewhere, seems_flat, verify
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.channels.labels import ChannelLabels
from normscope.geometry.function import ModelFunction, function_of
from normscope.geometry.groups import SymmetryGroup, random_like
from normscope.geometry.identities import reads_constant, with_identities
from normscope.geometry.independence import independent
from normscope.geometry.orbits import Orbit, orbits
from normscope.graph.capture import capture
from normscope.graph.guard import untouched
from normscope.graph.hidden_reads import hidden_reads, note_on
from normscope.graph.inputs import first_samples, guess_inputs, iterate
from normscope.graph.ir import UNKNOWN, Graph
from normscope.graph.wrappers import require_module, uncompiled

Progress = Callable[[str], None]


def symmetry_groups(
    function: ModelFunction, say: Progress, seed: int = 0, *, search: str = "all"
) -> list[SymmetryGroup]:
    """Return the verified symmetries of a function; ``search`` is as for :func:`symmetry`."""
    exact = _evaluable(function)
    say("labelling channels")
    net = label_channels(function)
    labels = net.labels
    shapes = {name: function.tensors[name].shape for name in function.names}
    if search == "scales":
        say("scales")
        return verify(exact, [group for group in scale_groups(labels, shapes) if group.kind == "scale"], seed)
    found = _unused(function)
    say("matrices of heads and streams")
    matrices = verify(exact, matrix_groups(function, labels), seed)
    say("scales")
    scales = verify(exact, scale_groups(labels, shapes, without=_covered(labels, matrices)), seed)
    # with eps no normalizer undoes a scale; only a weight of zeros passes, and its bias is among the shifts
    found += [group for group in scales if exact is not function or group.kind != "scale"]
    found += matrices
    say("rows")
    rows = _rows(exact, labels, seed)
    say("shifts")
    found = holding_elsewhere(exact, independent(found + rows + _shifts(exact, labels, rows, seed)), seed)
    if search == "directions":
        return found
    say("gradient and Hessian")
    found = with_identities(function, exact, net, found, seed)
    say("permutations")
    return found + permutation_groups(function, labels, seed)


def _evaluable(function: ModelFunction) -> ModelFunction:
    """Return the function without stabilizers, or with them where a channel is constant and needs them."""
    chosen = function if reads_constant(function) else function.exact()
    for candidate in (chosen, function):
        if bool(candidate.derivative(random_like(candidate.point)).isfinite().all()):
            return candidate
    raise InputError("Derivatives of the outputs are not finite: perhaps a normalizer with eps = 0 reads a constant.")


def _unused(function: ModelFunction) -> list[SymmetryGroup]:
    """Return the parameters that nothing reads."""
    users = function.graph.users()
    read = {function.canonical(n.target) for n in function.graph if n.op == "parameter" and users[n.name]}
    return [
        SymmetryGroup("unused", (name,), function.tensors[name].numel(), f"nothing reads {name}")
        for name in function.names
        if name not in read
    ]


def _covered(labels: ChannelLabels, groups: list[SymmetryGroup]) -> frozenset[int]:
    """Return the labels whose scales are part of a matrix group."""
    families = [g.family for g in groups if isinstance(g.family, MatrixFamily) and g.family.algebra == "full"]
    found = {label for family in families for frame in family.frames for label in frame.labels}
    return frozenset(label for label in range(1, labels.size) if labels.same.find(label) in found)


def _rows(exact: ModelFunction, labels: ChannelLabels, seed: int) -> list[SymmetryGroup]:
    """Return the verified row shifts: the largest family of each parameter."""
    likely: dict[str, SymmetryGroup] = {}
    others: list[SymmetryGroup] = []
    for i, group in enumerate(row_groups(exact, labels)):
        name, family = group.parameters[0], group.family
        if not isinstance(family, RowShifts):
            others.append(group)
        elif name not in likely and seems_flat(exact, family.field(exact.point, coefficients_of(family, seed + i))):
            likely[name] = group
    return verify(exact, [*likely.values(), *others], seed)


def _shifts(exact: ModelFunction, labels: ChannelLabels, rows: list[SymmetryGroup], seed: int) -> list[SymmetryGroup]:
    """Return the verified shifts of biases, of tables and of summands."""
    search = _ShiftSearch(exact, labels, rows, seed)
    biases = search.biases
    found = column_groups(exact, labels, biases, search.freedom, seed)
    found += certified(exact, [line for source in biases.sources.values() if (line := search.of_bias(source))])
    found += verify(exact, offset_groups(exact, labels, found), seed)
    pairs = []
    for one, other in biases.pairs:
        shape = exact.tensors[one].shape
        family = WeightVectorShifts({one: 1.0, other: -1.0}, shape, torch.arange(shape[0]))
        words = f"{one} plus s, {other} minus s"
        pairs.append(SymmetryGroup("shift", (one, other), family.size, words, family))
    found += verify(exact, pairs, seed)
    return found + certified(exact, search.between_summands())


class _ShiftSearch:
    """The search for shifts of one parameter that a later operation removes or another parameter compensates."""

    def __init__(self, exact: ModelFunction, labels: ChannelLabels, rows: list[SymmetryGroup], seed: int) -> None:
        self.exact, self.labels, self.seed = exact, labels, seed
        self.biases, self.gains, self.sizes = find_biases(exact), Gains(labels), group_sizes(exact)
        #: Groups of ones that are free for a parameter; -1 for every entry.
        self.freedom = {g.family.source: g.family.groups for g in rows if isinstance(g.family, RowShifts)}

    def _whole(self, source: AddedParameter, *, beside: bool = False, closed: Iterable[str] = ()) -> BiasShifts:
        """Return the shifts of every entry of a bias, or of all rows of a table alike."""
        shape = self.exact.tensors[source.parameter].shape
        basis = torch.eye(shape[-1]).double() if source.table else torch.arange(shape.numel())
        return BiasShifts(self.exact, self.biases, source.parameter, basis, beside, frozenset(closed))

    def of_bias(self, source: AddedParameter) -> FlatLine | None:
        """Return the shifts of one bias, or of all rows of a table, that are removed or compensated later."""
        name, seed, whole = source.parameter, self.seed, self._whole(source)
        shared = self.freedom.get(name, 0)  # a shift common to a group is already among the row shifts
        words = f"{name} plus any vector, removed by the normalizer or absorbed after it"
        found = whole.flat_line(seed, words)
        if found is not None:
            self.freedom[name] = -1
            return whole.subset(all_but_one(whole.size, shared)).flat_line(seed, words) if shared > 0 else found
        if shared > 0 or source.table:
            return None
        channels = _channels(self.labels, name)
        paths = (None, *self.gains.behind(name)) if channels is None or self._averaged(channels) else ()
        for path, count in itertools.product(paths, group_counts(self.sizes, whole.size)):
            each = "a constant" if count == 1 else f"a constant for each of {count} groups"
            part = replace(whole, basis=ones(whole.size, count), path=path)
            found = part.flat_line(seed, f"{name} plus {each}, removed after it")
            if found is not None:
                self.freedom[name] = count
                return found
        kept = free_entries(whole, [] if channels is None else alike(self.labels, channels), seed)
        words = f"{len(kept)} entries of {name} plus any number"
        return replace(whole, basis=kept).flat_line(seed, words) if len(kept) else None

    def _averaged(self, channels: Tensor) -> bool:
        """Return whether a mean over these channels is taken, or the loss ignores it."""
        kin, same = self.labels.kin.find, self.labels.same.find
        seen = {kin(label) for label in self.labels.summed if label >= 0}
        last = {same(max(label, 0)) for label in self.labels.outputs} if self.exact.loss == "cross_entropy" else set()
        return any(kin(max(i, 0)) in seen or same(max(i, 0)) in last for i in channels.tolist())

    def between_summands(self) -> list[FlatLine]:
        """Return shifts of one summand that another one compensates."""
        lines: list[FlatLine] = []
        closed: set[str] = set()
        free = self.freedom.get
        reachable = {a.parameter for several in self.biases.beside.values() for a in several}
        sources = {name: source for name, source in self.biases.sources.items() if free(name) != -1}
        matrices = [name for name in self.exact.names if self.exact.tensors[name].ndim > 1]
        sources |= {
            n: AddedParameter(n, None) for n in matrices if n not in sources and _enters_by_joining(self.exact, n)
        }
        for name, source in sources.items():
            whole = self._whole(source, beside=True, closed=closed)
            others = [n for n in whole.push(torch.ones(whole.size, dtype=torch.float64))[0] if n != name]
            if not set(others) & reachable:
                continue
            words = f"{name} plus s, {', '.join(others)} minus s"
            found = whole.flat_line(self.seed, words)
            if found is None and not source.table and not free(name):
                found = replace(whole, basis=ones(whole.size)).flat_line(self.seed, words)
            if found is None:
                continue
            closed.add(name)
            shared = min(free(n, 0) for n in [name, *reachable.intersection(others)])
            if shared > 0:  # a shift common to a group is already free on both sides
                part = found.shift.subset(all_but_one(whole.size, shared))
                found = part.flat_line(self.seed, words) if part.size else None
            lines += [] if found is None else [found]
        return lines


def _channels(labels: ChannelLabels, name: str) -> Tensor | None:
    """Return the labels of the channels to which a vector is added."""
    for entry in labels.entries:
        if entry.parameter == name:
            return entry.labels.reshape(-1)
    return next((frozen.outputs for frozen in labels.fixed_batch_norms if frozen.beta == name), None)


def _enters_by_joining(function: ModelFunction, name: str) -> bool:
    """Return whether a parameter is concatenated with other tokens, like a class token."""
    users = function.graph.users()
    start = [n.name for n in function.graph if n.op == "parameter" and function.canonical(n.target) == name]
    reached = [user for node in start for user in users[node]]
    return len(reached) == 1 and any(part in function.graph[reached[0]].op for part in ("expand", "cat", "repeat"))


@dataclass(frozen=True, eq=False, repr=False)
class Symmetries(Stored, Shown):
    """The symmetries of a model."""

    _kind = "symmetry"
    _derived = ("dimension",)
    _layout = ("normscope.report.symmetry", "symmetry_sections")
    _rows = "groups"

    model: str  #: its name
    mode: str  #: what BatchNorm does: ``batch`` or ``running``
    loss: str  #: ``cross_entropy`` if a common shift of the classes counts as no change, else ``none``
    parameters: int  #: number of trainable parameters
    groups: tuple[SymmetryGroup, ...]  #: the verified groups, continuous ones first
    #: the model as a function of its parameters; ``None`` in a result that was read from a file
    measured_on: ModelFunction | None = field(default=None, repr=False, compare=False)
    orbits: tuple[Orbit, ...] = ()  #: how the outputs change along and across one orbit of each kind, if requested
    messages: tuple[str, ...] = ()  #: what limits these symmetries

    @property
    def function(self) -> ModelFunction:
        """Return the model as a function of its parameters, for measuring on.

        Raises:
            InputError: if this result was read from a file.
        """
        if self.measured_on is None:
            raise InputError("These symmetries were read from a file, without the model. Call symmetry(model) again.")
        return self.measured_on

    @property
    def dimension(self) -> int:
        """Return the dimension of the orbits: the number of parameter directions that leave the function unchanged."""
        return sum(group.dimension for group in self.groups)

    @property
    def scale_invariant(self) -> tuple[SymmetryGroup, ...]:
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

    Candidates come from the graph; each is verified in float64 with the stabilizers of the normalizers set to zero, on
    the data, at parameters nearby, and at other parameters with the data stretched; those that fail are not reported.
    The model is not changed.

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
    require_module(model)
    if search not in ("all", "directions", "scales"):
        raise InputError(f"Expected search 'all', 'directions' or 'scales', got {search!r}.")
    if loss not in ("auto", "cross_entropy", "none"):
        raise InputError(f"Expected loss 'auto', 'cross_entropy' or 'none', got {loss!r}.")
    model = uncompiled(model)
    say = progress or (lambda text: None)
    say("capturing the model")
    if data is None:
        inputs = guess_inputs(model, input_shape, batch=batch)
    else:
        inputs = first_samples(next(iterate(data, model, batch=batch)), batch)
    if loss == "auto":
        integer = inputs.labels is not None and not inputs.labels.is_floating_point()
        loss = "cross_entropy" if integer else "none"
    with untouched(model):
        captured = capture(model, inputs)
        hidden = hidden_reads(model, inputs, captured)
        function = function_of(captured, mode=mode, loss=loss)
    function = replace(function, deadline=time.monotonic() + seconds)
    groups = symmetry_groups(function, say, seed, search=search) if function.names else []
    closed = {function.canonical(name) for name in hidden or ()}
    groups = [group for group in groups if closed.isdisjoint(group.parameters)]
    followed: tuple[Orbit, ...] = ()
    if follow_orbits:
        say("orbits")
        followed = tuple(orbits(function, groups, seed=seed))
    count = sum(function.tensors[n].numel() for n in function.names)
    function = replace(function, deadline=math.inf)
    messages = tuple(_messages(captured.graph, hidden))
    return Symmetries(name or type(model).__name__, mode, loss, count, tuple(groups), function, followed, messages)


def _messages(graph: Graph, hidden: Sequence[str] | None) -> Iterable[str]:
    """Say what limits the symmetries that were found."""
    yield from note_on(hidden)
    if any(node.op == UNKNOWN for node in graph):
        yield "the model branches on its inputs: symmetries hold for the branches that these inputs take"
