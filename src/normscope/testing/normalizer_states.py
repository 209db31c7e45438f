"""Copies of a model whose normalizers are in states that a fresh model is never in: random, negative, zero."""

import copy

import torch
from torch import nn

#: What the classes of normalizers have in their names.
_NAMES = ("norm", "grn")


def normalizer_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are normalizers by the name of their class and have no children.

    >>> [type(m).__name__ for m in normalizer_modules(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))]
    ['LayerNorm']
    """
    named = (m for m in model.modules() if any(word in type(m).__name__.lower() for word in _NAMES))
    return [m for m in named if not any(True for _ in m.children())]


def with_random_normalizers(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy with random scales (some negative, some zero), shifts and running statistics.

    Scales are normal numbers, running variances ``10 ** normal``.

    >>> changed = with_random_normalizers(nn.BatchNorm1d(64), 0)
    >>> bool((changed.weight < 0).any()), bool((changed.running_var > 0).all())
    (True, True)
    """
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in normalizer_modules(model):
            for name, parameter in module.named_parameters(recurse=False):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
                if "bias" not in name and "beta" not in name:
                    parameter.mul_(torch.rand(parameter.shape, generator=generator) < 0.9)
            for name, buffer in module.named_buffers(recurse=False):
                if name == "running_mean":
                    buffer.copy_(torch.randn(buffer.shape, generator=generator))
                elif name == "running_var":
                    buffer.copy_(10.0 ** torch.randn(buffer.shape, generator=generator))
    return model


def with_zero_normalizers(model: nn.Module, seed: int | None = None) -> nn.Module:
    """Return a copy with the scales of some normalizers all zero, as residual branches are initialized.

    >>> with_zero_normalizers(nn.LayerNorm(3)).weight.abs().max().item()
    0.0
    """
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed or 0)
    with torch.no_grad():
        for module in normalizer_modules(model):
            chosen = seed is None or bool(torch.rand((), generator=generator) < 0.5)
            for name, parameter in module.named_parameters(recurse=False):
                if chosen and "bias" not in name and "beta" not in name:
                    parameter.zero_()
    return model
