"""Verify that two sets of weights compute the same function."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.core.errors import InputError, failures_of_the_model
from normscope.graph.capture import tensors_in
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import as_floating

#: Largest difference of outputs, relative to the largest output, that rounding may cause.
RELATIVE = 1e-5
#: The same relative to the variation of outputs over samples, for weights rounded to float32.
VARIATION = 1e-3
#: Factors by which inputs are stretched to verify far from the data.
STRETCHES = (100.0, -100.0)


def outputs_of(model: nn.Module, state: Mapping[str, Tensor], inputs: ModelInputs) -> list[Tensor]:
    """Return the floating-point outputs of a model in evaluation mode with other weights, without changing it."""
    with untouched(model, *inputs.tensors()), torch.no_grad():
        model.eval()
        copies = {name: tensor.detach().clone() for name, tensor in state.items()}
        with failures_of_the_model():
            found = functional_call(model, copies, inputs.args, inputs.kwargs, tie_weights=False)
    tensors = [tensor for _, tensor in tensors_in(found)]
    if not tensors:
        raise InputError("Cannot verify the fix: the model returns no floating-point tensor.")
    return tensors


@dataclass(frozen=True)
class Difference:
    """How far the functions of two sets of weights differ."""

    relative: float  #: largest difference of an output, relative to the largest output, in the model's own precision
    #: largest difference in float64, relative to the variation of outputs over samples, which a large constant output
    #: would hide otherwise; ``None`` if the model does not run in float64 or there is one sample
    variation: float | None
    samples: int  #: number of samples

    @property
    def is_rounding(self) -> bool:
        """Return whether rounding the weights can explain the difference."""
        return self.relative <= RELATIVE and (self.variation is None or self.variation <= VARIATION)


def difference(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor], batches: Iterable[ModelInputs]
) -> Difference:
    """Return how far the outputs of two sets of weights differ.

    >>> layer = nn.Linear(1, 1)
    >>> state = {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}
    >>> other = {"weight": torch.full((1, 1), 1.5), "bias": torch.zeros(1)}
    >>> difference(layer, state, other, [ModelInputs((torch.tensor([[1.0], [-1.0]]),))])
    Difference(relative=0.5, variation=0.5, samples=2)
    """
    relative, variation, samples = 0.0, 0.0, 0
    wide = True
    for inputs in batches:
        for a, b in zip(outputs_of(model, before, inputs), outputs_of(model, after, inputs), strict=True):
            relative = max(relative, _quotient((a.double() - b.double()), a.double()))
        wide = wide and inputs.batch > 1
        if wide:
            try:
                given = ModelInputs(*as_floating((inputs.args, inputs.kwargs), torch.float64))
                pairs = [outputs_of(model, as_floating(dict(s), torch.float64), given) for s in (before, after)]
            except (RuntimeError, TypeError, ValueError):  # its code has a constant or a cast in another precision
                wide = False
            else:
                for a, b in zip(*pairs, strict=True):
                    variation = max(variation, _quotient(a - b, a - a.mean(0, keepdim=True)))
        samples += inputs.batch
    return Difference(relative, variation if wide else None, samples)


def far_from(model: nn.Module, inputs: ModelInputs) -> Iterator[ModelInputs]:
    """Yield stretched inputs on which the model runs and is finite; a branch on the input may show there.

    >>> layer, inputs = nn.Linear(1, 1), ModelInputs((torch.tensor([[1.0]]),))
    >>> [float(found.args[0]) for found in far_from(layer, inputs)]
    [100.0, -100.0]
    """
    given = [t for t in (*inputs.args, *inputs.kwargs.values()) if isinstance(t, Tensor)]
    for factor in STRETCHES if any(t.is_floating_point() for t in given) else ():
        args = tuple(_stretched(value, factor) for value in inputs.args)
        found = ModelInputs(args, {name: _stretched(value, factor) for name, value in inputs.kwargs.items()})
        try:
            outputs = outputs_of(model, model.state_dict(), found)
        except Exception:  # these inputs are ours: a model need not run on them
            continue
        if all(bool(t.isfinite().all()) for t in outputs):
            yield found


def _stretched(value: Any, factor: float) -> Any:
    """Return a value times a factor if it is a floating tensor."""
    return value * factor if isinstance(value, Tensor) and value.is_floating_point() else value


def _quotient(gap: Tensor, reference: Tensor) -> float:
    """Return the largest entry of one tensor over that of another; infinity if that is infinite or NaN."""
    if not gap.numel():
        return 0.0
    top, size = float(gap.abs().max()), float(reference.abs().max())
    if not math.isfinite(top):
        return math.inf
    return 0.0 if top == 0 else (math.inf if size == 0 else top / size)
