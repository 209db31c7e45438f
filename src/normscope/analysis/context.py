"""What an analysis starts from: the captured model, its program, the data."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.fixed_inputs import FixedInputs, fixed_inputs, same_values, values_of
from normscope.analysis.options import Options
from normscope.core.errors import InputError
from normscope.core.result import LayerResult, NormalizerResult
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import first_samples, guess_inputs, iterate
from normscope.graph.modes import running_statistics, with_batch_statistics, with_statistics
from normscope.graph.sample_coupling import where_samples_meet
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.cost import is_large
from normscope.lipschitz.search import number_of_points
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.normalizer import couples_samples
from normscope.operators.program import Program, build_program
from normscope.operators.survey import Survey, activation_inputs, survey

Progress = Callable[[str], None]
#: Most samples among which the search for bad inputs begins.
CANDIDATES = 64
#: Numbers of a network below which a batch is looked at as one stacked input without being asked for.
AFFORDABLE = 2_000_000
_STATISTICS = "the statistics of the batch"


@dataclass
class LeftOut:
    """Samples of the data that an analysis cannot use."""

    #: how many have other shapes than the example, by their shapes
    other_shapes: Counter[str] = field(default_factory=Counter)
    uneven: int = 0  #: how many are left over because their batch is smaller than the stacked one


@dataclass(eq=False)
class Work:
    """What an analysis starts from and hands to each of its steps, and what several of them use of the results."""

    captured: Captured  #: the model as it was captured
    program: Program  #: its program
    options: Options  #: how to work
    norms: SegmentNorms  #: cache of segment norms
    say: Progress  #: progress
    model: nn.Module = field(default_factory=nn.Identity)  #: the model itself, which knows the names of its inputs
    data: Any = None  #: the data, if there is any
    limit: int | None = None  #: the most samples of the data to use
    coupled: str = ""  #: where samples meet, so that the stacked batch is the input; empty if they never do
    composition: type[Composition] = Composition  #: composes bounds
    candidates: list[list[Tensor]] = field(default_factory=list)  #: inputs at which the network may be differentiated
    seen: Survey | None = None  #: what the data showed
    left_out: LeftOut = field(default_factory=LeftOut)  #: what of the data is not used
    layers: list[LayerResult] = field(default_factory=list)  #: the norm of every linear layer
    normalizers: list[NormalizerResult] = field(default_factory=list)  #: the constants of every normalizer
    messages: list[str] = field(default_factory=list)  #: what a reader must know; steps add to it

    def at_most(self, samples: int) -> int:
        """Return a number of samples, or the limit if that is less."""
        return samples if self.limit is None else min(self.limit, samples)

    @property
    def mode(self) -> str | None:
        """Return what BatchNorm does, if there is one."""
        return self.options.mode if any(couples_samples(s.kind) for s in self.program.sites) else None

    @property
    def stacked(self) -> int | None:
        """Return the size of the batch that is one input, if samples depend on each other."""
        shape = self.program.blocks[0].shape if self.program.blocks else ()
        size = shape[0] if shape else 1
        return size if self.captured.graph.batch == "dynamic" and (self.coupled or size != 1) else None

    @property
    def stacks_batches(self) -> bool:
        """Return whether a batch is to be looked at as one stacked input, too: where that was asked for or is cheap."""
        wanted, captured = self.options.stacked, self.captured
        if wanted is None:
            wanted = sum(t.numel() for t in captured.tensors.values()) < AFFORDABLE
        return wanted and captured.graph.batch == "dynamic" and self.stacked is None

    @property
    def reference(self) -> list[Tensor]:
        """Return the input the program was walked at."""
        return self.captured.example if self.stacked is not None else self.captured.at_batch(1)

    @functools.cached_property
    def fixed_inputs(self) -> FixedInputs:
        """Return what of the input is held fixed as it is in the reference."""
        return fixed_inputs(self.captured, self.program)


def captured_on(
    model: nn.Module,
    data: Any,
    shape: tuple[int, ...] | None,
    device: str | torch.device | None,
    limit: int | None = None,
    *,
    first_look: bool = False,
    known: Captured | None = None,
) -> Captured:
    """Capture a model on the first of the data, or on guessed inputs, and move what was captured to a device.

    The example is the batch given, cut to the limit: a batch of one, which capture doubles, is one again. At a first
    look it is of two samples, and graph and model are compared at the first only; what was captured at one is known.
    """
    example = guess_inputs(model, shape, batch=2) if data is None else next(iter(iterate(data, model)))
    if first_look:
        example = first_samples(example, 2)
    captured = capture(model, example, elsewhere=not first_look, known=known)
    size = example.batch if limit is None else min(limit, example.batch)
    return captured.first_samples(max(size, 1)).on(device)


def in_mode(captured: Captured, options: Options) -> Captured:
    """Return a model with BatchNorm in the mode that was asked for."""
    if options.mode == "batch":
        return replace(captured, graph=with_batch_statistics(captured.graph))
    return frozen(captured) if options.mode == "frozen-batch" else captured


def walk_coupled(
    captured: Captured, options: Options, *, without: bool = False, coupled: str | None = None
) -> tuple[Program, str]:
    """Walk the graph at one sample, or at the example's batch where samples meet; tell where, unless that is known."""
    try:
        if coupled is None:
            coupled = _STATISTICS if options.mode == "batch" else where_samples_meet(captured)
        inputs = captured.example if coupled else captured.at_batch(1)
        program = build_program(captured.graph, captured.tensors, inputs, without_normalizers=without)
        if not coupled and uses_batch_statistics(program):
            coupled = _STATISTICS
            program = build_program(captured.graph, captured.tensors, captured.example, without_normalizers=without)
        return program, coupled
    except RuntimeError as error:
        raise InputError(f"The graph cannot be run on this input: {error}") from error


