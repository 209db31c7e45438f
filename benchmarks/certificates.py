"""False certificates: what a tool says about networks it does not read right, beside the largest Jacobian found."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import environment, version
from normscope import analyze

Say = Callable[[str], None]


class Residual(nn.Module):
    """The sum of a small map and the identity times five."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``5 x + W2 relu(W1 x)``."""
        return 5.0 * x + self.second(self.relu(self.first(x)))


@dataclass(frozen=True)
class Settings:
    """How many points the Jacobian is taken at."""

    points: int = 256


QUICK = Settings(points=8)


def _seeded(build: Callable[[], nn.Module], scale: float) -> nn.Module:
    """Return a network with weights of a given size that depend on no global generator."""
    network = build().double().eval()
    generator = torch.Generator().manual_seed(3)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                module.weight.normal_(0.0, scale / module.in_features**0.5, generator=generator)
                module.bias.zero_()
        if isinstance(module, nn.BatchNorm1d) and module.running_var is not None:
            module.running_var.fill_(1e-4)
    return network


def networks() -> list[tuple[str, nn.Module]]:
    """Return a plain chain, and small networks built to show what happens where a network is none."""
    return [
        ("Linear, ReLU, Linear", _seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), 1.0)),
        ("residual: 5 x + W2 relu(W1 x)", _seeded(Residual, 0.1)),
        (
            "Linear, BatchNorm, ReLU, Linear",
            _seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)), 1.0),
        ),
        (
            "Linear, LayerNorm, ReLU, Linear",
            _seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8)), 0.1),
        ),
        ("Linear used twice, Linear", _seeded(Shared, 3.0)),
    ]


class Shared(nn.Module):
    """One linear layer applied twice: its module is listed once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``W2 W1 W1 x``."""
        return self.second(self.first(self.first(x)))


def largest_jacobian(network: nn.Module, points: int) -> float:
    """Return the largest norm of the Jacobian at random points of many lengths, float64: what is attained."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(points, 8, generator=generator, dtype=torch.float64)
    inputs = inputs * torch.logspace(-3, 1, points, dtype=torch.float64)[:, None]
    jacobians = torch.func.vmap(torch.func.jacrev(lambda x: network(x[None])[0]))(inputs)
    return float(torch.linalg.matrix_norm(jacobians.detach(), ord=2).max())


def eclipse(network: nn.Module) -> float | None:
    """Return what eclipse-nn says, or None where it is not installed."""
    if version("eclipse-nn") is None:
        return None
    from eclipse_nn.LipConstEstimator import LipConstEstimator

    with redirect_stdout(io.StringIO()):
        return float(LipConstEstimator(model=network).estimate(method="ECLipsE_Fast"))


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Ask everyone about every network, yield the table."""
    rows = []
    for name, network in networks():
        attained = largest_jacobian(network, settings.points)
        said = eclipse(network)
        ours = analyze(network, input_shape=(8,)).end_to_end["global"]
        if ours is None or ours.value < attained:
            raise RuntimeError(f"{name}: the certificate {ours} lies below {attained}, which is attained")
        verdict = "" if said is None else "a bound" if said >= attained else f"false, {attained / said:.3g} x too small"
        rows.append(
            {
                "network": name,
                "jacobian": attained,
                "eclipse": "not installed" if said is None else f"{said:.5g}",
                "eclipse_verdict": verdict,
                "normscope": ours.value,
            }
        )
        say(f"{name}: attained {attained:.4g}, eclipse-nn {rows[-1]['eclipse']}, normscope {ours.value:.4g}")
    yield {"environment": environment(), "version": version("eclipse-nn") or "(not installed)", "rows": rows}
