"""A non-vacuous Theorem 20: a Lipschitz network for which the repaired bound is certified and below guessing."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.core.rounding import matrix_norm_sandwich
from normscope.generalization.held_out import clopper_pearson
from normscope.generalization.margins import cell_constants, ramp_loss
from normscope.generalization.partition import grid
from normscope.generalization.theorem_20 import PartitionBound, partition_bound
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, labelled_data

DELTA = 0.05
#: Boxes along each axis of the feature square, tried with an equal part of delta each.
GRIDS = (8, 12, 16, 20, 24, 32)
GAMMAS = (0.02, 0.05, 0.1, 0.2, 0.3)


TITLE = "Theorem 20, certified for a trained network"


@dataclass(frozen=True)
class _Setting:
    data: str
    steps: int
    width: int = 16
    batch: int = 1024
    rate: float = 1e-2
    target: float = 0.3


SETTINGS = {"smoke": _Setting("synthetic", 60), "laptop": _Setting("mnist", 400)}


@dataclass(frozen=True)
class CellCertificate:
    """The repaired Theorem 20 on one grid."""

    boxes: int  #: along each axis
    gamma: float  #: of the ramp; any may be taken, since the bound holds for all losses at once
    loss: float  #: mean ramp loss on the training data
    bound: PartitionBound  #: of the gap, with its parts

    @property
    def error(self) -> float:
        """Return the bound on the error."""
        return self.loss + self.bound.gap.value


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train a network with layers of norm at most one on two fixed features, and certify its error.

    Zeros and ones of MNIST are told apart by how bright the middle and the sides of an image are: two numbers in [0, 1]
    that are fixed before the data, as is the grid.
    """
    train, test = (features(setting.data, split, data_root, seed) for split in ("train", "test"))
    progress("training the network")
    net = trained(*train, setting, seed)
    rows = []
    for boxes in GRIDS:
        progress(f"certifying: {boxes} x {boxes} boxes")
        rows.append(certified(net, *train, boxes, DELTA / len(GRIDS)))
    best = min(rows, key=lambda r: r.error)
    wrong = [int((_margins(net, *pair) <= 0).sum()) for pair in (train, test)]
    limit = clopper_pearson(wrong[1], len(test[1]), DELTA).value
    parts = (
        _line("bound on the error", [r.error for r in rows]),
        _line("local term", [r.bound.local.value for r in rows]),
        _line("term of the counts", [min(r.bound.tight.value, r.bound.total_variation.value) for r in rows]),
        _line("training loss", [r.loss for r in rows]),
        _line("test error", [wrong[1] / len(test[1])] * len(GRIDS), dashed=True),
    )
    forms = (
        _line("repaired", [r.error for r in rows]),
        _line("printed term g", [r.loss + r.bound.printed.value for r in rows]),
        _line("guessing", [0.5] * len(GRIDS), dashed=True),
    )
    panels = (
        StudyChart("What the bound is made of", "boxes along an axis", "error", parts),
        StudyChart("Repaired and printed", "boxes along an axis", "error", forms),
    )
    facts = {"delta": DELTA, "samples": len(train[1]), "constant": constant_of(net)}
    return facts, panels, _evidence(rows, best, wrong, (len(train[1]), len(test[1])), limit)


def features(data: str, split: str, root: Path | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return two features in [0, 1] and labels 0 or 1.

    They are of MNIST, or ``synthetic``: points of two triangular clouds.
    """
    if data == "synthetic":
        source = torch.Generator().manual_seed(2 * seed + (split == "test"))
        size = 20_000 if split == "train" else 2_000
        y = torch.randint(2, (size,), generator=source)
        spread = torch.rand(size, 2, 2, generator=source, dtype=torch.float64).mean(2) * 0.4
        return spread + 0.1 + 0.4 * y[:, None], y
    images, labels = labelled_data(data, root, split)
    kept = labels < 2
    x = images[kept][:, 0].double()
    middle = x[:, 8:20, 12:16].mean((1, 2))
    sides = torch.cat([x[:, 8:20, 6:10], x[:, 8:20, 18:22]], 2).mean((1, 2))
    return torch.stack([middle, sides], 1), labels[kept]


def trained(x: Tensor, y: Tensor, setting: _Setting, seed: int) -> nn.Sequential:
    """Return a network of one score whose layers have norm at most one, trained with a hinge."""
    source = torch.Generator().manual_seed(seed)
    sizes = (x.shape[1], setting.width, setting.width, 1)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(b, a, generator=source, dtype=torch.float64) / math.sqrt(a))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters(), setting.rate)
    for _ in range(setting.steps):
        chosen = torch.randint(len(x), (setting.batch,), generator=source)
        optimizer.zero_grad()
        sign = 2.0 * y[chosen] - 1
        (setting.target - sign * net(x[chosen])[:, 0]).clamp_min(0).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for part in net:
                if isinstance(part, nn.Linear):
                    part.weight /= max(1.0, float(torch.linalg.matrix_norm(part.weight, 2)))
    return net.requires_grad_(False)


def constant_of(net: nn.Sequential) -> float:
    """Return a certified Lipschitz constant of the score: the product of the layers' norms, rounded up."""
    norms = [matrix_norm_sandwich(layer.weight)[1] for layer in net if isinstance(layer, nn.Linear)]
    return math.prod(norms) * (1 + 1e-14)


def certified(net: nn.Sequential, x: Tensor, y: Tensor, boxes: int, delta: float) -> CellCertificate:
    """Return the best certificate over gamma on a grid of the unit square, each box separately for both labels."""
    side = 1 / boxes
    axis = (torch.arange(boxes, dtype=torch.float64) + 0.5) * side
    centres = torch.cartesian_prod(axis, axis)
    score = net(centres)[:, 0]
    margins = torch.stack([-score, score], 1).flatten()
    own, constant = _margins(net, x, y), constant_of(net)
    parts = grid([0.0, 0.0], [1.0, 1.0], [boxes, boxes])
    found = []
    for gamma in GAMMAS:
        local = cell_constants(margins, constant, side / math.sqrt(2), gamma)
        bound = partition_bound(parts, x, local.tolist(), largest=1.0, delta=delta, labels=y, classes=2)
        found.append(CellCertificate(boxes, gamma, float(ramp_loss(own, gamma).mean()), bound))
    return min(found, key=lambda r: r.error)


def _margins(net: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    return (2.0 * y - 1) * net(x)[:, 0]


def _line(label: str, y: list[float], *, dashed: bool = False) -> StudyLine:
    return StudyLine(label, tuple(map(float, GRIDS)), tuple(y), dashed=dashed)


def _evidence(
    rows: list[CellCertificate], best: CellCertificate, wrong: list[int], samples: tuple[int, int], limit: float
) -> tuple[Evidence, ...]:
    test = wrong[1] / samples[1]
    numbers = {
        "bound on the error": best.error,
        "test error": test,
        "training error": wrong[0] / samples[0],
        "held-out limit": limit,
        "boxes along an axis": float(best.boxes),
        "gamma": best.gamma,
    }
    printed = min(r.loss + r.bound.printed.value for r in rows)
    return (
        Evidence("the repaired bound is certified and below guessing", "Lipschitz network", numbers, best.error < 0.5),
        Evidence("the test error is below it", "Lipschitz network", {"test error": test}, test <= best.error),
        Evidence("the bound with the printed term is below guessing", "Lipschitz network",
                 {"with the printed term": printed, "repaired": best.error}, printed < 0.5),
    )  # fmt: skip
