"""Measures that are hoped to rank networks by their gap: norms, margins, flatness; none of them is a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.bounds.chain import RefusedError
from normscope.analysis.bounds.measured import Network
from normscope.analysis.bounds.noise import error_at_worst, error_with_noise
from normscope.analysis.bounds.paths import folded_tensors, log_path_norm
from normscope.analysis.bounds.run import captured_on
from normscope.analysis.bounds.scores import Scores, scored
from normscope.core.statement import statement
from normscope.generalization.bartlett import spectral_complexity
from normscope.graph.guard import untouched

#: Share of the margins below the one that measures divide by, the drop of accuracy that noise may cost, bisections.
QUANTILE, DROP, BISECTIONS = 0.1, 0.1, 8
#: Least size of a weight in measures by magnitude.
EPSILON = 1e-3
#: Names of the tolerated noise and of the tolerated worst change, plain and relative to each tensor.
_NOISES = (("flatness", "sigma"), ("flatness, relative", "sigma"))
_WORST = (("sharpness", "alpha"), ("sharpness, relative", "alpha"))


@statement(
    "jiang2020", "generalization measures", holds="estimates; BatchNorm folded, noise of standard deviation sigma"
)
def measures(model: nn.Module, train: Any, *, start: nn.Module | None = None, seed: int = 0) -> dict[str, float]:
    """Return measures of Jiang et al. for a trained classifier, by name; what does not apply to it is left out.

    BatchNorm is folded into the weights first, so that none of them moves when a weight before it is rescaled. Noise is
    drawn with standard deviation ``sigma``, in proportion to each tensor where a measure says so.

    Args:
        model: the classifier; nothing of it is changed.
        train: its training data, as for :func:`normscope.bounds`.
        start: the model before training, for distances from it; without it they are left out.
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
        named = {n: t for n, t in folded.items() if t.is_floating_point() and n not in statistics}
        weights = list(named.values())
        margin = float(torch.quantile(scores.margins, QUANTILE))
        found = {
            "parameters": float(sum(t.numel() for t in weights)),
            "log sum of squared weights": math.log(math.fsum(float(t.square().sum()) for t in weights)),
            "log inverse squared margin": -2 * math.log(margin) if margin > 0 else math.inf,
            **_of_outputs(scores),
        }
        found |= _of_chain(network, scores, margin)
        found |= _of_paths(network, margin)
        flat = _of_noise(network, scores, seed)
        found |= {name: -2 * math.log(level) for name, level in flat.items()}
        zero = {name: torch.zeros_like(t) for name, t in named.items()}
        found |= _of_priors(named, zero, "zero", scores.samples, flat)
        if start is not None:
            first = folded_tensors(captured_on(start, train))[0]
            found |= _of_distance(named, first) | _of_priors(named, first, "the start", scores.samples, flat)
    return found


def _of_outputs(scores: Scores) -> dict[str, float]:
    """Return the cross-entropy, and the entropy of what is said, without its sign: sure is meant to be worse."""
    logs = torch.log_softmax(scores.outputs.double(), 1)
    cross = -logs.gather(1, scores.labels[:, None]).mean()
    return {"cross-entropy": float(cross), "negative entropy of outputs": float((logs.exp() * logs).sum(1).mean())}


def _of_distance(weights: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how far the weights went, BatchNorm folded before and after."""
    moved = [t - start[n] for n, t in weights.items()]
    spectral = [float(torch.linalg.matrix_norm(d.flatten(1), 2)) ** 2 for d in moved if d.ndim > 1]
    return {
        "log squared distance from the start": _log(math.fsum(float(d.square().sum()) for d in moved)),
        "log sum of squared spectral distances": _log(math.fsum(spectral)),
    }


def _of_priors(
    weights: Mapping[str, Tensor], prior: Mapping[str, Tensor], name: str, samples: int, flat: Mapping[str, float]
) -> dict[str, float]:
    r"""Return the PAC-Bayes measures of a Gaussian prior around some weights, with the largest noise that is tolerated.

    .. math:: \ln\Big(\frac{\|w - w_0\|^2}{4 \sigma^2} + \ln\frac{n}{\sigma} + 10\Big), \qquad
        \ln\Big(\frac14 \sum_i \ln \frac{\epsilon^2 + (\sigma'^2 + 1) \|w - w_0\|^2/D}
        {\epsilon^2 + \sigma'^2 (w_i - w_{0,i})^2} + \ln n + 10\Big)

    The second, in which noise grows with each weight, uses the noise relative to the weights.
    """
    squares = torch.cat([(t - prior[n]).square().flatten() for n, t in weights.items()])
    total, count = float(squares.sum()), squares.numel()
    plain, relative = (flat[f"log {kind} (1/{symbol}^2)"] for kind, symbol in _NOISES)
    ratios = torch.log((EPSILON**2 + (relative**2 + 1) * total / count) / (EPSILON**2 + relative**2 * squares))
    spread = max(float(ratios.sum()) / 4, 0.0)
    return {
        f"log PAC-Bayes from {name}": math.log(total / (4 * plain**2) + math.log(samples / plain) + 10),
        f"log PAC-Bayes from {name}, by magnitude": math.log(spread + math.log(samples) + 10),
    }


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


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
    """Return the largest random noise, and the largest worst change, that cost a tenth of the accuracy."""
    labels = scores.labels[scores.chosen]
    allowed = scores.errors / scores.samples + DROP
    found = {}
    for (name, symbol), relative in zip((*_NOISES, *_WORST), (False, True) * 2, strict=True):
        look = error_with_noise if symbol == "sigma" else error_at_worst
        low, high = 1e-4, 4.0
        for _ in range(BISECTIONS):
            middle = math.sqrt(low * high)
            error = look(network.captured, scores.some, labels, middle, seed, relative=relative)
            low, high = (middle, high) if error <= allowed else (low, middle)
        found[f"log {name} (1/{symbol}^2)"] = low
    return found
