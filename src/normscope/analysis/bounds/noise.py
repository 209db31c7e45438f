"""The network with noise in its weights: its average training error, and how far it is from a prior."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.analysis.bounds.paths import folded_tensors
from normscope.generalization.pac_bayes import gaussian_divergence
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run

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


def posterior(captured: Captured, inputs: Tensor, labels: Tensor, error: float, seed: int) -> Posterior:
    """Return the posterior with the most noise that costs few errors, and its divergence.

    Noise in proportion to the size of each folded tensor makes the divergence invariant under rescalings.

    Inputs are random training samples in random order.
    """
    blocks = _blocks(captured)
    source = torch.Generator().manual_seed(seed)
    level = LEVELS[-1]
    for level in LEVELS:
        if _noisy(captured, inputs, labels, level, source, 4) <= error + 0.1:
            break
    loss = _noisy(captured, inputs, labels, level, source, DRAWS)
    sizes = [t.numel() for t in blocks.values()]
    distances = [float(t.norm()) for t in blocks.values()]
    noises = [level * r / math.sqrt(n) for n, r in zip(sizes, distances, strict=True)]
    divergence, price = gaussian_divergence(sizes, distances, noises)
    return Posterior(level, divergence, price + math.log(len(LEVELS)), loss, DRAWS)


def error_with_noise(
    captured: Captured, inputs: Tensor, labels: Tensor, level: float, seed: int, *, relative: bool = True
) -> float:
    """Return the error with noise in the folded weights, relative to each tensor or not: a mean over a few draws."""
    source = torch.Generator().manual_seed(seed)
    return _noisy(captured, inputs, labels, level, source, 10, relative=relative)


def error_at_worst(
    captured: Captured, inputs: Tensor, labels: Tensor, level: float, seed: int, *, relative: bool = True
) -> float:
    """Return the error at the worst change found of the folded weights, no entry by more than a level.

    A few steps along the sign of the gradient of the cross-entropy, from zero: what is found is attained, and the worst
    may be worse.
    """
    tensors, blocks, dtype = folded_tensors(captured)[0], _blocks(captured), captured.example[0].dtype
    some, right = inputs[: DRAWS * EACH // 4].to(dtype), labels[: DRAWS * EACH // 4]
    fixed = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    radius = {n: level * (float(t.norm()) / math.sqrt(t.numel()) if relative else 1.0) for n, t in blocks.items()}
    moved = {n: torch.zeros_like(fixed[n]) for n in blocks}
    for _ in range(ASCENT):
        leaves = {n: (fixed[n] + d).requires_grad_() for n, d in moved.items()}
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(run(captured.graph, fixed | leaves, [some])[0], right)
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        for (name, d), slope in zip(moved.items(), slopes, strict=True):
            moved[name] = (d + 2.5 / ASCENT * radius[name] * slope.sign()).clamp(-radius[name], radius[name])
    with torch.no_grad():
        scores = run(captured.graph, fixed | {n: fixed[n] + d for n, d in moved.items()}, [some])[0]
    return float((scores.argmax(1) != right).double().mean())


def _blocks(captured: Captured) -> dict[str, Tensor]:
    """Return the folded tensors that noise is added to."""
    tensors, statistics = folded_tensors(captured)
    return {n: t for n, t in tensors.items() if t.is_floating_point() and n not in statistics and float(t.norm()) > 0}


def _noisy(
    captured: Captured,
    inputs: Tensor,
    labels: Tensor,
    level: float,
    source: torch.Generator,
    draws: int,
    *,
    relative: bool = True,
) -> float:
    """Return the mean over draws of the error on a part of the samples, a new part for each draw."""
    tensors, blocks, dtype = folded_tensors(captured)[0], _blocks(captured), captured.example[0].dtype
    own = len(inputs) >= DRAWS * EACH  # else all samples there are: then every draw takes some at random
    errors = []
    for draw in range(draws):
        moved = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
        for name, tensor in blocks.items():
            scale = level * (float(tensor.norm()) / math.sqrt(tensor.numel()) if relative else 1.0)
            moved[name] = (tensor + scale * torch.randn(tensor.shape, generator=source, dtype=torch.float64)).to(dtype)
        chosen = torch.randint(len(inputs), (EACH,), generator=source)
        if own:
            chosen = torch.arange(draw * EACH, (draw + 1) * EACH)
        with torch.no_grad():
            scores = run(captured.graph, moved, [inputs[chosen].to(dtype)])[0]
        errors.append(float((scores.argmax(1) != labels[chosen]).double().mean()))
    return math.fsum(errors) / draws
