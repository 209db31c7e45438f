"""Does the generalization gap depend on the width? Trained networks of many widths, beside the bound."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from normscope.papers.cisneros2025.training import unit_data
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, fit_line, measure_by_seed
from normscope.weight_normalization.guarantees import gap_guarantee
from normscope.weight_normalization.measure import square_loss
from normscope.weight_normalization.network import WeightNormNetwork

TITLE = "Generalization gap against width"


@dataclass(frozen=True)
class _Setting:
    widths: tuple[int, ...]
    seeds: int
    data: str
    train: int
    test: int
    steps: int
    depth: int = 2
    batch: int = 128
    rate: float = 1e-2


SETTINGS = {
    "smoke": _Setting((4, 16), 2, "digits", 200, 100, 30),
    "laptop": _Setting((16, 64, 256, 1024, 4096), 5, "mnist", 1000, 2000, 200),
}

#: From the least to the largest width, growth by at most this factor does not count.
GROWN = 1.5


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train networks of several widths on the same examples and compare test and training loss.

    They are trained with Adam: in this scaling plain descent with the paper's step size hardly moves in so few steps.
    """
    x, y = unit_data(setting.data, data_root, "train", setting.train)
    other = unit_data(setting.data, data_root, "test", setting.test)

    def measured(k: int, width: int) -> dict[str, float]:
        progress(f"seed {k + 1}, width {width}")
        net = WeightNormNetwork(x.shape[1], width=width, depth=setting.depth, outputs=10, seed=seed + k)
        _train(net, x.float(), y.float(), setting, seed + k)
        with torch.no_grad():
            train, test = (float(square_loss(net(a.float()), b.float())) for a, b in ((x, y), other))
        return {"train": train, "test": test, "gap": test - train, "bound": gap_guarantee(net, x, y).bound.value}

    found = measure_by_seed(range(setting.seeds), setting.widths, measured)
    widths = setting.widths
    loss = [StudyLine.over_seeds(label, widths, found[key]) for label, key in (("training", "train"), ("test", "test"))]
    gap = [
        StudyLine.over_seeds("measured", widths, found["gap"]),
        StudyLine.over_seeds("bound, probability 0.95", widths, found["bound"], dashed=True),
    ]
    panels = (
        StudyChart("Loss", "width", "square loss", tuple(loss), log_x=True),
        StudyChart("Test minus training loss", "width", "square loss", tuple(gap), log_x=True, log_y=True),
    )
    return {}, panels, _evidence(np.asarray(widths, dtype=float), found)


def _train(net: WeightNormNetwork, x: torch.Tensor, y: torch.Tensor, setting: _Setting, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=setting.rate)
    for _ in range(setting.steps):
        picked = torch.randint(len(x), (setting.batch,), generator=draw)
        optimizer.zero_grad()
        square_loss(net(x[picked]), y[picked]).backward()
        optimizer.step()


def _evidence(widths: np.ndarray, found: dict[str, np.ndarray]) -> tuple[Evidence, ...]:
    gap, bound = (np.median(found[name], axis=0) for name in ("gap", "bound"))
    power = fit_line(np.log(widths), np.log(np.maximum(gap, 1e-12)))[0]
    return (
        Evidence("the generalization gap does not grow with the width", "WeightNorm",
                 {"gap at the least width": gap[0], "at the largest": gap[-1], "power of the width": power},
                 gap[-1] <= GROWN * gap[0]),
        Evidence("nor does the bound, for what training makes of the output layer", "WeightNorm",
                 {"bound at the least width": bound[0], "at the largest": bound[-1]}, bound[-1] <= GROWN * bound[0]),
        Evidence("the bound holds", "WeightNorm",
                 {"largest gap": found["gap"].max(), "least bound": found["bound"].min()},
                 (found["gap"] <= found["bound"]).all()),
        Evidence("the bound says something: it is below the largest possible loss", "WeightNorm",
                 {"least bound": found["bound"].min(), "loss of predicting zero": 1.0}, found["bound"].min() < 1.0),
    )  # fmt: skip
