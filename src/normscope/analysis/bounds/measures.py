"""Measures that may rank networks by their gap: norms, margins, flatness; none of them is a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.bounds.folded_network import FoldedNetwork, error_at_worst, error_with_noise, log_path_norm
from normscope.analysis.bounds.measured_network import MeasuredNetwork
from normscope.analysis.bounds.result import RefusedError
from normscope.analysis.bounds.run import capture_classifier
from normscope.analysis.bounds.scores import Scores, scored
from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.generalization.margin_bounds import spectral_complexity
from normscope.graph.capture import Captured
from normscope.graph.guard import untouched

#: Share of the margins below the one that measures divide by, the drop of accuracy that noise may cost, bisections.
QUANTILE, DROP, BISECTIONS = 0.1, 0.1, 8
#: Least size of a weight in measures by magnitude.
EPSILON = 1e-3
#: Cross-entropies whose first steps are counted; samples of a gradient, and gradients whose spread is measured.
FIRST, SECOND = 0.1, 0.01
BATCH, GRADIENTS = 32, 40
#: Measures of the path that training took.
STEPS, MORE_STEPS = f"steps to cross-entropy {FIRST:g}", f"steps from cross-entropy {FIRST:g} to {SECOND:g}"
LATE, EARLY = "log gradient noise at the end", "log gradient noise after the first pass"
_NEEDED = {
    "history": "(steps, losses) of the run, or run.series('train/loss')",
    "early": "the model after the first pass over the data",
    "start": "the model before training",
}
#: The tolerated noise and the tolerated worst change by name, each plain and relative to each tensor.
_FLAT, _RELATIVE = "log flatness (1/sigma^2)", "log flatness, relative (1/sigma^2)"
_TOLERATED = {
    _FLAT: (error_with_noise, False),
    _RELATIVE: (error_with_noise, True),
    "log sharpness (1/alpha^2)": (error_at_worst, False),
    "log sharpness, relative (1/alpha^2)": (error_at_worst, True),
}


@statement(
    "jiang2020", "generalization measures", holds="estimates; BatchNorm folded, noise of standard deviation sigma"
)
def measures(
    model: nn.Module,
    train: Any,
    *,
    start: nn.Module | None = None,
    early: nn.Module | None = None,
    history: Any = None,
    seed: int = 0,
) -> Measures:
    """Return measures of Jiang et al. for a trained classifier, by name; ``refused`` says what does not apply, and why.

    BatchNorm is folded into the weights first, so that none of them moves when a weight before it is rescaled. Noise is
    drawn with standard deviation ``sigma``, in proportion to each tensor where a measure says so.

    Args:
        model: the classifier; it is not changed.
        train: its training data, as for :func:`normscope.bounds`.
        start: the model before training, for distances from it.
        early: the model after the first pass over the data, for the noise of its gradients.
        history: steps and cross-entropies of the run, a pair of sequences or ``run.series("train/loss")``.
        seed: of the noise.

    Returns:
        Natural logarithms for products (``log ...``), plain numbers otherwise; larger is meant to be worse.

    >>> x = torch.rand(64, 2, generator=torch.Generator().manual_seed(0)); y = (x.sum(1) > 1).long()
    >>> found = measures(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), (x, y))
    >>> found["parameters"], "log product of spectral norms" in found
    (22.0, True)
    """
    captured = capture_classifier(model, train)
    with untouched(model):
        scores = scored(captured, train, "train", None, seed, lambda text: None)
        network = MeasuredNetwork(captured, lambda text: None)
        folded = FoldedNetwork(captured)
        named, weights = folded.weights, list(folded.weights.values())
        margin = float(torch.quantile(scores.margins, QUANTILE))
        found = Measures()
        found |= {
            "parameters": float(sum(t.numel() for t in weights)),
            "log sum of squared weights": math.log(math.fsum(float(t.square().sum()) for t in weights)),
            "log inverse squared margin": -2 * math.log(margin) if margin > 0 else math.inf,
            **_of_outputs(scores),
        }
        found.add("norms of layers", lambda: _of_chain(network, margin))
        found.add("path norm", lambda: _over_margin({"log path norm": log_path_norm(folded)}, margin))
        flat = _of_noise(folded, scores, seed)
        found |= {name: -2 * math.log(level) for name, level in flat.items()}
        zero = {name: torch.zeros_like(t) for name, t in named.items()}
        found |= _of_priors(named, zero, "zero", scores.samples, flat)
        found.add("from the start", lambda: _of_start(named, start, train, scores.samples, flat))
        found.add(STEPS, lambda: {STEPS: steps_to(_given(history, "history"), FIRST)})
        found.add(MORE_STEPS, lambda: {MORE_STEPS: steps_to(_given(history, "history"), SECOND, FIRST)})
        found.add(LATE, lambda: {LATE: log_gradient_noise(captured, scores, seed)})
        found.add(
            EARLY, lambda: {EARLY: log_gradient_noise(capture_classifier(_given(early, "early"), train), scores, seed)}
        )
    return found


class Measures(dict[str, float]):
    """Measures by name.

    Attributes:
        refused: what does not apply, by name, and why.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, str] = {}

    def add(self, name: str, make: Callable[[], dict[str, float]]) -> None:
        """Add what a function returns, or say why it is refused."""
        try:
            self |= make()
        except RefusedError as error:
            self.refused[name] = str(error)


