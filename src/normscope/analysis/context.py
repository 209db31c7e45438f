"""The context of an analysis: the request, the captured model and its program, and how data is read."""

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
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs, first_samples, guess_inputs, iterate
from normscope.graph.modes import running_statistics, with_batch_statistics, with_statistics
from normscope.graph.repeatable_data import repeatable
from normscope.graph.sample_coupling import where_samples_meet
from normscope.graph.weights_validation import check_model
from normscope.graph.wrappers import require_module, uncompiled
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.cost import is_large
from normscope.lipschitz.search import number_of_points
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.normalizer import couples_samples
from normscope.operators.program import Program, build_program
from normscope.operators.survey import Survey, activation_inputs, survey

Progress = Callable[[str], None]
#: Most samples from which the search for worst-case inputs starts.
CANDIDATES = 64
#: Default tolerance of norms in large networks, and in all others.
COARSE, FINE = 1e-2, 1e-4
#: Parameters below which a batch is bounded as one stacked input by default.
AFFORDABLE = 2_000_000
_STATISTICS = "the statistics of the batch"


@dataclass(frozen=True, eq=False)
class AnalysisRequest:
    """What to analyze and how: the arguments of :func:`normscope.analyze`."""

    model: nn.Module
    data: Any = None
    options: Options = field(default_factory=Options)
    name: str = ""
    limit: int | None = None
    input_shape: tuple[int, ...] | None = None
    device: str | torch.device | None = None
    say: Progress = lambda text: None  #: called with a line of text at each step

    def at_most(self, samples: int) -> int:
        """Return a number of samples, at most the limit."""
        return samples if self.limit is None else min(self.limit, samples)


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A captured model and its program."""

    captured: Captured
    program: Program
    coupled: str  #: where samples meet, so that the stacked batch is the input; empty if they never do


@dataclass(frozen=True, eq=False, kw_only=True)
class AnalysisContext(AnalysisRequest, PreparedModel):
    """What every step of an analysis reads: the request, the model in the requested mode, and norms they share."""

    norms: SegmentNorms  #: cache of the norms of linear segments
    composition: type[Composition] = Composition  #: how bounds of the parts are composed

    @property
    def mode(self) -> str | None:
        """Return the mode of BatchNorm, or ``None`` if there is none."""
        return self.options.mode if any(couples_samples(s.kind) for s in self.program.sites) else None

    @property
    def stacked(self) -> int | None:
        """Return the size of the batch if the whole batch is one input, because its samples are coupled."""
        shape = self.program.blocks[0].shape if self.program.blocks else ()
        size = shape[0] if shape else 1
        return size if self.captured.graph.batch == "dynamic" and (self.coupled or size != 1) else None

    @property
    def stacks_batches(self) -> bool:
        """Return whether to bound a batch as one stacked input, too: if that is requested, or cheap."""
        wanted, captured = self.options.stacked, self.captured
        if wanted is None:
            wanted = sum(t.numel() for t in captured.tensors.values()) < AFFORDABLE
        return wanted and captured.graph.batch == "dynamic" and self.stacked is None

    @property
    def reference(self) -> list[Tensor]:
        """Return the input at which the program was built."""
        return self.captured.example if self.stacked is not None else self.captured.at_batch(1)

    @functools.cached_property
    def fixed_inputs(self) -> FixedInputs:
        """Return the inputs (masks, positions) that are held fixed at their values in the reference."""
        return fixed_inputs(self.captured, self.program)

    @property
    def fixed_condition(self) -> str:
        """Return which inputs are held fixed, and at which values, as text; empty if none are."""
        one = self.stacked is None and self.captured.graph.batch == "dynamic"
        source = "the example" if self.data is None else "the first sample" if one else "the first batch"
        return self.fixed_inputs.condition(source)


@dataclass
class SkippedSamples:
    """Samples of the data that an analysis cannot use."""

    #: how many have other shapes than the example, by their shapes
    other_shapes: Counter[str] = field(default_factory=Counter)
    uneven: int = 0  #: how many are left over because their batch is smaller than the stacked one


@dataclass(frozen=True, eq=False)
class Observations:
    """What was observed on the data; without data, the only candidate is the example."""

    candidates: list[list[Tensor]]  #: inputs at which the network may be differentiated
    seen: Survey | None = None  #: ranges and statistics
    skipped: SkippedSamples = field(default_factory=SkippedSamples)


def checked(request: AnalysisRequest) -> AnalysisRequest:
    """Return a valid request: the model uncompiled and named, the data readable more than once.

    Raises:
        InputError: if the model is not a module, or the options do not fit.
        NonFiniteError: if a weight is not finite.
    """
    model, limit = request.model, request.limit
    if request.options.mode == "frozen-batch" and request.data is None:
        raise InputError("mode='frozen-batch' needs a batch of data to freeze its statistics. Pass data.")
    if limit is not None and limit < 1:
        raise InputError(f"Expected limit, the largest number of samples, to be at least 1, got {limit}.")
    require_module(model)
    model, data = uncompiled(model), repeatable(request.data)
    check_model(model)
    return replace(request, model=model, data=data, name=request.name or type(model).__name__)


def capture_example(request: AnalysisRequest, *, first_look: bool = False, known: Captured | None = None) -> Captured:
    """Capture a model on the first batch of the data, or on guessed inputs, and move the capture to the device.

    The example is the batch given, cut to the limit: a batch of one, which capture doubles, is one again. A first look
    takes two samples, and compares graph and model at the first only. ``known`` is its capture, which is reused.
    """
    example = example_of(request)
    if first_look:
        example = first_samples(example, 2)
    captured = capture(request.model, example, elsewhere=not first_look, known=known)
    return captured.first_samples(max(request.at_most(example.batch), 1)).on(request.device)


def example_of(request: AnalysisRequest) -> ModelInputs:
    """Return the first batch of the data, or guessed inputs."""
    model, data = request.model, request.data
    return guess_inputs(model, request.input_shape, batch=2) if data is None else next(iter(iterate(data, model)))


def prepare(request: AnalysisRequest) -> PreparedModel:
    """Capture a model on at most two samples and build its program with running statistics."""
    return walk_one(capture_example(request, first_look=True), Options())


def full_context(request: AnalysisRequest, captured: Captured) -> AnalysisContext:
    """Return the context of a full analysis: the model in its mode, and norms as precise as its size allows."""
    options = request.options
    prepared = walk_coupled(in_mode(captured, options), options)
    tolerance = options.tolerance or (COARSE if is_large(prepared.program) else FINE)
    norms = SegmentNorms(Effort(tolerance, options.delta, options.seed), request.say)
    request = replace(request, options=replace(options, tolerance=tolerance))
    return AnalysisContext(**vars(request), **vars(prepared), norms=norms)


def in_mode(captured: Captured, options: Options) -> Captured:
    """Return a model with BatchNorm in the requested mode."""
    if options.mode == "batch":
        return replace(captured, graph=with_batch_statistics(captured.graph))
    return frozen(captured) if options.mode == "frozen-batch" else captured


def walk_coupled(
    captured: Captured, options: Options, *, without_normalizers: bool = False, coupled: str | None = None
) -> PreparedModel:
    """Build the program at one sample, or at the example's batch where samples meet; ``coupled`` is where, if known."""
    try:
        if coupled is None:
            coupled = _STATISTICS if options.mode == "batch" else where_samples_meet(captured)
        inputs = captured.example if coupled else captured.at_batch(1)
        build = functools.partial(
            build_program, captured.graph, captured.tensors, without_normalizers=without_normalizers
        )
        program = build(inputs)
        if not coupled and uses_batch_statistics(program):
            coupled, program = _STATISTICS, build(captured.example)
        return PreparedModel(captured, program, coupled)
    except RuntimeError as error:
        raise InputError(f"The graph cannot be run on this input: {error}") from error