def walk_one(captured: Captured, options: Options) -> tuple[Program, str]:
    """Walk the graph at one sample, without asking where samples meet; at the whole example where only that runs."""
    if options.mode != "batch":
        try:
            return walk_coupled(captured, options, coupled="")
        except InputError:  # batch statistics in evaluation
            pass
    return walk_coupled(captured, options, coupled="the batch")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model as first look and doctor see it: captured, compared at one sample, and walked there."""

    captured: Captured  #: the model
    program: Program  #: its program, with running statistics
    coupled: str  #: where samples meet, as far as that was asked


def prepare(
    model: nn.Module,
    data: Any = None,
    shape: tuple[int, ...] | None = None,
    device: str | torch.device | None = None,
    limit: int | None = None,
) -> Prepared:
    """Capture a model on at most two samples and walk it; arguments are those of :func:`captured_on`."""
    captured = captured_on(model, data, shape, device, limit, first_look=True)
    return Prepared(captured, *walk_one(captured, Options()))


def uses_batch_statistics(program: Program) -> bool:
    """Return whether some normalizer takes its statistics over the batch axis."""
    return any(s.spread is not None and 0 in s.spread.axes and len(s.shape) > 1 for s in program.sites)


def refuse_single_values(program: Program) -> None:
    """Raise if a statistic over the batch is of a single value, which has no variance and torch does not train on."""
    for site in program.sites:
        spread = site.spread
        if spread is not None and 0 in spread.axes and math.prod(spread.view[a] for a in spread.axes) < 2:
            raise InputError(
                "Batch statistics need at least two values per channel, but the batch has one for "
                f"{site.owner or site.node}. Use batches of two samples or more, or mode='running'."
            )


def frozen(captured: Captured) -> Captured:
    """Return the model with every BatchNorm fixed to the statistics of the first batch of the data."""
    graph = with_batch_statistics(captured.graph)
    program = build_program(graph, captured.tensors, captured.example)
    refuse_single_values(program)
    seen = survey(replace(captured, graph=graph), program, [captured.example], activations={})
    tensors = dict(captured.tensors)
    statistics = {}
    for node in captured.graph:
        names, found = running_statistics(node), seen.before_normalizers.get(node.name)
        if names is not None and found is not None:
            # A module that is called twice has statistics of its own for each call.
            values = zip(names, (found.moments.mean, found.moments.variance), strict=True)
            tensors |= {f"{n}@{node.name}": v.to(tensors[captured.graph[n].target]) for n, v in values}
            statistics[node.name] = (f"{names[0]}@{node.name}", f"{names[1]}@{node.name}")
    return replace(captured, graph=with_statistics(captured.graph, statistics), tensors=tensors)


def look(work: Work, limit: int | None, *, exact: bool = True) -> None:
    """Run over the data once, and keep what it shows and what of it is not used.

    If it is to be exact, candidates lie on the variance floor in float64, too: they will be differentiated there.
    """
    found = survey(
        work.captured,
        work.program,
        batches(work, limit, work.left_out),
        activations=activation_inputs(work.captured, work.program),
        progress=lambda n: work.say(f"statistics of the data: {n} samples"),
    )
    if found.samples == 0:
        raise InputError("The data is empty. Pass at least one sample, or no data.")
    if exact:  # in exact arithmetic a sample may lie below the floor its own rounding gave
        large = is_large(work.program)
        points = work.candidates[: number_of_points(work.program, work.options.points)] if large else work.candidates
        found.include(survey(work.captured, work.program, points, activations={}, dtype=torch.float64))
    work.seen = found


def candidates(work: Work, most: int) -> list[list[Tensor]]:
    """Return inputs at which the network may be differentiated: of the data if there is any, else the example.

    They hold what the program holds: the masks and places of the reference.
    """
    if work.data is None or (work.stacked or 1) > 1:
        return [work.reference]
    return one_at_a_time(work, most)


def one_at_a_time(work: Work, limit: int) -> list[list[Tensor]]:
    """Return the data one input of the program at a time, those that hold what the reference holds."""
    fixed = work.captured.graph.batch != "dynamic"
    size = int(work.captured.graph.batch) if fixed else work.stacked or 1  # zero: whatever there is
    names = work.fixed_inputs.names
    wanted = values_of(work.captured, names, work.reference) if names else []
    inputs: list[list[Tensor]] = []
    for batch in batches(work, limit):
        length = _length(batch)
        pieces = (_piece(batch, i, size or length) for i in range(0, length - size + 1, size or length))
        inputs += [p for p in pieces if not names or same_values(wanted, values_of(work.captured, names, p))]
    return inputs


def batches(work: Work, limit: int | None, left_out: LeftOut | None = None) -> Iterator[list[Tensor]]:
    """Yield the tensor inputs of each batch: those of the example's shape, in its size where that is part of the input.

    What is not used is counted in ``left_out``.
    """
    captured, left_out = work.captured, left_out or LeftOut()
    left = math.inf if limit is None else limit
    reference = next(iter(captured.tensors.values()), torch.zeros(0))
    dynamic = captured.graph.batch == "dynamic"
    step = work.stacked if dynamic else int(captured.graph.batch)
    first = True
    batched = len({t.shape[0] for t in captured.example if t.ndim}) <= 1
    wanted = [t.shape[batched:] for t in captured.example]  # up to the number of samples, if there is such an axis
    for inputs in iterate(work.data, work.model):
        tensors = [v.to(reference.device) for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, Tensor)]
        size = _length(tensors)
        pieces: list[int] = []
        if [t.shape[batched:] for t in tensors] != wanted:
            left_out.other_shapes[shapes_of(tensors)] += size
            left -= size  # what is read counts, so that an endless stream ends
        elif step is None:
            pieces = [int(min(size, left))]
        else:
            step = min(step, size) if first and dynamic else step or size
            pieces = [step] * (size // step)
            left_out.uneven += size % step
            left -= size % step
        first = first and not pieces
        start = 0
        for take in pieces:
            yield _piece(tensors, start, take)
            start += take
            left -= take
            if left <= 0:
                return
        if left <= 0:
            return


def where_fixed(work: Work) -> str:
    """Return in words where what is held fixed comes from."""
    if work.seen is None:
        return "the example"
    return "the first sample" if work.stacked is None and work.captured.graph.batch == "dynamic" else "the first batch"


def _length(tensors: list[Tensor]) -> int:
    """Return how many samples a batch has, by its first tensor."""
    return tensors[0].shape[0] if tensors and tensors[0].ndim else 1


def _piece(tensors: list[Tensor], start: int, size: int) -> list[Tensor]:
    """Return some samples of a batch; what has another first axis than the first tensor belongs to all of them."""
    length = _length(tensors)
    return [t[start : start + size] if t.ndim and t.shape[0] == length else t for t in tensors]


def shapes_of(tensors: list[Tensor]) -> str:
    """Return the shapes of one sample in words.

    >>> shapes_of([torch.ones(4, 9, 8), torch.ones(4, 9)])
    '9x8 and 9'
    """
    return " and ".join("x".join(map(str, t.shape[1:])) or "()" for t in tensors)
