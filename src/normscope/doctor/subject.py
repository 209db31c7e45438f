"""What the rules check: a model captured once, its program, statistics of the data, its optimizer."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.context import Prepared, Work, batches, walk_one
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
from normscope.doctor.earlier_version import Earlier, look_back
from normscope.doctor.fault import explained
from normscope.doctor.features import channel_axis, feature_axes
from normscope.doctor.infinite_derivative import Singularities
from normscope.doctor.modules import unwrap
from normscope.doctor.neighbours import between
from normscope.doctor.probe import Probe, Statistics, batch_statistics
from normscope.doctor.second_run import Companions, SecondRun, again, in_precision
from normscope.doctor.state import changed_by_forward, random_part
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
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.quick_norms import FiniteNorms, Roughly
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program, build_program
from normscope.operators.site import Site
from normscope.operators.survey import Seen, Survey, activation_inputs, survey

Progress = Callable[[str], None]
#: What a model may be used for.
PURPOSES = ("train", "inference", "finetune", "private", "contrastive", "gan")
#: Samples of the example a model is captured on, those looked at by default, and the fewest of them.
EXAMPLE, SAMPLES, FEWEST = 4, 512, 2
#: Multiplications of all forward passes over the data, about; samples that batch statistics are of, and the
#: multiplications that more of them may take.
WORK, PROBED, MORE = 2e10, 128, 1e9
#: Samples that say something about running statistics.
ENOUGH = 4
#: Parameters from which on a model is captured on two samples.
LARGE = 5_000_000


@dataclass(eq=False)
class Subject:
    """What a rule may look at; nothing of it is changed by looking."""

    model: nn.Module  #: the module, for what only modules tell: modes, parameter groups
    #: the graph and its tensors; empty, like the programs, if it could not be captured
    captured: Captured = field(default_factory=lambda: Captured(Graph(()), {}, [], []))
    program: Program = field(default_factory=Program)  #: the affine program in evaluation, running statistics fixed
    #: the same with every BatchNorm on batch statistics, on a whole batch; for what training cancels
    training: Program = field(default_factory=Program)
    seen: Survey | None = None  #: what the data showed
    norms: SegmentNorms = field(default_factory=SegmentNorms)  #: shared cache of norms
    optimizer: torch.optim.Optimizer | None = None  #: the optimizer, if it was given
    batch_size: int | None = None  #: of training, if it is known
    #: number of training samples and whether an incomplete last batch is dropped, if they are known
    samples: tuple[int, bool] | None = None
    dtype: torch.dtype | None = None  #: the precision the model will run in, if not its own
    purpose: str = ""  #: what the model is used for, one of :data:`PURPOSES`, or nothing
    before: nn.Module | None = None  #: an earlier version of the same model
    parallel: str = ""  #: the wrapper that runs it on several devices, if there is one
    failure: str = ""  #: why there is no graph, if there is none
    failed_at: str = ""  #: the layer that raised, if one did
    #: what a forward pass in evaluation changes in the model, where that is why there is no graph
    moved: tuple[str, ...] = ()
    random_at: str = ""  #: the module that draws random numbers in evaluation, where that is why
    broken: str = ""  #: what is not a finite number, if anything is
    broken_at: str = ""  #: the layer it is at
    broken_fix: str = ""  #: what to do about it, if that is known
    example: ModelInputs | None = None  #: the inputs it was captured on
    #: a few samples of the data, for :func:`~normscope.doctor.probe.batch_statistics`
    batch: list[Tensor] | None = None
    probe: Probe = field(default_factory=Probe)  #: what the data shows at single nodes
    singular: Singularities | None = None  #: where derivatives are not finite on the data
    companions: Companions | None = None  #: what the first samples give in company

    def has(self, need: str) -> bool:
        """Return whether what a rule needs is there."""
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
    def earlier(self) -> Earlier:
        """Return the model as it was at the earlier time, run on the same inputs."""
        return look_back(self.before, self.captured, self.example, self.batch)

    @functools.cached_property
    def structure(self) -> Structure:
        """Return who feeds whom while the model trains."""
        return Structure(self.training)

    @functools.cached_property
    def everywhere(self) -> Composition:
        """Return the composition on all inputs, running statistics fixed, which tells what is bounded: not by what."""
        return Roughly(self.program, Domain(), FiniteNorms())

    def sites(self) -> list[Site]:
        """Return the normalizers of activations, as they act in evaluation."""
        return [s for s in self.program.sites if not acts_on_weights(s)]

    def weight_sites(self) -> list[Site]:
        """Return the normalizers of weights."""
        return [s for s in self.program.sites if acts_on_weights(s)]

    def seen_before(self, site: Site) -> Seen | None:
        """Return what the data showed before a normalizer."""
        found = None if self.seen is None else self.seen.before_normalizers.get(site.node)
        return found if found is not None and found.moments.count else None

    def scale_of(self, site: Site) -> Tensor | None:
        """Return the scale of a normalizer in float64: its own, or the first constant its result is multiplied by."""
        if site.gamma is not None:
            return site.gamma.detach().double().flatten().cpu()
        structure = self.evaluation
        atom = structure.divisions.get(site.node)
        for _ in range(3):  # a written-out normalizer may centre once more, or cast, before it scales
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
        """Return who feeds whom in evaluation."""
        return Structure(self.program)

    @functools.cached_property
    def calls(self) -> Counter[str]:
        """Return how often each normalizer is called in one pass, by the first of its paths."""
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
    def batch_statistics(self) -> dict[str, Statistics]:
        """Return the statistics of each channel before each BatchNorm on a few samples, by graph node."""
        return {} if self.batch is None else batch_statistics(self.captured, self.batch, self.sites())

    @functools.cached_property
    def again(self) -> SecondRun:
        """Return what a second run of a few samples shows: alone, and beside a wider precision."""
        if self.companions is None or self.broken:
            return SecondRun()
        return again(self.captured, self.companions, self.batch)

    @functools.cached_property
    def planned(self) -> Captured | None:
        """Return the model captured in the precision it will be run in, if one is planned and possible."""
        return None if self.dtype is None else in_precision(self.model, self.captured, self.dtype)

    @functools.cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name, each under its first name."""
        return dict(self.model.named_parameters())

    def parameter_name(self, tensor: Tensor, owner: str) -> str:
        """Return the name of the parameter a constant of the graph is, or an empty text if it is none.

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
        """Return whether training drops entries at random on some way from one graph node, or parameter, to another."""
        first = [n.name for n in self.graph if start in (n.name, n.target)]
        return any(drop_rate(self.graph[name]) > 0 for name in between(self.graph, first, end))


def drop_rate(node: Node) -> float:
    """Return the rate of a dropout that acts in training, and zero of any other operation."""
    if "dropout" not in node.op:
        return 0.0
    rates = [a for a in node.args if isinstance(a, float)]
    return rates[0] if rates else 0.5


def place_of(site: Site) -> str:
    """Return where a normalizer stands: its module, or its node where the model itself computes it."""
    return site.owner or site.node


def layer_of(site: Site) -> str:
    """Return the module whose weight a normalizer of weights makes.

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
    prepared: Prepared | None = None,
) -> Subject:
    """Look at a model once, as far as that is possible; arguments are those of :func:`normscope.check`.

    ``first`` is called with what is known before the graph is captured: modules, optimizer, purpose. Where the model
    cannot be captured, ``failure`` says why and only its modules are there.

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
        subject.broken, subject.broken_at = str(error), _first_broken(inner)
        return subject
    data = repeatable(data)
    if data is not None:
        # Data that does not fit is a mistake, not a finding.
        large = sum(p.numel() for p in inner.parameters()) >= LARGE
        subject.example = example = first_samples(next(iter(iterate(data, inner))), 2 if large else EXAMPLE)
    try:
        if prepared is None:
            if data is None:
                subject.example = example = guess_inputs(inner, input_shape, batch=2)
            say("capturing the graph")
            captured = capture(inner, example, elsewhere=False).on(device)
            prepared = Prepared(captured, *walk_one(captured, Options()))
        _fill(subject, prepared, data, limit, seed, say)
    except NonFiniteInputError:
        raise
    except NonFiniteError as error:  # a buffer that the graph uses
        subject.broken = str(error)
    except (CaptureError, InputError) as error:
        subject.failure = str(error)
        if isinstance(error, StatefulError):
            subject.moved = changed_by_forward(inner, example)
        elif isinstance(error, RandomError):
            subject.random_at = random_part(inner, example)
        elif isinstance(error, InputError) and data is not None:
            subject.failed_at, subject.failure = _where_it_raises(inner, example, str(error))
    return subject


def _where_it_raises(model: nn.Module, inputs: ModelInputs, reason: str) -> tuple[str, str]:
    """Return the layer that raises on an input, and why.

    Raises:
        InputError: if none does, or the first layer: the input does not fit the model.
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