def walk_one(captured: Captured, options: Options) -> PreparedModel:
    """Build the program at one sample without asking where samples meet; at the whole example where only that runs."""
    if options.mode != "batch":
        try:
            return walk_coupled(captured, options, coupled="")
        except InputError:  # batch statistics in evaluation
            pass
    return walk_coupled(captured, options, coupled="the batch")


def uses_batch_statistics(program: Program) -> bool:
    """Return whether some normalizer takes its statistics over the batch axis."""
    return any(s.spread is not None and 0 in s.spread.axes and len(s.shape) > 1 for s in program.sites)


def refuse_single_values(program: Program) -> None:
    """Raise if a batch statistic is of a single value, which has no variance; torch refuses it in training, too."""
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


def observe(context: AnalysisContext, candidates: int, samples: int | None, *, exact: bool = True) -> Observations:
    """Run over some samples of the data once, and choose inputs at which the network may be differentiated.

    Candidates have the masks and positions of the reference. If it is to be exact, candidates lie on the variance floor
    in float64, too: they will be differentiated there.
    """
    program, data = context.program, context.data
    if context.coupled:
        refuse_single_values(program)
    if data is None:
        return Observations([context.reference])
    points = [context.reference] if (context.stacked or 1) > 1 else one_at_a_time(context, candidates)
    context.say("statistics of the data")
    skipped = SkippedSamples()
    seen = survey(
        context.captured,
        program,
        batches(context, samples, skipped),
        activations=activation_inputs(context.captured, program),
        progress=lambda n: context.say(f"statistics of the data: {n} samples"),
    )
    if seen.samples == 0:
        raise InputError("The data is empty. Pass at least one sample, or no data.")
    if exact:  # in exact arithmetic a sample may lie below the floor that was computed from it with rounding
        some = points[: number_of_points(program, context.options.points)] if is_large(program) else points
        seen.include(survey(context.captured, program, some, activations={}, dtype=torch.float64))
    return Observations(points, seen, skipped)


