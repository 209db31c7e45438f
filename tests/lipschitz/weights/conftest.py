"""Networks captured for the tests of weights, and truth from dense float64 Jacobians."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.lipschitz.weights.uses import Weights, find_weights

Found = tuple[Captured, Weights]


@pytest.fixture
def found() -> Callable[[nn.Module, Tensor], Found]:
    """Return a function that captures a model and finds its weights, at a batch of one."""

    def find(model: nn.Module, x: Tensor) -> Found:
        captured = capture(model, ModelInputs((x,)))
        return captured, find_weights(captured.graph, captured.tensors, captured.at_batch(1))

    return find


@pytest.fixture
def dense() -> Callable[[nn.Module, str, Tensor], float]:
    """Return a function: the spectral norm of the Jacobian of a model's output in one parameter, by a dense SVD."""

    def norm(model: nn.Module, name: str, x: Tensor) -> float:
        parameters = dict(model.named_parameters())
        point = parameters[name].detach().clone()

        def of(weight: Tensor) -> Tensor:
            replaced = {k: weight if v is parameters[name] else v.detach() for k, v in parameters.items()}
            return torch.func.functional_call(model, replaced, (x,)).flatten()

        matrix = torch.autograd.functional.jacobian(of, point).flatten(1)
        return float(torch.linalg.matrix_norm(matrix, ord=2))

    return norm
