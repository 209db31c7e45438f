"""Which quantities govern the rate of convergence? The setting of the paper, weight norms, and certified steps."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from normscope.papers.cisneros2025.training import descend, unit_data
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, stack_tables
from normscope.weight_normalization.certified_step import certify_step
from normscope.weight_normalization.measure import loss_and_gradient_norm, square_loss
from normscope.weight_normalization.network import WeightNormNetwork, uniform_

#: Factors on the uniform initialization of the hidden layers: they change the norms of weight vectors and nothing else.
FACTORS = (0.25, 1.0, 4.0)


TITLE = "Convergence, least weight norm and gradient ratio"


@dataclass(frozen=True)
class _Setting:
    data: tuple[str, ...]
    seeds: int
    examples: int
    steps: int
    every: int
    certified_steps: int
    certified_examples: int
    width: int
    depth: int = 2
    batch: int = 512
    rate: float = 1e-3


SETTINGS = {
    "smoke": _Setting(("digits",), 2, 300, 20, 5, 8, 32, 8),
    "laptop": _Setting(("mnist", "cifar10"), 5, 8192, 300, 15, 60, 128, 64),
}


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train as in the paper from weight vectors of several lengths, then with certified steps."""
    panels: list[StudyChart] = []
    evidence: list[Evidence] = []
    for name in setting.data:
        x, y = unit_data(name, data_root, "train", setting.examples)
        runs = {factor: _runs(x, y, factor, setting, seed, progress) for factor in FACTORS}
        panels += _panels(name, runs, setting.every)
        evidence += _evidence(name, runs)
        certified = _certified(x, y, setting, seed, progress)
        panels.append(_certificate_panel(name, certified))
        evidence += _certified_evidence(name, certified)
    return {"factors": FACTORS}, panels, evidence


def _network(inputs: int, factor: float, setting: _Setting, seed: int) -> WeightNormNetwork:
    """Return the network of a seed with its weight vectors ``factor`` times as long; the function is the same."""
    net = WeightNormNetwork(inputs, width=setting.width, depth=setting.depth, outputs=10).double()
    uniform_(net, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for layer in net.hidden:
            layer.weight.mul_(factor)
    return net


def _runs(
    x: torch.Tensor, y: torch.Tensor, factor: float, setting: _Setting, seed: int, progress: Progress
) -> dict[str, np.ndarray]:
    """Return for every seed the loss, the ratio and the least norm along a run in the paper's setting."""
    runs = []
    for k in range(setting.seeds):
        progress(f"weight vectors times {factor:g}, seed {k + 1}")
        net = _network(x.shape[1], factor, setting, seed + k)
        points: list[dict[str, float]] = []

        def note(step: int, net: WeightNormNetwork = net, points: list[dict[str, float]] = points) -> None:
            if step % setting.every == 0:
                loss, gradient = loss_and_gradient_norm(net, x[:512], y[:512])
                least = min(float(layer.weight.detach().norm(dim=1).min()) for layer in net.hidden)
                points.append({"loss": loss, "ratio": gradient**2 / loss, "least": least})

        descend(net, x, y, steps=setting.steps, rate=setting.rate, batch=setting.batch, seed=seed + k, after_step=note)
        runs.append(points)
    return stack_tables(runs)


def _panels(name: str, runs: dict[float, dict[str, np.ndarray]], every: int) -> list[StudyChart]:
    parts = (("loss", "square loss"), ("ratio", "|grad L|^2 / L"), ("least", "least norm of a weight vector"))
    return [
        StudyChart(f"{name}: {words}", "update", words, tuple(
            StudyLine.over_seeds(f"weight vectors x {factor:g}", range(0, every * run[key].shape[1], every), run[key])
            for factor, run in runs.items()), log_y=key != "loss")
        for key, words in parts
    ]  # fmt: skip


def _evidence(name: str, runs: dict[float, dict[str, np.ndarray]]) -> list[Evidence]:
    falls = {factor: float(np.median(run["loss"][:, 0] - run["loss"][:, -1])) for factor, run in runs.items()}
    ratios = {factor: float(np.median(run["ratio"][:, 0])) for factor, run in runs.items()}
    least = min(float(np.diff(run["least"], axis=1).min()) for run in runs.values())
    drift = max(float((run["least"][:, -1] / run["least"][:, 0]).max()) for run in runs.values()) - 1.0
    small, large = FACTORS[0], FACTORS[-1]
    return [
        Evidence("training is faster where the least weight norm is larger", name,
                 {f"fall of the loss, x {factor:g}": fall for factor, fall in falls.items()},
                 falls[large] > falls[small]),
        Evidence("training is faster where |grad L|^2/L is larger", name,
                 {f"ratio at the start, x {factor:g}": ratio for factor, ratio in ratios.items()},
                 (ratios[small] > ratios[large]) == (falls[small] > falls[large])),
        Evidence("the least norm stays nearly constant", name, {"largest relative growth": drift}, drift < 0.05),
        Evidence("gradient descent never lowers the norm of a weight vector (proved)", name,
                 {"largest fall between measurements": max(0.0, -least)}, least >= -1e-12),
    ]  # fmt: skip


def _certified(
    x: torch.Tensor, y: torch.Tensor, setting: _Setting, seed: int, progress: Progress
) -> dict[str, np.ndarray]:
    """Return the proved and the actual decrease for every seed and step, with the largest certified step size."""
    x, y = x[: setting.certified_examples], y[: setting.certified_examples]
    runs = []
    for k in range(setting.seeds):
        progress(f"certified steps, seed {k + 1}")
        net = _network(x.shape[1], 1.0, setting, seed + k)
        points = []
        for _ in range(setting.certified_steps):
            now = certify_step(net, x, y)
            descend(net, x, y, steps=1, rate=now.certificate.step_size, batch=None)
            with torch.no_grad():
                after = float(square_loss(net(x), y))
            proved, real = 1.0 - now.certificate.contraction, 1.0 - after / now.loss
            points.append({"proved": proved, "real": real, "alpha": now.strong_convexity})
        runs.append(points)
    return stack_tables(runs)


def _certificate_panel(name: str, found: dict[str, np.ndarray]) -> StudyChart:
    steps = list(range(1, found["real"].shape[1] + 1))
    lines = tuple(StudyLine.over_seeds(key, steps, found[key], dashed=key == "proved") for key in ("real", "proved"))
    title = f"{name}: decrease of the loss in one certified step"
    return StudyChart(title, "update", "relative decrease", lines, log_y=True)


def _certified_evidence(name: str, found: dict[str, np.ndarray]) -> list[Evidence]:
    return [
        Evidence("no certified decrease is missed", name,
                 {"median of real over proved": np.median(found["real"] / found["proved"]),
                 "least of real over proved": (found["real"] / found["proved"]).min()},
                 (found["real"] >= found["proved"] - 1e-15).all()),
        Evidence("the condition for restricted strong convexity (alpha > 0) holds along the run", name,
                 {"share of steps": (found["alpha"] > 0).mean()}, (found["alpha"] > 0).all()),
    ]  # fmt: skip