def _fill(subject: Subject, prepared: Prepared, data: Any, limit: int | None, seed: int, say: Progress) -> None:
    """Build the programs and run over the data."""
    captured, program = prepared.captured, prepared.program
    options = Options(seed=seed, points=1)
    # A check asks whether numbers are of one size or another, not for their fourth digit.
    subject.norms = SegmentNorms(Effort(1e-2, options.delta, seed, lanczos=False), say)
    subject.captured, subject.program = captured, program
    subject.training = _in_training(captured, program)
    if data is None:
        return
    say("statistics of the data")
    work = Work(captured, program, options, subject.norms, say, subject.model, data)
    most = samples_of(program) if limit is None else limit
    seen = list(batches(work, most))
    probed = max(PROBED, int(MORE / max(1.0, forward_cost(program))))
    subject.batch = _joined(seen[: max(1, probed // max(1, len(seen[0][0])))]) if seen else None
    activations = activation_inputs(captured, program)
    axes = {name: channel_axis(subject.features.get(source)) for name, source in activations.items()}
    singular, companions = Singularities(captured.graph), Companions(captured.graph, seen[0] if seen else ())
    subject.singular, subject.companions = singular, companions
    infinite: list[str] = []
    outputs = {name for n in captured.graph if n.op == "output" for name in n.inputs()}

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        for look in (subject.probe, singular, companions):
            look.visit(node, value, values)
        if node.name in outputs and isinstance(value, Tensor) and not all_finite(value):
            infinite.append(node.name)

    try:
        subject.seen = survey(captured, program, seen, activations=activations, channels=axes, also=visit)
    except NonFiniteError as error:
        subject.broken = str(error)
    fault = subject.probe.fault or subject.probe.made
    if fault is not None and (subject.broken or (infinite and fault.kind)):
        subject.broken, subject.broken_fix = explained(fault, captured.graph, captured.tensors)
        subject.broken_at = fault.node.owner
    if subject.seen is not None and subject.seen.samples == 0:
        raise InputError("The data is empty. Pass at least one sample, or no data.")


def samples_of(program: Program) -> int:
    """Return how many samples are looked at: fewer of a network that takes longer."""
    return int(min(SAMPLES, max(FEWEST, WORK / max(1.0, forward_cost(program)))))


def _joined(pieces: list[list[Tensor]]) -> list[Tensor]:
    """Return batches as one, where all of their tensors are batched."""
    sizes = {t.shape[0] if t.ndim else 0 for t in pieces[0]}
    return [torch.cat(column) for column in zip(*pieces, strict=True)] if len(sizes) == 1 else pieces[0]


def _in_training(captured: Captured, program: Program) -> Program:
    """Return the program with batch statistics, on the whole example; the other one if nothing uses them."""
    if not has_batch_norm(captured.graph):
        return program
    try:
        return build_program(with_batch_statistics(captured.graph), captured.tensors, captured.example)
    except (RuntimeError, NormscopeError):  # e.g. a batch of one with one value per channel
        return program


def _batches_of(data: Any, batch_size: int | None) -> tuple[int | None, tuple[int, bool] | None]:
    """Return the batch size of training and (samples, drop_last), as far as a loader tells them."""
    if not isinstance(data, torch.utils.data.DataLoader):
        return batch_size, None
    size = batch_size or data.batch_size
    try:
        return size, (len(data.dataset), bool(data.drop_last))  # type: ignore[arg-type]
    except TypeError:  # a stream has no length
        return size, None