def _given(argument: Any, name: str) -> Any:
    """Return an optional argument, or raise that it is needed."""
    if argument is None:
        raise RefusedError(f"not given: {name}={_NEEDED[name]}")
    return argument


def _of_start(
    named: Mapping[str, Tensor], start: nn.Module | None, train: Any, samples: int, flat: Mapping[str, float]
) -> dict[str, float]:
    first = FoldedNetwork(capture_classifier(_given(start, "start"), train)).tensors
    return _of_distance(named, first) | _of_priors(named, first, "the start", samples, flat)


def _of_outputs(scores: Scores) -> dict[str, float]:
    """Return the cross-entropy and the negative entropy of the outputs: confidence is meant to be worse."""
    logs = torch.log_softmax(scores.outputs.double(), 1)
    cross = -logs.gather(1, scores.labels[:, None]).mean()
    return {"cross-entropy": float(cross), "negative entropy of outputs": float((logs.exp() * logs).sum(1).mean())}


def _of_distance(weights: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, float]:
    """Return distances of the weights from the start, BatchNorm folded in both."""
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
    plain, relative = flat[_FLAT], flat[_RELATIVE]
    ratios = torch.log((EPSILON**2 + (relative**2 + 1) * total / count) / (EPSILON**2 + relative**2 * squares))
    spread = max(float(ratios.sum()) / 4, 0.0)
    return {
        f"log PAC-Bayes from {name}": math.log(total / (4 * plain**2) + math.log(samples / plain) + 10),
        f"log PAC-Bayes from {name}, by magnitude": math.log(spread + math.log(samples) + 10),
    }


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _of_chain(network: MeasuredNetwork, margin: float) -> dict[str, float]:
    """Return products and sums of layer norms, alone and over the margin."""
    layers = network.chain
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
    return _over_margin(found, margin)


def _over_margin(found: dict[str, float], margin: float) -> dict[str, float]:
    """Return measures, and the logarithms among them over the margin too."""
    if not margin > 0:
        return found
    return found | {f"{k} over margin": v - math.log(margin) for k, v in found.items() if k.startswith("log")}


def _of_noise(folded: FoldedNetwork, scores: Scores, seed: int) -> dict[str, float]:
    """Return the largest random noise, and the largest worst change, that cost a tenth of the accuracy."""
    labels = scores.labels[scores.chosen]
    allowed = scores.errors / scores.samples + DROP
    found = {}
    for name, (error_at, relative) in _TOLERATED.items():
        low, high = 1e-4, 4.0
        for _ in range(BISECTIONS):
            middle = math.sqrt(low * high)
            error = error_at(folded, scores.some, labels, middle, seed, relative=relative)
            low, high = (middle, high) if error <= allowed else (low, middle)
        found[name] = low
    return found


@statement("jiang2020", "optimization measures", holds="estimates from the record of one run")
def steps_to(history: Any, level: float, since: float | None = None) -> float:
    """Return the first recorded step at which the training loss was at most a level, counted from that of another.

    ``history`` is a series of a run (``run.series("train/loss")``) or a pair of sequences, steps and losses. Without
    ``since`` steps count from zero.

    >>> steps_to(([0, 10, 20, 30], [2.3, 0.5, 0.08, 0.02]), 0.1)
    20.0
    """
    steps, losses = _pair(history)
    reached = [s for s, v in zip(steps, losses, strict=True) if v <= level]
    if not reached:
        raise RefusedError(f"the recorded loss was never at most {level:g}; its smallest value was {min(losses):.3g}")
    return float(reached[0]) - (0.0 if since is None else steps_to(history, since))


def _pair(history: Any) -> tuple[Sequence[float], Sequence[float]]:
    named = (getattr(history, "steps", None), getattr(history, "values", None))
    pair = named if named[0] is not None and not callable(named[1]) else history
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(hasattr(t, "__len__") for t in pair)):
        raise InputError(f"Expected a history of steps and losses, got {type(history).__name__}.")
    steps, losses = ([float(v) for v in t] for t in pair)
    if len(steps) != len(losses) or not steps or steps != sorted(steps) or any(map(math.isnan, losses)):
        raise InputError(f"Expected as many losses as steps, in order and none of them NaN, got {len(losses)}.")
    return steps, losses


@statement("jiang2020", "gradient noise", holds="an estimate from random batches of the training data")
def log_gradient_noise(captured: Captured, scores: Scores, seed: int) -> float:
    r"""Return ``ln sum_j Var[g_j]`` for gradients ``g`` of the cross-entropy on random batches, BatchNorm folded."""
    folded, source = FoldedNetwork(captured), torch.Generator().manual_seed(seed)
    at = {n: folded.fixed[n] for n in folded.weights}
    labels = scores.labels[scores.chosen]
    found: list[Tensor] = []
    for _ in range(GRADIENTS):
        i = torch.randint(len(scores.some), (BATCH,), generator=source)
        slopes = folded.gradient(scores.some[i], labels[i], at)
        found.append(torch.cat([g.flatten().double() for g in slopes.values()]))
    return _log(float(torch.stack(found).var(0).sum()))
