"""Small networks and dense truths for the tests of curvature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.problem import Problem
from normscope.graph.guard import untouched


def classifier(norm: bool = True, eps: float = 1e-5, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Return a small network with BatchNorm, or without."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers: list[nn.Module] = []
        for inputs, outputs in ((4, 7), (7, 6)):
            layers += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs, eps=eps)] if norm else []), activation()]
        return nn.Sequential(*layers, nn.Linear(6, 3))


def labelled(samples: int = 40, inputs: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random inputs and classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, inputs, generator=generator)
    return x, torch.randint(0, classes, (samples,), generator=generator)


def dense_hessian(problem: Problem) -> Tensor:
    """Return the Hessian by torch's own double loop, not by our products."""

    def loss(vector: Tensor) -> Tensor:
        parts = problem.split(vector)
        return sum(t.share * problem.loss_of(problem.outputs(parts, t), t) for t in problem.terms)  # type: ignore[return-value]

    return torch.autograd.functional.hessian(loss, problem.point())


def plain_hessian(model: nn.Module, x: Tensor, y: Tensor, *, train: bool, at_once: bool = False) -> Tensor:
    """Return the Hessian of the cross-entropy of a model run as users run it, in float64, without any of our code.

    Row by row, or all rows at once: for those who need many, it takes a fifth of the time.
    """
    with untouched(model):
        model.double().train(train)
        names = [name for name, _ in model.named_parameters()]
        shapes = [p.shape for p in model.parameters()]
        buffers = {name: b.clone() for name, b in model.named_buffers()}

        def loss(vector: Tensor) -> Tensor:
            parts = [
                part.view(shape) for part, shape in zip(vector.split([s.numel() for s in shapes]), shapes, strict=True)
            ]
            arguments: dict[str, Any] = dict(zip(names, parts, strict=True))
            fresh = {name: b.clone() for name, b in buffers.items()}
            out = torch.func.functional_call(model, arguments | fresh, (x.double(),))
            return nn.functional.cross_entropy(out, y)

        point = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        return torch.autograd.functional.hessian(loss, point, vectorize=at_once)
