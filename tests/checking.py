"""Running one rule of the doctor over a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.finding import Finding
from normscope.doctor import check


def found(code: str, model: nn.Module, data: Any = None, **settings: Any) -> list[Finding]:
    """Return what one rule finds; the rule must have run."""
    result = check(model, data, select=[code], group=False, **settings)
    assert result.ran == (code,), result.skipped
    assert all(f.code == code for f in result.findings)
    return list(result.findings)


def places(code: str, model: nn.Module, data: Any = None, **settings: Any) -> list[str]:
    """Return where one rule finds something."""
    return [f.place for f in found(code, model, data, **settings)]


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def initialized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return the model in evaluation with weights drawn from a generator of its own, fan-in scaled, biases small."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(drawn / parameter[0].numel() ** 0.5)
            elif float(parameter.abs().max()) != 1.0:  # a bias, not the scale of a normalizer
                parameter.copy_(0.1 * drawn)
    return model.eval()


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a random linear functional of the output in train mode, in float64."""
    model = model.double().train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of dropout
        out = model(x.double())
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    named = dict(model.named_parameters())
    grads = torch.autograd.grad((out * weights).sum() + (out.square() * weights).sum(), list(named.values()))
    return dict(zip(named, grads, strict=True))
