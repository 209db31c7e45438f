"""Training as in the paper: square loss on one-hot targets, mini-batch gradient descent, uniform initialization."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.papers.study import labelled_data
from normscope.weight_normalization.measure import square_loss


def unit_data(name: str, root: Path | None, split: str, examples: int) -> tuple[Tensor, Tensor]:
    """Return images as unit vectors and one-hot targets."""
    images, labels = labelled_data(name, root, split, examples)
    x = images.flatten(1).double()
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / norms.clamp_min(1e-12), F.one_hot(labels, 10).double()


def descend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    rate: float,
    batch: int | None = 512,
    seed: int = 0,
    after_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Train in place by plain gradient descent on mini-batches.

    ``after_step`` gets the number of updates so far, also 0 before the first; no batch means all of the data.
    """
    draw = torch.Generator().manual_seed(seed)
    size = len(x) if batch is None else min(batch, len(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    after_step(0)
    order = torch.empty(0, dtype=torch.long)
    for step in range(1, steps + 1):
        if len(order) < size:
            order = torch.randperm(len(x), generator=draw)
        picked, order = order[:size], order[size:]
        optimizer.zero_grad()
        square_loss(model(x[picked]), y[picked]).backward()
        optimizer.step()
        after_step(step)
