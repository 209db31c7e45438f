"""Which measures rank trained networks by their gap? Runs that differ in width, depth, rate, batch and normalizer."""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.analysis.bounds.measures import measures
from normscope.generalization.ranking import granulated_kendall, information_score, kendall
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, labelled_data

TITLE = "Measures against the gap"


@dataclass(frozen=True)
class _Setting:
    samples: int
    noise: float
    #: Values of each hyper-parameter; every combination is trained, once for each seed.
    width: tuple[int, ...]
    depth: tuple[int, ...]
    rate: tuple[float, ...]
    batch: tuple[int, ...]
    norm: tuple[str, ...]
    seeds: int
    epochs: int


SETTINGS = {
    "smoke": _Setting(100, 0.1, (16,), (2,), (0.05, 0.2), (20,), ("none", "bn"), 1, 20),
    "laptop": _Setting(400, 0.1, (32, 128), (2, 3), (0.03, 0.1), (25, 100), ("none", "bn"), 2, 60),
}
#: Training ends once the cross-entropy is below this.
ENOUGH = 0.01
FLAT, FROBENIUS = "log flatness, relative (1/sigma^2)", "log product of Frobenius norms"


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train networks on digits with some wrong labels, measure them, and compare measures with gaps."""
    train, test = _data(setting, seed)
    names = ("width", "depth", "rate", "batch", "norm")
    combinations = list(itertools.product(*(getattr(setting, name) for name in names), range(setting.seeds)))
    settings, gaps, found = [], [], []
    for k, (*values, repeat) in enumerate(combinations):
        progress(f"run {k + 1} of {len(combinations)}")
        chosen = dict(zip(names, values, strict=True))
        torch.manual_seed(seed + repeat)
        net = _network(int(chosen["width"]), int(chosen["depth"]), str(chosen["norm"]), train[0].shape[1])
        start = copy.deepcopy(net).eval()
        early, history = _train(net, *train, float(chosen["rate"]), int(chosen["batch"]), setting.epochs, seed + repeat)
        gaps.append(_error(net, *test) - _error(net, *train))
        found.append(measures(net, train, start=start, early=early, history=history, seed=seed))
        settings.append({**chosen, "seed": repeat})
    table = _table(found, gaps, settings)
    return {"gaps": gaps, "measures": table}, [_panel(table)], _evidence(table, len(gaps))


def _data(setting: _Setting, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    parts = (labelled_data("digits", None, split, n) for split, n in (("train", setting.samples), ("test", None)))
    (x, y), test = ((images.flatten(1).float(), labels) for images, labels in parts)
    source = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(y), generator=source) < setting.noise
    return (x, torch.where(wrong, torch.randint(0, 10, y.shape, generator=source), y)), test


def _network(width: int, depth: int, norm: str, features: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(depth):
        layers.append(nn.Linear(features if k == 0 else width, width, bias=norm == "none"))
        layers += [nn.BatchNorm1d(width)] if norm == "bn" else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, 10))


def _train(
    net: nn.Module, x: Tensor, y: Tensor, rate: float, batch: int, epochs: int, seed: int
) -> tuple[nn.Module, tuple[list[int], list[float]]]:
    """Train in place by SGD with momentum until the training loss is small; leave it in evaluation."""
    source = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    early, step = copy.deepcopy(net), 0
    steps: list[int] = []
    losses: list[float] = []
    for epoch in range(epochs):
        net.train()
        for picked in torch.randperm(len(x), generator=source).split(batch):
            if len(picked) > 1:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[picked]), y[picked]).backward()
                optimizer.step()
                step += 1
        net.eval()
        early = copy.deepcopy(net) if epoch == 0 else early
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(net(x), y))
        steps.append(step)
        losses.append(loss)
        if loss < ENOUGH:
            break
    return early, (steps, losses)


def _error(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((net(x).argmax(1) != y).double().mean())


def _table(
    found: Sequence[dict[str, float]], gaps: Sequence[float], settings: Sequence[dict[str, object]]
) -> dict[str, dict[str, float]]:
    """Return tau, the mean of the granulated taus, and the information score of every measure all runs have."""
    shared = [name for name in found[0] if all(name in row and math.isfinite(row[name]) for row in found)]
    rows = {}
    hyper = [{k: v for k, v in s.items() if k != "seed"} for s in settings]
    for name in shared:
        values = [row[name] for row in found]
        parts = [t for k, t in granulated_kendall(values, gaps, settings).items() if k != "seed" and not math.isnan(t)]
        rows[name] = {
            "tau": kendall(values, gaps),
            "granulated": math.fsum(parts) / len(parts) if parts else math.nan,
            "information": information_score(values, gaps, hyper),
        }
    return dict(sorted(rows.items(), key=lambda item: math.inf if math.isnan(item[1]["tau"]) else -item[1]["tau"]))


def _panel(table: dict[str, dict[str, float]]) -> StudyChart:
    """Return the coefficients of all measures, the best first."""
    places = [float(k + 1) for k in range(len(table))]
    lines = tuple(
        StudyLine(label, tuple(places), tuple(row[key] for row in table.values()), dashed=dashed)
        for label, key, dashed in (("over all runs", "tau", False), ("mean over hyper-parameters", "granulated", True))
    )
    return StudyChart("Kendall's tau with the gap", "measure, the best first", "tau", lines)


def _evidence(table: dict[str, dict[str, float]], runs: int) -> tuple[Evidence, ...]:
    # found by Jiang et al. on many more and larger networks
    best = next(iter(table))
    informative = max(table, key=lambda name: table[name]["information"])
    numbers = {f"tau of {name}": table[name]["tau"] for name in (best, FLAT, FROBENIUS) if name in table}
    flat, norms = (table.get(name, {"tau": math.nan})["tau"] for name in (FLAT, FROBENIUS))
    return (
        Evidence("flatness relative to the weights ranks runs by their gap", "MLP", {"runs": runs, **numbers},
                 flat > 0),
        Evidence("flatness ranks better than products of norms", "MLP", numbers, flat > norms),
        Evidence("no measure tells more than half of the order beyond hyper-parameters", "MLP",
                 {f"information score of {informative}, percent": table[informative]["information"]},
                 table[informative]["information"] < 50),
    )  # fmt: skip
