"""Verify that two sets of weights are one function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.core.guard import untouched
from normscope.graph.inputs import ModelInputs

#: Largest difference of outputs, relative to the largest of them, that rounding may make.
RELATIVE = 1e-5


def outputs_of(model: nn.Module, state: Mapping[str, Tensor], inputs: ModelInputs) -> list[Tensor]:
    """Return the floating outputs of a model in evaluation with other weights; the model is left as it was."""
    with untouched(model, *inputs.tensors()), torch.no_grad():
        model.eval()
        copies = {name: tensor.detach().clone() for name, tensor in state.items()}
        found = functional_call(model, copies, inputs.args, inputs.kwargs, tie_weights=False)
    return list(_tensors(found))


def difference(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor], batches: Iterable[ModelInputs]
) -> tuple[float, int]:
    """Return the largest relative difference of the outputs of two sets of weights, and the number of samples.

    The difference of each output tensor is taken in the maximum norm, relative to the maximum of the first.

    >>> layer = nn.Linear(1, 1)
    >>> state = {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}
    >>> other = {"weight": torch.full((1, 1), 1.5), "bias": torch.zeros(1)}
    >>> difference(layer, state, other, [ModelInputs((torch.ones(2, 1),))])
    (0.5, 2)
    """
    worst, samples = 0.0, 0
    for inputs in batches:
        for a, b in zip(outputs_of(model, before, inputs), outputs_of(model, after, inputs), strict=True):
            if a.shape != b.shape or not a.numel():
                continue
            gap = float((a.double() - b.double()).abs().max())
            size = float(a.double().abs().max())
            worst = max(worst, gap / size if size > 0 else (0.0 if gap == 0 else float("inf")))
            if gap != gap:  # NaN: nothing can be said to be unchanged
                worst = float("inf")
        samples += inputs.batch
    return worst, samples


def _tensors(value: Any) -> Iterable[Tensor]:
    """Yield the floating tensors in what a model returns."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
