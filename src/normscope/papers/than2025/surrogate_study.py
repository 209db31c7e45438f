"""Certify a trained network without held-out labels, by a small surrogate and how often the two disagree."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.analysis.bounds.run import bounds
from normscope.core.value import Value
from normscope.generalization.held_out import clopper_pearson
from normscope.generalization.occam_bound import by_surrogate, occam
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, labelled_data
from normscope.zoo.networks.mlp import MLP

DELTA = 0.05
#: Bits of each floating number in a code, and levels of a bias on each side of zero.
FLOAT_BITS, BIAS_LEVELS = 32, 7


TITLE = "A network certified by a surrogate"


@dataclass(frozen=True)
class _Setting:
    data: str
    width: int
    epochs: int
    surrogate_epochs: int
    #: Components of the inputs, hidden units and levels on each side of zero that are tried.
    candidates: tuple[tuple[int, int, int], ...]
    #: To train a randomized network with its own bound.
    seconds: float


SETTINGS = {
    "smoke": _Setting("digits", 32, 10, 20, ((12, 8, 1),), 1.0),
    "laptop": _Setting("mnist", 128, 4, 30, ((30, 20, 3), (30, 30, 2), (30, 30, 3), (40, 30, 2)), 60.0),
}


class QuantizedNetwork(nn.Module):
    """``relu(W_1 z + b) W_2`` with quantized weights and straight-through gradients.

    Args:
        components: entries of ``z``.
        width: hidden units.
        classes: scores.
        levels: of a weight on each side of zero.
        source: generator of the initial weights.
    """

    def __init__(self, components: int, width: int, classes: int, levels: int, source: torch.Generator) -> None:
        super().__init__()
        self.levels = levels
        self.first = nn.Parameter(torch.randn(width, components, generator=source) / math.sqrt(components))
        self.second = nn.Parameter(torch.randn(classes, width, generator=source) / math.sqrt(width))
        self.bias = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, z: Tensor) -> Tensor:
        """Return scores."""
        hidden = F.relu(z @ _rounded(self.first, self.levels)[0].T + _rounded(self.bias, BIAS_LEVELS)[0])
        return 3 * hidden @ _rounded(self.second, self.levels)[0].T

    def bits(self) -> float:
        """Return the length of an entropy code of the network, in bits."""
        parts = ((self.first, self.levels), (self.second, self.levels), (self.bias, BIAS_LEVELS))
        return math.fsum(code_bits(_rounded(t, n)[1], n) + FLOAT_BITS for t, n in parts)


def _rounded(weight: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Return the quantized weight, with straight-through gradient, and its levels as integers."""
    scale = 2 * weight.detach().abs().mean() + 1e-12
    codes = (weight.detach() / scale * levels).clamp(-levels, levels).round()
    return weight + (codes / levels * scale - weight).detach(), codes.long()