def one_at_a_time(context: AnalysisContext, limit: int | None) -> list[list[Tensor]]:
    """Return single inputs of the program from the data: those with the masks and positions of the reference."""
    fixed = context.captured.graph.batch != "dynamic"
    size = int(context.captured.graph.batch) if fixed else context.stacked or 1  # zero: whatever there is
    names = context.fixed_inputs.names
    wanted = values_of(context.captured, names, context.reference) if names else []
    inputs: list[list[Tensor]] = []
    for batch in batches(context, limit):
        length = _length(batch)
        pieces = (_piece(batch, i, size or length) for i in range(0, length - size + 1, size or length))
        inputs += [p for p in pieces if not names or same_values(wanted, values_of(context.captured, names, p))]
    return inputs


def batches(
    context: AnalysisContext, limit: int | None, skipped: SkippedSamples | None = None
) -> Iterator[list[Tensor]]:
    """Yield the batches whose samples have the shape of the example, in its size where the batch is the input.

    What is not used is counted in ``skipped``.
    """
    captured, skipped = context.captured, skipped or SkippedSamples()
    left = math.inf if limit is None else limit
    reference = next(iter(captured.tensors.values()), torch.zeros(0))
    dynamic = captured.graph.batch == "dynamic"
    step = context.stacked if dynamic else int(captured.graph.batch)
    first = True
    batched = len({t.shape[0] for t in captured.example if t.ndim}) <= 1
    wanted = [t.shape[batched:] for t in captured.example]  # up to the number of samples, if there is such an axis
    for inputs in iterate(context.data, context.model):
        tensors = [v.to(reference.device) for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, Tensor)]
        size = _length(tensors)
        take = count = 0
        if [t.shape[batched:] for t in tensors] != wanted:
            skipped.other_shapes[shapes_of(tensors)] += size
            left -= size  # what is read counts, so that an endless stream ends
        elif step is None:
            take, count = int(min(size, left)), 1
        else:
            step = min(step, size) if first and dynamic else step or size
            take, count = step, size // step
            skipped.uneven += size % step
            left -= size % step
        first = first and not count
        for i in range(count):
            yield _piece(tensors, i * take, take)
            left -= take
            if left <= 0:
                return
        if left <= 0:
            return


def _length(tensors: list[Tensor]) -> int:
    """Return the number of samples in a batch, by its first tensor."""
    return tensors[0].shape[0] if tensors and tensors[0].ndim else 1


def _piece(tensors: list[Tensor], start: int, size: int) -> list[Tensor]:
    """Return some samples of a batch; a tensor whose first axis has another length is shared by all samples."""
    length = _length(tensors)
    return [t[start : start + size] if t.ndim and t.shape[0] == length else t for t in tensors]


def shapes_of(tensors: list[Tensor]) -> str:
    """Return the shapes of one sample as text.

    >>> shapes_of([torch.ones(4, 9, 8), torch.ones(4, 9)])
    '9x8 and 9'
    """
    return " and ".join("x".join(map(str, t.shape[1:])) or "()" for t in tensors)
