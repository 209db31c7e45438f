"""What the rules look at: a model captured once, its program, what the data showed, its optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.context import Work, candidates, look, walk
from normscope.analysis.options import Options
from normscope.core.errors import CaptureError, InputError, NonFiniteError, NonFiniteInputError, NormscopeError
from normscope.doctor.quick import FiniteNorms
from normscope.doctor.structure import Structure
from normscope.graph.capture import Captured, capture, uncompiled
from normscope.graph.inputs import guess_inputs, iterate
from normscope.graph.ir import Node
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.graph.repeatable_data import repeatable
from normscope.graph.weights_validation import check_model
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program, build_program
from normscope.operators.site import Site
from normscope.operators.survey import Seen, Survey

Progress = Callable[[str], None]


@dataclass(eq=False)
class Subject:
    """What a rule may look at; nothing of it is changed by looking.

    Attributes:
        model: the module, for what only modules tell: modes, parameter groups.
        captured: the graph, or nothing if it could not be captured.
        program: the affine program in evaluation, running statistics fixed.
        training: the same with every BatchNorm on batch statistics, on a whole batch; for what training cancels.
        seen: what the data showed.
        norms: shared cache of norms.
        optimizer: the optimizer, if it was given.
        batch_size: of training, if it is known.
        samples: number of training samples and whether an incomplete last batch is dropped, if they are known.
        dtype: the precision the model will be run in, if another than its own.
        failure: why there is no graph, if there is none.
        broken: what is not a finite number, if anything is.
    """

    model: nn.Module
    captured: Captured | None = None
    program: Program | None = None
    training: Program | None = None
    seen: Survey | None = None
    norms: SegmentNorms = field(default_factory=SegmentNorms)
    optimizer: torch.optim.Optimizer | None = None
    batch_size: int | None = None
    samples: tuple[int, bool] | None = None
    dtype: torch.dtype | None = None
    failure: str = ""
    broken: str = ""

    def has(self, need: str) -> bool:
        """Tell whether what a rule needs is there."""
        found = {
            "program": self.program,
            "data": self.seen,
            "optimizer": self.optimizer,
            "batch size": self.batch_size,
        }
        return found[need] is not None

    @functools.cached_property
    def structure(self) -> Structure:
        """Return who feeds whom while the model trains."""
        return Structure(self.training or Program())

    @functools.cached_property
    def everywhere(self) -> Composition:
        """Return the composition on all inputs, running statistics fixed, which tells what is bounded: not by what."""
        return Composition(self.program or Program(), Domain(), FiniteNorms())

    def sites(self) -> list[Site]:
        """Return the normalizers of activations, as they act in evaluation."""
        return [s for s in (self.program or Program()).sites if not acts_on_weights(s.kind)]

    def weight_sites(self) -> list[Site]:
        """Return the normalizers of weights."""
        return [s for s in (self.program or Program()).sites if acts_on_weights(s.kind)]

    def seen_before(self, site: Site) -> Seen | None:
        """Return what the data showed before a normalizer."""
        found = None if self.seen is None else self.seen.before_normalizers.get(site.node)
        return found if found is not None and found.moments.count else None

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
        """Tell whether training drops entries at random on some way from one graph node, or parameter, to another."""
        if self.captured is None:
            return False
        graph = self.captured.graph
        users = graph.users()
        first = [n.name for n in graph if start in (n.name, n.target)]
        above, beneath = _reach(first, users), _reach([end], {n.name: list(n.inputs()) for n in graph})
        return any(_drops(graph[name]) for name in above & beneath)


def _reach(start: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
    """Return what can be reached along edges, the start included."""
    seen: set[str] = set()
    stack = list(start)
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(edges.get(name, ()))
    return seen


def _drops(node: Node) -> bool:
    """Tell whether a node is a dropout that acts in training."""
    rates = [a for a in node.args if isinstance(a, float)]
    return "dropout" in node.op and (not rates or rates[0] > 0)


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
    limit: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Subject:
    """Look at a model once, as far as that is possible.

    Args:
        model: any module.
        data: inputs, as for ``analyze``.
        optimizer: its optimizer.
        input_shape: shape of one input, where there is no data.
        batch_size: of training; by default that of a DataLoader.
        dtype: the precision the model will be run in.
        limit: use at most this many samples.
        device: where the graph is run.
        seed: of everything random.
        progress: called with a line of text at each step.

    Returns:
        The subject; where the model cannot be captured, ``failure`` says why and only its modules are there.

    Raises:
        InputError: if the data does not fit the model, or is empty.

    >>> examine(nn.Linear(2, 2)).program is not None
    True
    """
    say = progress or (lambda text: None)
    if not isinstance(model, nn.Module):
        raise InputError(f"a torch.nn.Module is checked, not {type(model).__name__}")
    _checked_counts(limit, batch_size)
    inner = uncompiled(model)
    subject = Subject(inner, optimizer=optimizer, dtype=dtype)
    subject.batch_size, subject.samples = _batches_of(data, batch_size)
    try:
        check_model(inner)
    except NonFiniteError as error:
        subject.broken = str(error)
        return subject
    data = repeatable(data)
    if data is not None:
        example = next(iter(iterate(data, inner)))  # data that does not fit is the user's mistake, not a finding
    try:
        if data is None:
            example = guess_inputs(inner, input_shape, batch=2)
        say("capturing the graph")
        _fill(subject, capture(inner, example), data, limit, device, seed, say)
    except NonFiniteInputError:
        raise
    except NonFiniteError as error:  # a buffer that the graph uses
        subject.broken = str(error)
    except CaptureError as error:
        subject.failure = str(error)
    except InputError as error:
        if data is not None:
            raise
        subject.failure = str(error)
    return subject


def _checked_counts(limit: int | None, batch_size: int | None) -> None:
    """Raise if a number of samples is not positive."""
    for number, what in ((limit, "limit is the largest number of samples to use"), (batch_size, "a batch has a size")):
        if number is not None and number < 1:
            raise InputError(f"{what}, at least one; it is {number}")


def _fill(
    subject: Subject,
    captured: Captured,
    data: Any,
    limit: int | None,
    device: str | torch.device | None,
    seed: int,
    say: Progress,
) -> None:
    """Build the programs and run over the data."""
    captured = captured.on(device)
    options = Options(seed=seed, points=1)
    program = walk(captured, options)
    # A check asks whether numbers are of one size or another, not for their fourth digit.
    subject.norms = SegmentNorms(Effort(1e-2, options.delta, seed, lanczos=False), say)
    subject.captured, subject.program = captured, program
    subject.training = _in_training(captured, program)
    if data is not None:
        say("statistics of the data")
        work = Work(captured, program, options, subject.norms, say)
        work.candidates = candidates(work, subject.model, data, limit)
        try:
            subject.seen = look(work, subject.model, data, limit)
        except NonFiniteError as error:
            subject.broken = str(error)


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
    loader = data if isinstance(data, torch.utils.data.DataLoader) else None
    if loader is None:
        return batch_size, None
    size = batch_size or loader.batch_size
    try:
        return size, (len(loader.dataset), bool(loader.drop_last))  # type: ignore[arg-type]
    except TypeError:  # a stream has no length
        return size, None


def modules_of(model: nn.Module, *kinds: type[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of some kinds with their paths.

    >>> [path for path, _ in modules_of(nn.Sequential(nn.ReLU(), nn.Linear(1, 1)), nn.Linear)]
    ['1']
    """
    for path, module in model.named_modules():
        if isinstance(module, kinds):
            yield path, module