def code_bits(codes: Tensor, levels: int) -> float:
    """Return the bits of integers from ``-levels`` to ``levels``: a table of their counts, then an arithmetic code.

    >>> round(code_bits(torch.tensor([0, 0, 1, 1]), 1), 6)
    12.0
    """
    counts = torch.bincount(codes.flatten() + levels, minlength=2 * levels + 1).double()
    share = counts[counts > 0] / counts.sum()
    entropy = float(-(share * share.log2()).sum()) * codes.numel()
    return entropy + 2 + 2 * levels * math.ceil(math.log2(codes.numel() + 1))


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train a network, a small surrogate beside it, and bound the error of the first without held-out labels.

    One half of the test images, without labels, gives the principal components that surrogates see, before the training
    data is used; the other half shows how often the network and its surrogate disagree.
    """
    (x, y), (u, v) = (labelled_data(setting.data, data_root, split) for split in ("train", "test"))
    x, u = x.flatten(1), u.flatten(1)
    source = torch.Generator().manual_seed(seed)
    progress("training the network")
    network = _network(x, y, setting, source, seed)
    with torch.no_grad():
        decisions = network(u).argmax(1)
    half = len(u) // 2
    rows = []
    for candidate in setting.candidates:
        progress("training a surrogate: {} components, {} units, {} levels on each side".format(*candidate))
        rows.append(_surrogate(candidate, setting, x, y, u[:half], source))
    best = min(rows, key=lambda row: row.bound.log)
    apart = int((best.decide(u[half:]) != decisions[half:]).sum())
    whole = by_surrogate(best.bound, apart, len(u) - half, DELTA / 2)
    progress("training a randomized network")
    other = randomized(network, (x, y), (u, v), setting.seconds, seed)
    with torch.no_grad():
        wrong = [int((network(a).argmax(1) != b).sum()) for a, b in ((x, y), (u, v))]
    guess, error, second = 1 - 1 / (int(y.max()) + 1), wrong[1] / len(u), other["bound on the network's error"]
    places = tuple(float(i + 1) for i in range(len(rows)))
    lines = (
        StudyLine("bound on the surrogate's error", places, tuple(r.bound.value for r in rows)),
        StudyLine("its training error", places, tuple(r.errors / len(x) for r in rows)),
        StudyLine("bound on the network's error", places, (whole.value,) * len(rows), dashed=True),
        StudyLine("the same by a randomized network", places, (second,) * len(rows), dashed=True),
        StudyLine("the network's test error", places, (error,) * len(rows), dashed=True),
    )
    panels = (
        StudyChart("Surrogates", "candidate", "error", lines),
        StudyChart(
            "Length of their codes", "candidate", "bits", (StudyLine("bits", places, tuple(r.bits for r in rows)),)
        ),
    )
    numbers = {
        "bound on the network's error": whole.value,
        "bound on the surrogate's error": best.bound.value,
        "disagreement": apart / (len(u) - half),
        "bits": best.bits,
        "surrogate's training error": best.errors / len(x),
        "network's test error": error,
        "network's training error": wrong[0] / len(x),
        "held-out limit, with labels": clopper_pearson(wrong[1], len(u), DELTA).value,
    }
    below = error <= min(whole.value, second)
    evidence = (
        Evidence("the bound without held-out labels is below guessing", setting.data, numbers, whole.value < guess),
        Evidence("so is the one by a randomized network", setting.data, other, second < guess),
        Evidence("the test error is below both", setting.data, {"test error": error}, below),
    )
    return {"delta": DELTA, "samples": len(x), "unlabelled": len(u)}, panels, evidence


@dataclass(frozen=True, eq=False)
class _Surrogate:
    """A small network: its code length, its training errors, the bound on its error, and its decisions."""

    bits: float
    errors: int
    bound: Value
    decide: Callable[[Tensor], Tensor]


def _surrogate(
    candidate: tuple[int, int, int], setting: _Setting, x: Tensor, y: Tensor, unseen: Tensor, source: torch.Generator
) -> _Surrogate:
    """Train a candidate on the principal components of unlabelled images."""
    components, width, levels = candidate
    project = components_of(unseen, components)
    small = QuantizedNetwork(components, width, int(y.max()) + 1, levels, source)
    _fit(small, project(x), y, setting.surrogate_epochs, 1e-2, 500, source)

    @torch.no_grad()
    def decide(images: Tensor) -> Tensor:
        return small(project(images)).argmax(1)

    errors = int((decide(x) != y).sum())
    bound = occam(errors, len(x), small.bits(), DELTA / (2 * len(setting.candidates)))
    return _Surrogate(small.bits(), errors, bound, decide)


def randomized(
    network: nn.Module, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], seconds: float, seed: int
) -> dict[str, float]:
    """Bound the error of a network by a randomized network and their disagreement on unlabelled inputs."""
    name = "PAC-Bayes, trained"
    found = bounds(network, train=train, test=test, delta=DELTA, posterior=seconds, only=[name], seed=seed).rows
    own, kl = found[f"{name}, and disagreement"], found[f"{name}, kl"]
    assert own.bound is not None  # every parameter is drawn anew, and there are samples enough
    assert kl.bound is not None
    return {
        "bound on the network's error": own.bound.value,
        "bound on the randomized network's error": kl.bound.value,
        **{key: float(own.details[key]) for key in ("loss", "apart", "divergence", "prior_error", "draws")},
    }


def components_of(inputs: Tensor, count: int) -> Callable[[Tensor], Tensor]:
    """Return the map to the first principal components of some inputs, scaled to unit variance."""
    mean = inputs.mean(0)
    centred = (inputs - mean).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(inputs))
    basis = (vectors[:, -count:] / values[-count:].clamp_min(1e-12).sqrt()).to(inputs.dtype)
    return lambda x: (x - mean) @ basis


def _network(x: Tensor, y: Tensor, setting: _Setting, source: torch.Generator, seed: int) -> nn.Module:
    """Train the network to be certified: one hidden layer with BatchNorm."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        net = MLP([x.shape[1], setting.width, int(y.max()) + 1], "bn")
    _fit(net, x, y, setting.epochs, 2e-3, 256, source)
    return net.eval()


def _fit(net: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float, batch: int, source: torch.Generator) -> None:
    optimizer = torch.optim.Adam(net.parameters(), rate)
    steps = epochs * math.ceil(len(x) / batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=source).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()
