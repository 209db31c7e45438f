"""The network with noise in its weights: its average training error, and how far it is from a prior."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.analysis.bounds.folded import Folded
from normscope.generalization.pac_bayes import gaussian_divergence

#: Noise relative to the root mean square of a tensor that is tried, the largest first.
LEVELS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
#: Draws of the noise, and samples for each that no other draw sees.
DRAWS, EACH = 60, 32
#: Steps of the search for the worst change.
ASCENT = 10


@dataclass(frozen=True)
class Posterior:
    """A Gaussian around the weights, BatchNorm folded.

    Attributes:
        level: noise relative to the root mean square of each tensor.
        divergence: from the prior, per tensor a Gaussian around zero.
        price: of choosing the prior's spreads and the level.
        loss: mean error over draws of the noise and of samples.
        draws: how many.
    """

    level: float
    divergence: float
    price: float
    loss: float
    draws: int


def posterior(folded: Folded, inputs: Tensor, labels: Tensor, error: float, seed: int) -> Posterior:
    """Return the posterior with the most noise that costs few errors, and its divergence.

    Noise in proportion to the size of each folded tensor makes the divergence invariant under rescalings.

    Inputs are random training samples in random order.
    """
    source = torch.Generator().manual_seed(seed)
    level = LEVELS[-1]
    for level in LEVELS:
        if _noisy(folded, inputs, labels, level, source, 4) <= error + 0.1:
            break
    loss = _noisy(folded, inputs, labels, level, source, DRAWS)
    blocks = _blocks(folded)
    sizes = [t.numel() for t in blocks.values()]
    distances = [float(t.norm()) for t in blocks.values()]
    noises = [level * r / math.sqrt(n) for n, r in zip(sizes, distances, strict=True)]
    divergence, price = gaussian_divergence(sizes, distances, noises)
    return Posterior(level, divergence, price + math.log(len(LEVELS)), loss, DRAWS)


def error_with_noise(
    folded: Folded, inputs: Tensor, labels: Tensor, level: float, seed: int, *, relative: bool = True
) -> float:
    """Return the error with noise in the folded weights, relative to each tensor or not: a mean over a few draws."""
    return _noisy(folded, inputs, labels, level, torch.Generator().manual_seed(seed), 10, relative=relative)


def error_at_worst(
    folded: Folded, inputs: Tensor, labels: Tensor, level: float, seed: int, *, relative: bool = True
) -> float:
    """Return the error at the worst change found of the folded weights, no entry by more than a level.

    A few steps along the sign of the gradient of the cross-entropy, from zero: what is found is attained, and the worst
    may be worse.
    """
    some, right = inputs[: DRAWS * EACH // 4], labels[: DRAWS * EACH // 4]
    radius = {n: _scale(t, level, relative) for n, t in _blocks(folded).items()}
    start = {n: folded.fixed[n] for n in radius}
    moved = {n: torch.zeros_like(t) for n, t in start.items()}
    for _ in range(ASCENT):
        slopes = folded.gradient(some, right, {n: start[n] + d for n, d in moved.items()})
        for n, r in radius.items():
            moved[n] = (moved[n] + 2.5 / ASCENT * r * slopes[n].sign()).clamp(-r, r)
    return folded.error(some, right, {n: start[n] + d for n, d in moved.items()})


def _blocks(folded: Folded) -> dict[str, Tensor]:
    """Return the folded tensors that noise is added to."""
    return {n: t for n, t in folded.weights.items() if float(t.norm()) > 0}


def _scale(tensor: Tensor, level: float, relative: bool) -> float:
    """Return a level of noise, relative to the root mean square of a tensor or not."""
    return level * (float(tensor.norm()) / math.sqrt(tensor.numel()) if relative else 1.0)


def _noisy(
    folded: Folded, inputs: Tensor, labels: Tensor, level: float, source: torch.Generator, draws: int, *,
    relative: bool = True,
) -> float:  # fmt: skip
    """Return the mean over draws of the error on a part of the samples, a new part for each draw."""
    scales = {n: _scale(t, level, relative) for n, t in _blocks(folded).items()}
    own = len(inputs) >= DRAWS * EACH  # else all samples there are: then every draw takes some at random
    errors = []
    for draw in range(draws):
        moved = {}
        for name, scale in scales.items():
            tensor = folded.weights[name]
            moved[name] = tensor + scale * torch.randn(tensor.shape, generator=source, dtype=torch.float64)
        chosen = torch.randint(len(inputs), (EACH,), generator=source)
        if own:
            chosen = torch.arange(draw * EACH, (draw + 1) * EACH)
        errors.append(folded.error(inputs[chosen], labels[chosen], moved))
    return math.fsum(errors) / draws
