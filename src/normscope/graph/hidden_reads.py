"""Parameters that a model also reads where its graph does not: as Python numbers, through NumPy, to decide a branch."""

import copy
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.core.errors import listed
from normscope.graph.capture import Captured, FlatModel, are_alike, compiled_parts_as_written
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import run
from normscope.graph.statefulness import RepeatedRuns, evaluating

#: How parameters are changed, as factors of them and of noise of their size: a little, to their opposites, to others.
CHANGES = ((1.0, 0.05), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))


def hidden_reads(model: nn.Module, inputs: ModelInputs, captured: Captured) -> tuple[str, ...] | None:
    """Return the parameters whose changes change a model, but not its graph in the same way.

    A copy of the model is run with other parameters, and so is the graph. What was a number, an index or a branch when
    the model was captured has stayed the same in the graph.

    Args:
        model: the model; it is copied, not changed.
        inputs: arguments it was captured with.
        captured: its graph.

    Returns:
        The names of the parameters; all of them if it shows only when all are changed together. ``None`` if the model
        cannot be copied.

    >>> from normscope.graph.capture import capture
    >>> class Scaled(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x) * float(self.bias.detach().numpy().sum())
    >>> model, inputs = Scaled(3, 3), ModelInputs((torch.ones(2, 3),))
    >>> hidden_reads(model, inputs, capture(model, inputs))
    ('bias',)
    """
    try:
        twin = evaluating(copy.deepcopy(model))
    except Exception:  # copying runs the user's code
        return None
    some = next(iter(captured.tensors.values()), None)
    twin = twin if some is None else twin.to(some.device)
    flat = FlatModel(twin, inputs)
    flat.training = False
    follows = _Comparison(RepeatedRuns(twin, flat), captured)
    names = [name for name, p in twin.named_parameters() if p.is_floating_point() and p.numel()]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), compiled_parts_as_written():
        if follows(names):
            return ()
        return tuple(name for name in names if not follows([name])) or tuple(names)


def note_on(hidden: Collection[str] | None) -> Iterator[str]:
    """Say what is unknown because of such parameters, if there are any or if the model could not be copied."""
    if hidden is None:
        yield "the model cannot be copied, so it is unknown whether it reads parameters as numbers or for branches"
    elif hidden:
        yield f"read as numbers, as indices or for branches, so nothing is known of them: {listed(sorted(hidden))}"


class _Comparison:
    """Compares a copy of a model with its graph while some of the parameters are changed."""

    def __init__(self, runs: RepeatedRuns, captured: Captured) -> None:
        self.runs, self.captured = runs, captured
        self.example = captured.at_batch(2)
        self.parameters = dict(runs.model.named_parameters(remove_duplicate=False))

    def __call__(self, names: Sequence[str]) -> bool:
        """Return whether the graph follows every change of these parameters, where the model runs."""
        kept = {name: self.parameters[name].clone() for name in names}
        try:
            for factor, noise in CHANGES:
                generator = torch.Generator().manual_seed(0)
                for name, value in kept.items():
                    self.parameters[name].copy_(factor * value + noise * _like(value, generator))
                if not self._agree():
                    return False
        finally:
            for name, value in kept.items():
                self.parameters[name].copy_(value)
        return True

    def _agree(self) -> bool:
        try:
            theirs = self.runs.run(self.example)
        except Exception:  # these parameters are ours: a model need not run with them
            return True
        tensors = {name: self.parameters.get(name, tensor) for name, tensor in self.captured.tensors.items()}
        return are_alike(run(self.captured.graph, tensors, self.example), theirs)


def _like(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return noise as large as a tensor; as large as one where that is zero."""
    size = float(value.double().square().mean().sqrt()) or 1.0
    return (torch.randn(value.shape, generator=generator) * size).to(value)
