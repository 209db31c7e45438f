"""A captured model as a function of its parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.geometry.function import ModelFunction, function_of, without_stabilizers
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


def captured(model: nn.Module, x: Tensor, **options: str) -> ModelFunction:
    """Return a model as a function."""
    return function_of(capture(model, ModelInputs((x,))), **options)


def test_outputs_are_those_of_the_model_in_training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    x = torch.randn(8, 3, dtype=torch.float64)
    function = captured(model, x)
    assert torch.allclose(function.outputs(function.point)[0], model(x).detach(), atol=1e-12)
    running = captured(model, x, mode="running")
    assert torch.allclose(running.outputs(running.point)[0], model.eval()(x).detach(), atol=1e-12)


def test_derivative_is_that_of_differences() -> None:
    torch.manual_seed(0)
    function = captured(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3))
    direction = {"0.weight": torch.randn(4, 3, dtype=torch.float64)}
    moved = {n: v + 1e-6 * direction.get(n, torch.zeros(())) for n, v in function.point.items()}
    expected = (function.flat(moved) - function.flat(function.point)) / 1e-6
    assert torch.allclose(function.derivative(direction), expected, atol=1e-5)


def test_stabilizers_are_taken_out_of_written_normalizers_too() -> None:
    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)

    x = torch.randn(4, 3, dtype=torch.float64)
    graph = without_stabilizers(capture(Written(), ModelInputs((x,))).graph)
    function = ModelFunction(graph, {}, [x], ())
    assert torch.allclose(function.outputs({})[0].square().mean(-1), torch.ones(4, dtype=torch.float64), atol=1e-12)


def test_one_parameter_under_two_names_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.tanh(self.one(x)))

    assert len(captured(Tied(), torch.randn(4, 3)).names) == 1


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match="mode"):
        captured(nn.Linear(2, 2), torch.randn(3, 2), mode="frozen")
    with pytest.raises(InputError, match="loss"):
        captured(nn.Linear(2, 2), torch.randn(3, 2), loss="mse")
