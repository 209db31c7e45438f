"""Least norms of weight vectors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.minimum_norm import MinimumNorms, minimum_row_norm


def test_norms_of_kernels_and_rows() -> None:
    model = small()
    found = MinimumNorms().measure(moment_of(model, batch()))
    for name in ("conv1", "conv2", "head"):
        rows = getattr(model, name).weight.detach().double().flatten(1)
        assert found[f"weight/minimum_norm/{name}"] == pytest.approx(min(float(r.norm()) for r in rows), rel=1e-6)
    hidden = min(found["weight/minimum_norm/conv1"], found["weight/minimum_norm/conv2"])
    assert found["weight/minimum_norm"] == hidden  # the last layer does not count


def test_outputs_are_counted_along_their_own_axis() -> None:
    class Turned(nn.Module):
        """Transposed weights: of a product from the right, and of a transposed convolution."""

        def __init__(self) -> None:
            super().__init__()
            self.right = nn.Parameter(torch.eye(3))
            self.up = nn.ConvTranspose1d(3, 4, 2)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Apply them."""
            y = torch.relu(x @ self.right)
            return self.head(self.up(y.unsqueeze(-1)).mean(-1))

    model = Turned()
    with torch.no_grad():
        model.right.copy_(torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]]))
        model.up.weight[:, 1] = 0.25
    found = MinimumNorms().measure(moment_of(model, torch.randn(5, 3)))
    values = [value for name, value in found.items() if name.startswith("weight/minimum_norm/")]
    assert values[0] == pytest.approx(1.0)  # the first column, not the first row
    kernels = model.up.weight.detach().double().movedim(1, 0).flatten(1)
    assert values[1] == pytest.approx(min(float(k.norm()) for k in kernels), rel=1e-6)


def test_directions_of_weight_normalization_count() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    with torch.no_grad():
        layer.parametrizations.weight.original1[2].fill_(1e-3)
    found = MinimumNorms().measure(moment_of(nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 3)))
    assert found["weight/minimum_norm"] == pytest.approx(1e-3 * 3**0.5, rel=1e-5)


def test_it_never_falls_under_gradient_descent_with_weight_normalization() -> None:
    """The paper's open question, answered for plain steps: ||v+||^2 = ||v||^2 + eta^2 ||grad||^2."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 2)).double()
        x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 2, (20,))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    directions = layer.parametrizations.weight.original1
    last = minimum_row_norm(directions)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        now = minimum_row_norm(directions)
        assert now >= last * (1 - 1e-12)
        last = now


@pytest.mark.parametrize("broken", ["conv1", "conv2"])
def test_what_is_no_number_is_not_passed_over(broken: str) -> None:
    model = small()
    with torch.no_grad():
        getattr(model, broken).weight.fill_(math.nan)
    assert math.isnan(MinimumNorms().measure(moment_of(model, batch()))["weight/minimum_norm"])
