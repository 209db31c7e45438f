"""A short, repeatable training run: He-normal weights, Adam, cross-entropy."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from normscope.core.errors import InputError, NonFiniteError
from normscope.zoo.randomness import seeded
from normscope.zoo.training_state import Progress, restore_state, save_state

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class TrainingRun:
    """What a training run did."""

    losses: tuple[float, ...]  #: mean training loss of each epoch, the last perhaps cut short by the clock
    accuracy: float  #: fraction of training examples classified right at the end, in evaluation mode
    steps: int  #: number of updates
    seconds: float  #: wall time


def fan_in(layer: nn.Module) -> int:
    """Return how many inputs one output of a linear or convolution layer sums.

    >>> fan_in(nn.Linear(7, 3)), fan_in(nn.Conv2d(4, 8, 3, groups=2)), fan_in(nn.ConvTranspose2d(4, 6, 2))
    (7, 18, 16)
    """
    linear: Any = layer
    if isinstance(layer, nn.Linear):
        return layer.in_features
    # With stride 1 each output of a transposed convolution meets every position of the kernel once.
    return linear.in_channels // linear.groups * math.prod(linear.kernel_size)


@torch.no_grad()
def he_normal_(model: nn.Module, generator: torch.Generator) -> None:
    r"""Draw every linear and convolution weight from :math:`N(0, 2/n)`, n its fan-in, and set its bias to zero.

    Parametrized weights are set through their parametrization. Other layers keep their values.

    Args:
        model: changed in place.
        generator: the only source of randomness, on the CPU.

    >>> layer = nn.Linear(200, 300)
    >>> he_normal_(layer, torch.Generator().manual_seed(0))
    >>> round(layer.weight.std().item(), 3), layer.bias.abs().max().item()
    (0.1, 0.0)
    """
    for layer in model.modules():
        if not isinstance(layer, _LINEAR):
            continue
        shape, dtype, device = layer.weight.shape, layer.weight.dtype, layer.weight.device
        value = torch.randn(shape, generator=generator, dtype=torch.float64) * math.sqrt(2.0 / fan_in(layer))
        value = value.to(device=device, dtype=dtype)
        if is_parametrized(layer, "weight"):
            layer.weight = value  # parametrize gives the attribute a setter
        else:
            layer.weight.copy_(value)
        if layer.bias is not None:
            layer.bias.zero_()


def _checked(images: torch.Tensor, labels: torch.Tensor, seconds: float | None, epochs: int | None, batch: int) -> None:
    if (seconds is None) == (epochs is None):
        raise InputError(f"Expected either seconds or epochs, got seconds={seconds}, epochs={epochs}.")
    if len(images) != len(labels) or len(images) == 0:
        raise InputError(f"Expected one label per image, got {len(images)} images and {len(labels)} labels.")
    if labels.dtype not in (torch.int64, torch.int32, torch.uint8):
        raise InputError(f"Expected integer labels, got {labels.dtype}.")
    if batch < 2:
        raise InputError(f"Expected batch >= 2 for batch statistics, got {batch}.")


def train(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seconds: float | None = None,
    epochs: int | None = None,
    lr: float = 1e-3,
    batch: int = 128,
    weight_decay: float = 1e-4,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
    after_step: Callable[[int, float], None] | None = None,
    state: str | os.PathLike[str] | None = None,
) -> TrainingRun:
    """Train a classifier in place with Adam and cross-entropy; the same ``seed`` and ``epochs`` give the same weights.

    With ``seconds`` the weights depend on the machine's speed. The order of examples depends on ``seed`` alone; a last
    batch smaller than ``batch`` is left out of its epoch. Global generators are unchanged, the model is in eval mode.

    Args:
        model: maps images to logits.
        images: all training inputs (N, ...).
        labels: their classes (N,).
        seconds: stop after this time; or
        epochs: stop after this many passes over the data.
        lr: step size.
        batch: examples of a step.
        weight_decay: added to the gradient as ``weight_decay * w``.
        seed: of the order and of anything random in the model.
        progress: called after each epoch with its number and mean loss.
        after_step: called after each update with its number and the loss before it.
        state: a file updated after each epoch; if it exists, the run continues from it as if never stopped.

    Raises:
        InputError: for data or settings that make no sense, or a state of other settings.
        NonFiniteError: if the loss becomes NaN or infinite.

    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> run = train(nn.Linear(2, 2), x, (x[:, 0] > 0).long(), epochs=100, lr=0.1)
    >>> run.accuracy > 0.95
    True
    """
    _checked(images, labels, seconds, epochs, batch)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    settings = {"lr": lr, "batch": batch, "weight_decay": weight_decay, "seed": seed, "examples": len(images)}
    done = Progress()
    with seeded(seed), torch.enable_grad():
        if state is not None and Path(state).exists():
            done = restore_state(state, model, optimizer, order, settings)
        start = time.perf_counter() - done.seconds
        deadline = math.inf if seconds is None else start + seconds
        model.train()
        while time.perf_counter() < deadline and (epochs is None or len(done.losses) < epochs):
            shuffled = torch.randperm(len(images), generator=order)
            batches = shuffled[: len(images) // batch * batch or len(images)].split(batch)
            loss, count = _epoch(model, optimizer, images, labels, batches, deadline, done.steps, after_step)
            done = Progress([*done.losses, loss], done.steps + count, time.perf_counter() - start)
            if state is not None:
                save_state(state, model, optimizer, order, done, settings)
            if progress is not None:
                progress(len(done.losses), loss)
        optimizer.zero_grad(set_to_none=True)
        model.eval()
        right = accuracy(model, images, labels)
        return TrainingRun(tuple(done.losses), right, done.steps, time.perf_counter() - start)


def _epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    batches: tuple[torch.Tensor, ...],
    deadline: float,
    before: int,
    after_step: Callable[[int, float], None] | None,
) -> tuple[float, int]:
    """Update the model on each batch until the deadline; return the mean loss, which is finite, and the steps."""
    total, seen, steps = 0.0, 0, 0
    for indices in batches:
        loss = F.cross_entropy(model(images[indices]), labels[indices].long())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps += 1
        total, seen = total + float(loss.detach()) * len(indices), seen + len(indices)
        if after_step is not None:
            after_step(before + steps, float(loss.detach()))
        if time.perf_counter() >= deadline:
            break
    if not math.isfinite(total):
        raise NonFiniteError(f"The training loss became {total / seen}. Lower the learning rate lr.")
    return total / seen, steps


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int = 512) -> float:
    """Return the fraction of examples that a classifier in evaluation mode gets right."""
    pairs = zip(images.split(batch), labels.split(batch), strict=True)
    right = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in pairs)
    return right / len(images)
