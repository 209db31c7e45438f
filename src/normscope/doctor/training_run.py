"""Runs of a model in training mode, to see whether parameters have an effect there."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.graph.capture import tensors_in
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs

#: Relative change of an output that rounding does not explain: a normalizer may amplify it.
EFFECT = 1e-2


def acting_in_training(model: nn.Module, inputs: ModelInputs, names: Collection[str]) -> set[str]:
    """Return the parameters whose changes change what a model returns in training; empty if it does not run there.

    Every parameter is moved by noise, all at once, and one by one if that changes the outputs.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    >>> sorted(acting_in_training(model, ModelInputs((torch.randn(8, 2),)), ["0.bias", "2.bias"]))
    ['2.bias']
    """
    generator = torch.Generator().manual_seed(0)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    moved = {}
    for name in names:
        value = parameters[name].detach()
        size = float(value.abs().max()) or 1.0
        moved[name] = value + size * torch.randn(value.shape, generator=generator).to(value)
    try:
        usual = _outputs(model, inputs, {})
        if not _differ(usual, _outputs(model, inputs, moved)):
            return set()
        return {name for name in names if _differ(usual, _outputs(model, inputs, {name: moved[name]}))}
    except Exception:  # the user's code may raise anything: for lack of targets, say
        return set()


def _outputs(model: nn.Module, inputs: ModelInputs, moved: dict[str, Tensor]) -> list[Tensor]:
    """Return the outputs in training with some parameters moved, always with the same random numbers."""
    with untouched(model, *inputs.tensors()), torch.no_grad():
        torch.manual_seed(0)
        model.train()
        found = functional_call(model, moved, inputs.args, inputs.kwargs)
        return [tensor.clone() for _, tensor in tensors_in(found)]


def _differ(usual: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether some output differs by more than rounding."""
    return any(
        float((a - b).abs().nan_to_num(0, 0, 0).max()) > EFFECT * float(a.abs().nan_to_num(0, 0, 0).max())
        for a, b in zip(usual, other, strict=True)
        if a.numel()
    )
