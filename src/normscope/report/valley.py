"""The valley of a scale-invariant loss (Figure 5.1 of Akbar 2025): two weights before a BatchNorm, drawn."""

from typing import Any

import torch
from torch import Tensor

from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import gradient_of


def problem(seed: int = 0, samples: int = 64) -> tuple[Tensor, Tensor]:
    """Return inputs with two features and targets that follow a direction of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(samples, generator=generator, dtype=torch.float64)
    return x, standardized(x @ torch.tensor([1.0, 0.6], dtype=torch.float64) + noise, 0.0)[0]


def valley_loss(w: Tensor, x: Tensor, y: Tensor, *, normalized: bool = True) -> Tensor:
    """Return half the mean squared error of ``BN(x w)``, or of ``x w`` itself; ``w`` holds one pair per row.

    >>> x, y = problem()
    >>> w = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    >>> bool(torch.allclose(valley_loss(w, x, y), valley_loss(7 * w, x, y)))
    True
    """
    z = x @ w.mT
    z = standardized(z, 0.0)[0] if normalized else z
    return (z - y[:, None]).square().mean(0) / 2


def trajectory(start: Tensor, rate: float, steps: int, *, normalized: bool = True) -> Tensor:
    """Return the points of gradient descent; with BatchNorm they move across the rays and never inwards."""
    x, y = problem()
    points = [start]
    for _ in range(steps):
        gradient = gradient_of(lambda p: valley_loss(p["w"][None], x, y, normalized=normalized)[0], {"w": points[-1]})
        points.append(points[-1] - rate * gradient["w"])
    return torch.stack(points)


def plot_valley(ax: Any = None, rate: float = 0.5, steps: int = 60) -> Any:
    """Draw the loss with BatchNorm, its orbits, and gradient descent with and without BatchNorm; return the figure."""
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(5, 5))
    x, y = problem()
    line = torch.linspace(-3, 3, 121, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    values = valley_loss(grid.reshape(-1, 2) + 1e-9, x, y).reshape(grid.shape[:2])
    ax.contourf(line, line, values, levels=20, cmap="viridis")
    for angle in torch.linspace(0, 2 * torch.pi, 13, dtype=torch.float64)[:-1]:
        end = 3 * torch.stack([angle.cos(), angle.sin()])
        ax.plot([0, float(end[0])], [0, float(end[1])], color="white", linewidth=0.5, alpha=0.6)
    start = torch.tensor([-1.0, 1.2], dtype=torch.float64)
    for normalized, color, label in ((True, "C1", "with BatchNorm"), (False, "C3", "without")):
        path = trajectory(start, rate, steps, normalized=normalized)
        ax.plot(path[:, 0], path[:, 1], color=color, marker=".", markersize=3, label=label)
    ax.set(xlim=(-3, 3), ylim=(-3, 3), xlabel="$w_1$", ylabel="$w_2$", title="loss of BN(x w): constant on rays")
    ax.legend(loc="lower right")
    return ax.figure
