"""What the rules check: a captured model, its program, statistics of the data, and its optimizer."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.context import AnalysisContext, PreparedModel, batches, walk_one
from normscope.analysis.options import Options
from normscope.core.errors import (
    CaptureError,
    InputError,
    NonFiniteError,
    NonFiniteInputError,
    NormscopeError,
    RandomError,
    StatefulError,
)
from normscope.doctor.earlier_version import EarlierModel, compare_with_earlier
from normscope.doctor.fault import explain_fault
from normscope.doctor.feature_axes import channel_axis, feature_axes
from normscope.doctor.infinite_derivative import Singularities
from normscope.doctor.neighbours import between, outputs_of
from normscope.doctor.probe import ChannelStatistics, NodeObserver, batch_statistics
from normscope.doctor.second_run import CouplingTest, SecondRun, captured_in, run_again
from normscope.doctor.state_changes import changed_by_forward, random_part
from normscope.doctor.structure import Structure
from normscope.graph.capture import Captured, capture
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs, first_samples, guess_inputs, iterate
from normscope.graph.ir import Graph, Node
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.graph.repeatable_data import repeatable
from normscope.graph.signature import InnermostModule, sized_layers
from normscope.graph.statefulness import evaluating
from normscope.graph.weights_validation import STATISTICS, all_finite, check_model, count_non_finite, named_tensors
from normscope.graph.wrappers import unwrap
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.quick_norms import FiniteNorms, Roughly
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program, build_program
from normscope.operators.site import Site
from normscope.operators.survey import InputStatistics, Survey, activation_inputs, survey

Progress = Callable[[str], None]
#: What a model may be used for.
PURPOSES = ("train", "inference", "finetune", "private", "contrastive", "gan")
#: Samples to capture a model with, samples used by default, and the fewest used for a large network.
EXAMPLE, SAMPLES, FEWEST = 4, 512, 2
#: Multiplications that forward passes over the data may take; samples for batch statistics, and multiplications
#: that more of these samples may take.
WORK, PROBED, MORE = 2e10, 128, 1e9
#: Fewest samples by which running statistics can be judged.
ENOUGH = 4
#: A model with this many parameters is captured with two samples.
LARGE = 5_000_000


@dataclass(eq=False)
class Subject:
    """A model and what is known about it; rules read it and change nothing."""

    model: nn.Module  #: the module, for modes and parameters
    #: the graph and its tensors; empty, like the programs, if it could not be captured
    captured: Captured = field(default_factory=lambda: Captured(Graph(()), {}, [], []))
    program: Program = field(
        default_factory=Program
    )  #: the affine program in evaluation mode, with fixed running statistics
    #: the same with every BatchNorm on batch statistics and a whole batch, to see what training cancels
    training: Program = field(default_factory=Program)
    seen: Survey | None = None  #: statistics of the data
    norms: SegmentNorms = field(default_factory=SegmentNorms)  #: norms of segments, cached
    optimizer: torch.optim.Optimizer | None = None  #: the optimizer, if it was given
    batch_size: int | None = None  #: of training, if known
    #: number of training samples and whether an incomplete last batch is dropped, if known
    samples: tuple[int, bool] | None = None
    dtype: torch.dtype | None = None  #: the precision the model will run in, if other than its own
    purpose: str = ""  #: what the model is used for, one of :data:`PURPOSES`, or empty
    before: nn.Module | None = None  #: an earlier version of the same model
    parallel: str = ""  #: the class of the wrapper for several devices, if there is one
    failure: str = ""  #: why the model has no graph; empty if it has one
    failed_at: str = ""  #: the layer that raised, if one did
    #: what a forward pass in evaluation mode changes in the model, if that is the reason
    changed_state: tuple[str, ...] = ()
    random_at: str = ""  #: the module that draws random numbers in evaluation mode, if that is the reason
    non_finite: str = ""  #: what is not finite; empty if everything is finite
    non_finite_at: str = ""  #: the layer where it is
    non_finite_fix: str = ""  #: what to do about it, if known
    example: ModelInputs | None = None  #: the inputs it was captured on
    #: a few samples of the data, for :func:`~normscope.doctor.probe.batch_statistics`
    batch: list[Tensor] | None = None
    observer: NodeObserver = field(default_factory=NodeObserver)  #: what the data shows at individual nodes
    singular: Singularities | None = None  #: derivatives that are not finite on the data
    coupling: CouplingTest | None = None  #: the outputs of the first samples in their batch

    def has(self, need: str) -> bool:
        """Return whether something that a rule needs is available."""
        if need == "earlier graph":
            return not self.earlier.problem
        return {
            "program": bool(self.graph.nodes),
            "data": self.seen is not None,
            "samples": self.seen is not None and self.seen.samples >= ENOUGH,
            "optimizer": self.optimizer is not None,
            "batch size": self.batch_size is not None,
            "purpose": bool(self.purpose),
            "before": self.before is not None,
        }[need]

    @property
    def graph(self) -> Graph:
        """Return what the model computes."""
        return self.captured.graph

    @functools.cached_property
    def earlier(self) -> EarlierModel:
        """Return the earlier version of the model, run on the same inputs."""
        return compare_with_earlier(self.before, self.captured, self.example, self.batch)

    @functools.cached_property
    def structure(self) -> Structure:
        """Return the structure of the program in training."""
        return Structure(self.training)

    @functools.cached_property
    def on_all_inputs(self) -> Composition:
        """Return a quick composition on all inputs, with fixed running statistics: what is bounded, not by how much."""
        return Roughly(self.program, Domain(), FiniteNorms())

    def sites(self) -> list[Site]:
        """Return the normalizers of activations in evaluation."""
        return [s for s in self.program.sites if not acts_on_weights(s)]

    def weight_sites(self) -> list[Site]:
        """Return the normalizers of weights."""
        return [s for s in self.program.sites if acts_on_weights(s)]

    def seen_before(self, site: Site) -> InputStatistics | None:
        """Return the statistics of the data before a normalizer."""
        found = None if self.seen is None else self.seen.before_normalizers.get(site.node)
        return found if found is not None and found.moments.count else None

    def least_variances(self, site: Site) -> Tensor | None:
        """Return the smallest variance of each group on the data, where eps is added to a variance."""
        seen, spread = self.seen_before(site), site.spread
        if seen is None or seen.floor is None or spread is None or spread.where != "inside":
            return None
        return seen.floor.double().flatten().square() * spread.factor

    def scale_of(self, site: Site) -> Tensor | None:
        """Return the scale of a normalizer in float64: its own, or the first constant its result is multiplied by."""
        if site.gamma is not None:
            return site.gamma.detach().double().flatten().cpu()
        structure = self.evaluation
        atom = structure.divisions.get(site.node)
        for _ in range(3):  # a normalizer written by hand may centre again, or cast, before it scales
            readers = [] if atom is None else structure.parents.get(atom.id, [])
            if len(readers) != 1 or readers[0].op is None:
                return None
            scale = readers[0].op.data.get("scale") if readers[0].op.kind == "diagonal" else None
            if isinstance(scale, Tensor):
                return scale.detach().double().flatten().cpu()
            atom = readers[0]
        return None

    @functools.cached_property
    def evaluation(self) -> Structure:
        """Return the structure of the program in evaluation."""
        return Structure(self.program)

    @functools.cached_property
    def calls(self) -> Counter[str]:
        """Return how often each normalizer is called in one pass, by its first path."""
        return Counter(self.first_path(place_of(s)) for s in self.sites())

    def first_path(self, path: str) -> str:
        """Return the first path of a module that has several."""
        return self._first_paths.get(path, path)

    @functools.cached_property
    def _first_paths(self) -> dict[str, str]:
        """Return the first path of every module, by each of its paths."""
        first = {id(module): path for path, module in self.model.named_modules()}
        return {path: first[id(m)] for path, m in self.model.named_modules(remove_duplicate=False)}

    @functools.cached_property
    def features(self) -> dict[str, frozenset[int]]:
        """Return the axes that hold features, by graph node."""
        return feature_axes(self.captured)

    @property
    def batched(self) -> int:
        """Return how many samples :attr:`batch` holds."""
        return self.batch[0].shape[0] if self.batch and self.batch[0].ndim else 1

    @functools.cached_property
    def batch_statistics(self) -> dict[str, ChannelStatistics]:
        """Return the statistics of each channel before each BatchNorm on a few samples, by graph node."""
        return {} if self.batch is None else batch_statistics(self.captured, self.batch, self.sites())

    @functools.cached_property
    def second_run(self) -> SecondRun:
        """Return what a second run of a few samples shows: without the others, and in a wider precision."""
        if self.coupling is None or self.non_finite:
            return SecondRun()
        return run_again(self.captured, self.coupling, self.batch)

    @functools.cached_property
    def planned(self) -> Captured | None:
        """Return the model captured in the planned precision, if there is one and the model runs in it."""
        return None if self.dtype is None else captured_in(self.model, self.captured, self.dtype)

    @functools.cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name, each under its first name."""
        return dict(self.model.named_parameters())

    def optimizer_settings(self, key: str) -> dict[int, float]:
        """Return a setting of the optimizer, such as ``lr``, for each of its parameters by ``id``; 0 if it has none."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return {id(p): float(group.get(key, 0.0)) for group in groups for p in group["params"]}

    def parameter_name(self, tensor: Tensor, owner: str) -> str:
        """Return the name of the parameter behind a constant of the graph, or an empty string.

        A view or a cast of a parameter counts, if it belongs to the module at ``owner``.
        """
        for name, parameter in self.parameters.items():
            if parameter.data_ptr() == tensor.data_ptr() and parameter.numel() == tensor.numel():
                return name
        flat = tensor.detach().double().flatten()
        for name, parameter in self.parameters.items():
            inside = name.rpartition(".")[0] == owner
            if inside and parameter.numel() == flat.numel() and bool((parameter.double().flatten() == flat).all()):
                return name
        return ""

    def drops_between(self, start: str, end: str) -> bool:
        """Return whether dropout acts on some path from one graph node, or parameter, to another."""
        first = [n.name for n in self.graph if start in (n.name, n.target)]
        return any(drop_rate(self.graph[name]) > 0 for name in between(self.graph, first, end))


def drop_rate(node: Node) -> float:
    """Return the rate of a dropout operation, and zero for any other."""
    if "dropout" not in node.op:
        return 0.0
    rates = [a for a in node.args if isinstance(a, float)]
    return rates[0] if rates else 0.5


def place_of(site: Site) -> str:
    """Return the place of a normalizer: its module, or its graph node if the model itself computes it."""
    return site.owner or site.node


def layer_of(site: Site) -> str:
    """Return the module whose weight a normalizer of weights computes.

    >>> layer_of(Site("n", "w", "parametrizations.weight.0", "weight_norm"))  # the model itself is the layer
    ''
    """
    return "" if site.owner.startswith("parametrizations.") else site.owner


def examine(
    model: nn.Module,
    data: Any = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    input_shape: tuple[int, ...] | None = None,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    purpose: str = "",
    before: nn.Module | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    first: Callable[[Subject], None] | None = None,
    prepared: PreparedModel | None = None,
) -> Subject:
    """Capture a model and run it over the data, as far as possible; arguments are those of :func:`normscope.check`.

    ``first`` is called with what is known before the graph is captured: modules, optimizer, purpose. If the model
    cannot be captured, ``failure`` says why and only its modules are known.

    Raises:
        InputError: if the data does not fit the model, or is empty.

    >>> examine(nn.Linear(2, 2)).has("program")
    True
    """
    say = progress or (lambda text: None)
    if purpose and purpose not in PURPOSES:
        raise InputError(f"Unknown purpose {purpose!r}. Choose from: {', '.join(PURPOSES)}.")
    for number, what in ((limit, "limit, the largest number of samples,"), (batch_size, "the batch size")):
        if number is not None and number < 1:
            raise InputError(f"Expected {what} to be at least 1, got {number}.")
    inner, parallel = unwrap(model)
    earlier = None if before is None else unwrap(before)[0]
    subject = Subject(inner, optimizer=optimizer, dtype=dtype, purpose=purpose, before=earlier, parallel=parallel)
    subject.batch_size, subject.samples = _batches_of(data, batch_size)
    if first is not None:
        first(subject)
    try:
        check_model(inner)
    except NonFiniteError as error:
        subject.non_finite, subject.non_finite_at = str(error), _first_broken(inner)
        return subject
    data = repeatable(data)
    if data is not None:
        # Data that does not fit the model is an error, not a finding.
        large = sum(p.numel() for p in inner.parameters()) >= LARGE
        subject.example = example = first_samples(next(iter(iterate(data, inner))), 2 if large else EXAMPLE)
    try:
        if prepared is None:
            if data is None:
                subject.example = example = guess_inputs(inner, input_shape, batch=2)
            say("capturing the graph")
            captured = capture(inner, example, elsewhere=False).on(device)
            prepared = walk_one(captured, Options())
        _fill(subject, prepared, data, limit, seed, say)
    except NonFiniteInputError:
        raise
    except NonFiniteError as error:  # a buffer that the graph uses
        subject.non_finite = str(error)
    except (CaptureError, InputError) as error:
        subject.failure = str(error)
        if isinstance(error, StatefulError):
            subject.changed_state = changed_by_forward(inner, example)
        elif isinstance(error, RandomError):
            subject.random_at = random_part(inner, example)
        elif isinstance(error, InputError) and data is not None:
            subject.failed_at, subject.failure = _where_it_raises(inner, example, str(error))
    return subject


def _where_it_raises(model: nn.Module, inputs: ModelInputs, reason: str) -> tuple[str, str]:
    """Return the layer that raises on an input, and the error.

    Raises:
        InputError: if none does, or the first layer does: then the input does not fit the model.
    """
    where = InnermostModule(model)
    try:
        with untouched(model, *inputs.tensors()), torch.no_grad():
            evaluating(model)
            with where:
                model(*inputs.args, **inputs.kwargs)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        text = " ".join(str(error).split())
        first = next((path for path, _ in sized_layers(model)), "")
        if where.path in ("", first):
            raise InputError(reason) from error
        return where.path, f"{where.text or 'the model'}, and raised {type(error).__name__}: {text}"
    raise InputError(reason)


def _first_broken(model: nn.Module) -> str:
    """Return the module of the first parameter or running statistic that is not finite."""
    for name, tensor in named_tensors(model):
        if sum(count_non_finite(tensor)) and (name.endswith(STATISTICS) or name in dict(model.named_parameters())):
            return name.rpartition(".")[0]
    return ""


def _fill(subject: Subject, prepared: PreparedModel, data: Any, limit: int | None, seed: int, say: Progress) -> None:
    """Build the programs and run over the data."""
    captured, program = prepared.captured, prepared.program
    options = Options(seed=seed, points=1)
    # A check compares orders of magnitude: two digits are enough.
    subject.norms = SegmentNorms(Effort(1e-2, options.delta, seed, lanczos=False), say)
    subject.captured, subject.program = captured, program
    subject.training = _in_training(captured, program)
    if data is None:
        return
    say("statistics of the data")
    context = AnalysisContext(captured, program, "", subject.model, data, options, say=say, norms=subject.norms)
    most = samples_of(program) if limit is None else limit
    seen = list(batches(context, most))
    probed = max(PROBED, int(MORE / max(1.0, forward_cost(program))))
    subject.batch = _joined(seen[: max(1, probed // max(1, len(seen[0][0])))]) if seen else None
    activations = activation_inputs(captured, program)
    axes = {name: channel_axis(subject.features.get(source)) for name, source in activations.items()}
    singular, coupling = Singularities(captured.graph), CouplingTest(captured.graph, seen[0] if seen else ())
    subject.singular, subject.coupling = singular, coupling
    infinite: list[str] = []
    outputs = outputs_of(captured.graph)

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        for observer in (subject.observer, singular, coupling):
            observer.visit(node, value, values)
        if node.name in outputs and isinstance(value, Tensor) and not all_finite(value):
            infinite.append(node.name)

    try:
        subject.seen = survey(captured, program, seen, activations=activations, channels=axes, also=visit)
    except NonFiniteError as error:
        subject.non_finite = str(error)
    fault = subject.observer.fault or subject.observer.nan_fault
    if fault is not None and (subject.non_finite or (infinite and fault.kind)):
        subject.non_finite, subject.non_finite_fix = explain_fault(fault, captured.graph, captured.tensors)
        subject.non_finite_at = fault.node.owner
    if subject.seen is not None and subject.seen.samples == 0:
        raise InputError("The data is empty. Pass at least one sample, or no data.")


def samples_of(program: Program) -> int:
    """Return how many samples to use: fewer for a network that takes longer."""
    return int(min(SAMPLES, max(FEWEST, WORK / max(1.0, forward_cost(program)))))


def _joined(pieces: list[list[Tensor]]) -> list[Tensor]:
    """Return batches as one batch, if all of their tensors are batched."""
    sizes = {t.shape[0] if t.ndim else 0 for t in pieces[0]}
    return [torch.cat(column) for column in zip(*pieces, strict=True)] if len(sizes) == 1 else pieces[0]


def _in_training(captured: Captured, program: Program) -> Program:
    """Return the program with batch statistics on the whole example, or the given one if no layer uses them."""
    if not has_batch_norm(captured.graph):
        return program
    try:
        return build_program(with_batch_statistics(captured.graph), captured.tensors, captured.example)
    except (RuntimeError, NormscopeError):  # e.g. a batch of one with one value per channel
        return program


def _batches_of(data: Any, batch_size: int | None) -> tuple[int | None, tuple[int, bool] | None]:
    """Return the batch size of training and (samples, drop_last), as far as a DataLoader provides them."""
    if not isinstance(data, torch.utils.data.DataLoader):
        return batch_size, None
    size = batch_size or data.batch_size
    try:
        return size, (len(data.dataset), bool(data.drop_last))  # type: ignore[arg-type]
    except TypeError:  # a stream has no length
        return size, None
