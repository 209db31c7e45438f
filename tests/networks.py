"""Small networks for tests, and independent truth about them: float64 autograd, dense singular values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import as_inputs
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.tangent_propagation import atom_value
from normscope.lipschitz.local.values_at_point import values_at_point
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.program import Program, build_program


class Lambda(nn.Module):
    """A module whose forward is a given function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **members: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        for name, member in members.items():
            if isinstance(member, Tensor) and not isinstance(member, nn.Parameter):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """Apply the function."""
        return self.function(self, x)


class LambdaOfTwo(Lambda):
    """The same with two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        """Apply the function."""
        return self.function(self, x, y)


class Residual(nn.Module):
    """``relu(x + conv(leaky(bn(conv(x)))))``."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm, self.leaky = nn.BatchNorm2d(channels), nn.LeakyReLU(0.125)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return torch.relu(x + self.b(self.leaky(self.norm(self.a(x)))))


def residual_network(seed: int) -> nn.Module:
    """Return two residual blocks, a mean and a linear map, for inputs of shape (2, 4, 4)."""
    return seeded(nn.Sequential(Residual(), Residual(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)), seed)


def seeded(model: nn.Module, seed: int = 0, scale: float = 1.0) -> nn.Module:
    """Return the model in float64 and evaluation mode with every parameter drawn anew, running variances positive."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = math.prod(parameter.shape[1:]) if parameter.ndim > 1 else 1
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale / math.sqrt(fan_in)
            )
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator, dtype=torch.float64) + 0.2)
            elif name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator, dtype=torch.float64))
    return model


def points(*shape: int, seed: int = 0) -> Tensor:
    """Return normal float64 numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def captured_of(model: nn.Module, *inputs: Tensor) -> Captured:
    """Capture a model on some inputs."""
    return capture(model, as_inputs(tuple(inputs), model))


def program_of(model: nn.Module, *inputs: Tensor, batch: int = 1) -> Program:
    """Return the affine program of a model at a batch size."""
    found = captured_of(model, *inputs)
    return build_program(found.graph, found.tensors, found.at_batch(batch))


def upper_of(program: Program, domain: Domain | None = None, effort: Effort | None = None) -> float:
    """Return the certified constant of a program."""
    return math.exp(Composition(program, domain or Domain(), SegmentNorms(effort)).total()[0])


def value_of(program: Program, *inputs: Tensor) -> Tensor:
    """Return what a program with one output computes at one sample."""
    (output,) = (expr for _, expr in program.outputs)
    order, stack = {}, [output]
    while stack:
        expr = stack.pop()
        if expr.id not in order:
            order[expr.id] = expr
            stack.extend(expr.inputs if expr.op is not None else expr.atom.inputs)
    known = values_at_point([order[key] for key in sorted(order)], Steps(SegmentNorms()), inputs, atom_value)
    return known[output.id].value


def jacobian(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Return the dense Jacobian of all outputs with respect to all inputs at one sample, by float64 autograd."""

    def flat(*xs: Tensor) -> Tensor:
        out = model(*xs)
        parts = [out] if isinstance(out, Tensor) else list(out.values() if isinstance(out, dict) else out)
        return torch.cat([p.reshape(-1) for p in parts if p.is_floating_point()])

    found = torch.autograd.functional.jacobian(flat, tuple(inputs))
    return torch.cat([j.reshape(j.shape[0], -1) for j in found], dim=1)


def spectral_norm(matrix: Tensor) -> float:
    """Return the largest singular value of a matrix, dense."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def jacobian_norm(model: nn.Module, *inputs: Tensor) -> float:
    """Return the spectral norm of the dense Jacobian at one sample."""
    return spectral_norm(jacobian(model, *inputs))
