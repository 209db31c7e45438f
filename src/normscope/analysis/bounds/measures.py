"""Measures that are hoped to rank networks by their gap: norms, margins, flatness; none of them is a bound."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from normscope.analysis.bounds.chain import RefusedError
from normscope.analysis.bounds.measured import Network
from normscope.analysis.bounds.noise import error_with_noise
from normscope.analysis.bounds.paths import folded_tensors, log_path_norm
from normscope.analysis.bounds.run import captured_on
from normscope.analysis.bounds.scores import Scores, scored
from normscope.core.statement import statement
from normscope.generalization.bartlett import spectral_complexity
from normscope.graph.guard import untouched

#: Share of the margins below the one that measures divide by, the drop of accuracy that noise may cost, bisections.
QUANTILE, DROP, BISECTIONS = 0.1, 0.1, 8


@statement(
    "jiang2020", "generalization measures", holds="estimates; BatchNorm folded, noise of standard deviation sigma"
)
def measures(model: nn.Module, train: Any, *, seed: int = 0) -> dict[str, float]:
    """Return measures of Jiang et al. for a trained classifier, by name; what does not apply to it is left out.

    BatchNorm is folded into the weights first, so that none of them moves when a weight before it is rescaled. Noise is
    drawn with standard deviation ``sigma``, in proportion to each tensor where a measure says so.

    Args:
        model: the classifier; nothing of it is changed.
        train: its training data, as for :func:`normscope.bounds`.
        seed: of the noise.

    Returns:
        Natural logarithms for products (``log ...``), plain numbers otherwise; larger is meant to be worse.

    >>> x = torch.rand(64, 2, generator=torch.Generator().manual_seed(0)); y = (x.sum(1) > 1).long()
    >>> found = measures(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), (x, y))
    >>> found["parameters"], "log product of spectral norms" in found
    (22.0, True)
    """
    captured = captured_on(model, train)
    with untouched(model):
        scores = scored(captured, train, "train", None, seed, lambda text: None)
        network = Network(captured, lambda text: None)
        folded, statistics = folded_tensors(captured)
        weights = [t for n, t in folded.items() if t.is_floating_point() and n not in statistics]
        margin = float(torch.quantile(scores.margins, QUANTILE))
        found = {
            "parameters": float(sum(t.numel() for t in weights)),
            "log sum of squared weights": math.log(math.fsum(float(t.square().sum()) for t in weights)),
            "log inverse squared margin": -2 * math.log(margin) if margin > 0 else math.inf,
        }
        found |= _of_chain(network, scores, margin)
        found |= _of_paths(network, margin)
        found |= _of_noise(network, scores, seed)
    return found


def _of_chain(network: Network, scores: Scores, margin: float) -> dict[str, float]:
    """Return products and sums of layer norms, alone and over the margin."""
    try:
        layers = network.chain
    except RefusedError:
        return {}
    spectral, frobenius = (math.fsum(getattr(x, kind) for x in layers) for kind in ("spectral", "frobenius"))
    depth = len(layers)
    found = {
        "log product of spectral norms": spectral,
        "log product of Frobenius norms": frobenius,
        "log sum of spectral norms": math.log(depth) + 2 * spectral / depth,
        "log sum of Frobenius norms": math.log(depth) + 2 * frobenius / depth,
        "Frobenius over spectral": math.fsum(math.exp(2 * (x.frobenius - x.spectral)) for x in layers),
        "log spectral complexity": spectral_complexity(layers),
    }
    if margin > 0:
        over = {f"{k} over margin": v - math.log(margin) for k, v in found.items() if k.startswith("log")}
        found |= over
    return found


def _of_paths(network: Network, margin: float) -> dict[str, float]:
    """Return the path norm, alone and over the margin."""
    try:
        log = log_path_norm(network.captured)
    except RefusedError:
        return {}
    return {"log path norm": log} | ({"log path norm over margin": log - math.log(margin)} if margin > 0 else {})


def _of_noise(network: Network, scores: Scores, seed: int) -> dict[str, float]:
    """Return the logarithm of ``1/sigma^2`` for the largest noise that costs a tenth of the accuracy."""
    labels = scores.labels[scores.chosen]
    allowed = scores.errors / scores.samples + DROP
    found = {}
    for name, relative in (("flatness", False), ("flatness, relative", True)):
        low, high = 1e-4, 4.0
        for _ in range(BISECTIONS):
            middle = math.sqrt(low * high)
            error = error_with_noise(network.captured, scores.some, labels, middle, seed, relative=relative)
            low, high = (middle, high) if error <= allowed else (low, middle)
        found[f"log {name} (1/sigma^2)"] = -2 * math.log(low)
    return found
