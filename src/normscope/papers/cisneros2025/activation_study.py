"""Is a smooth activation needed? Hessians against depth, and training curves, for smooth and piecewise-linear ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.func import functional_call

from normscope.geometry.flow import Point, gradient_of, packed
from normscope.papers.cisneros2025.training import descend, unit_data
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, measure_by_seed
from normscope.weight_normalization.measure import prediction_hessian_norm, square_loss
from normscope.weight_normalization.network import WeightNormNetwork

ACTIVATIONS = ("tanh", "gelu", "elu", "relu")


TITLE = "Smooth and kinked activations"


@dataclass(frozen=True)
class _Setting:
    depths: tuple[int, ...]
    seeds: int
    data: str
    examples: int
    steps: int
    every: int
    width: int
    batch: int = 512
    rate: float = 1.0


SETTINGS = {
    "smoke": _Setting((1, 4), 2, "digits", 200, 10, 5, 8),
    "laptop": _Setting((1, 2, 4, 8, 16, 32), 5, "mnist", 4096, 300, 15, 32),
}


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Compare smooth activations with ReLU: the Hessian where it exists, the jump of the gradient, and training."""
    x, y = unit_data(setting.data, data_root, "train", setting.examples)
    seeds, steps = range(seed, seed + setting.seeds), range(0, setting.steps + 1, setting.every)
    hessians: dict[str, np.ndarray] = {}
    jumps: dict[str, np.ndarray] = {}
    losses: dict[str, np.ndarray] = {}
    for name in ACTIVATIONS:

        def at_depth(k: int, depth: int, name: str = name) -> dict[str, float]:
            net = WeightNormNetwork(x.shape[1], width=setting.width, depth=depth, activation=name, seed=k).double()
            return {"hessian": prediction_hessian_norm(net, x[0]), "movement": _gradient_movement(net, x[0], k)}

        progress(name)
        found = measure_by_seed(seeds, setting.depths, at_depth)
        hessians[name], jumps[name] = found["hessian"], found["movement"]
        losses[name] = np.array([_training(x, y, name, setting, k) for k in seeds])
    panels = (
        _chart("Hessian of the predictor, where it exists", "largest |eigenvalue|", setting.depths, hessians),
        _chart("Movement of the gradient over a short way", "|difference| / distance", setting.depths, jumps),
        _chart("Training, depth 2", "square loss", steps, losses, x_label="update", log=False),
    )
    return {"activations": ACTIVATIONS}, panels, _evidence(hessians, losses)


def _gradient_movement(net: WeightNormNetwork, x: torch.Tensor, seed: int) -> float:
    """Return the largest ``||grad f(w + d) - grad f(w)||/||d||`` over random short steps; kinks make it large."""
    point, draw = dict(net.named_parameters()), torch.Generator().manual_seed(seed)

    def slope(at: Point) -> torch.Tensor:
        return packed(gradient_of(lambda p: functional_call(net, dict(p), x[None]).sum(), at))

    def movement(size: float) -> float:
        way = {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in point.items()}
        scale = size / packed(way).norm()
        return float((slope({name: p + scale * way[name] for name, p in point.items()}) - start).norm()) / size

    start = slope(point)
    return max(movement(size) for size in (1e-1, 1e-2, 1e-3))


def _training(x: torch.Tensor, y: torch.Tensor, name: str, setting: _Setting, seed: int) -> list[float]:
    """Return the loss along a run of a network of depth two."""
    net = WeightNormNetwork(x.shape[1], width=setting.width, depth=2, outputs=10, activation=name, seed=seed).double()
    row: list[float] = []

    def note(step: int) -> None:
        if step % setting.every == 0:
            row.append(float(square_loss(net(x[:512]).detach(), y[:512])))

    descend(net, x, y, steps=setting.steps, rate=setting.rate, batch=setting.batch, seed=seed, after_step=note)
    return row


def _chart(
    title: str,
    y_label: str,
    x: Sequence[int],
    rows: dict[str, np.ndarray],
    *,
    x_label: str = "hidden layers",
    log: bool = True,
) -> StudyChart:
    lines = tuple(StudyLine.over_seeds(name, x, table) for name, table in rows.items())
    return StudyChart(title, x_label, y_label, lines, log_x=log, log_y=log)


def _evidence(hessians: dict[str, np.ndarray], losses: dict[str, np.ndarray]) -> tuple[Evidence, ...]:
    ends = {name: float(np.median(table[:, -1])) for name, table in hessians.items()}
    starts = {name: float(np.median(table[:, 0])) for name, table in hessians.items()}
    final = {name: float(np.median(table[:, -1])) for name, table in losses.items()}
    smooth = ACTIVATIONS[:3]
    return (
        Evidence("the Hessian does not grow exponentially with depth for smooth activations", ", ".join(smooth),
                 {f"{name}, last depth over first": ends[name] / starts[name] for name in smooth},
                 all(ends[name] <= 10.0 * starts[name] for name in smooth)),
        Evidence("with ReLU, outside the theory, it grows", "relu",
                 {"last depth over first": ends["relu"] / starts["relu"]}, ends["relu"] > 10.0 * starts["relu"]),
        Evidence("training needs a smooth activation", "depth 2",
                 {f"loss, {name}": value for name, value in final.items()},
                 final["relu"] > max(final[name] for name in smooth)),
    )  # fmt: skip
