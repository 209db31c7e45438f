"""Does depth blow up the Hessian? With and without weight normalization, beside the bounds."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine, fit_line, measure_by_seed
from normscope.weight_normalization.chain import read_chain
from normscope.weight_normalization.derivative_bounds import activation_norm_bounds, hessian_bound, hessian_bound_closed
from normscope.weight_normalization.measure import activation_norms, prediction_hessian_norm
from normscope.weight_normalization.network import WeightNormNetwork

TITLE = "Hessian norm against depth"


@dataclass(frozen=True)
class _Setting:
    depths: tuple[int, ...]
    width: int
    inputs: int
    seeds: int
    points: int


SETTINGS = {"smoke": _Setting((1, 2, 4, 8), 8, 6, 2, 2), "laptop": _Setting((1, 2, 4, 8, 16, 32, 64), 32, 16, 5, 4)}


def run(setting: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Measure the Hessian of the predictor against depth.

    The plain twin has the same form with weights of variance one in place of unit vectors, so a layer has a norm near
    2. Output weights have norm one, inputs too.
    """
    depths = setting.depths

    def measured(k: int, depth: int) -> dict[str, float]:
        progress(f"seed {k + 1}, depth {depth}")
        draw = torch.Generator().manual_seed(seed + k)
        points = torch.randn(setting.points, setting.inputs, generator=draw, dtype=torch.float64)
        return _one(depth, setting.width, points / points.norm(dim=1, keepdim=True), seed + k)

    found = measure_by_seed(range(setting.seeds), depths, measured)
    found["printed"] = found["closed"][:, :1] * np.asarray(depths) ** 3 / depths[0] ** 3
    lines = (
        StudyLine.over_seeds("measured, WeightNorm", depths, found["normalized"]),
        StudyLine.over_seeds("measured, plain weights", depths, found["plain"]),
        StudyLine.over_seeds("bound, measured activations", depths, found["measured activations"], dashed=True),
        StudyLine.over_seeds("bound, layer by layer", depths, found["layered"], dashed=True),
        StudyLine.over_seeds("bound, one formula (L^2/m)", depths, found["closed"], dashed=True),
        StudyLine.over_seeds("growth printed in the paper (L^3)", depths, found["printed"], dashed=True),
    )
    signal = (StudyLine.over_seeds("WeightNorm", depths, found["activations"]),)
    panels = (
        StudyChart("Hessian of the predictor", "hidden layers", "largest |eigenvalue|", lines, log_x=True, log_y=True),
        StudyChart("Signal", "hidden layers", "norm of the last activation", signal, log_x=True, log_y=True),
    )
    return {}, panels, _evidence(np.asarray(depths, dtype=float), found)


def _one(depth: int, width: int, points: Tensor, seed: int) -> dict[str, float]:
    """Return the measured Hessians and the bounds of one depth."""
    net = WeightNormNetwork(points.shape[1], width=width, depth=depth, seed=seed).double()
    plain = WeightNormNetwork(points.shape[1], width=width, depth=depth, normalize=False, seed=seed).double()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_((3.0 * parameter.shape[1]) ** 0.5)  # variance one, where it was 1/(3 fan-in)
        for model in (net, plain):
            model.output.weight.div_(model.output.weight.norm())
    chain = read_chain(net, points)
    layers, rho = chain.constants(), chain.output_norm()
    curvature, norms = layers[0].curvature, activation_norms(chain, net, points)
    return {
        "normalized": max(prediction_hessian_norm(net, x) for x in points),
        "plain": max(prediction_hessian_norm(plain, x) for x in points),
        "layered": hessian_bound(layers, rho, activation_norm_bounds(layers, 1.0)),
        "measured activations": hessian_bound(layers, rho, norms),
        "activations": norms[-1],
        "closed": hessian_bound_closed(depth, width, chain.least_norm * (1 - 1e-12), rho, 1.0, curvature),
    }


def _evidence(depths: np.ndarray, found: dict[str, np.ndarray]) -> tuple[Evidence, ...]:
    normalized, closed, layered = found["normalized"], found["closed"], found["layered"]
    growth = fit_line(np.log(depths), np.log(np.median(closed, axis=0)))[0]
    last, plain, output = (np.median(found[name], axis=0) for name in ("normalized", "plain", "activations"))
    return (
        Evidence("weight normalization removes the exponential growth of the Hessian with depth", "WeightNorm",
                 {"first depth": last[0], "last depth": last[-1]}, last[-1] <= last[0] * depths[-1] ** 2),
        Evidence("without it the Hessian grows exponentially with depth", "plain weights of variance one",
                 {"first depth": plain[0], "last depth": plain[-1]}, plain[-1] > 2.0 ** (depths[-1] / 4) * plain[0]),
        Evidence("the network keeps its signal at any depth", "WeightNorm",
                 {"last activation, first depth": output[0], "last activation, last depth": output[-1]},
                 output[-1] > 0.01 * output[0]),
        Evidence("the bound grows like L^3", "bound derived here", {"power of L in the formula": growth}, growth > 2.5),
        Evidence("the Hessian never exceeds its bounds", "WeightNorm",
                 {"largest share of the layer-by-layer bound": (normalized / layered).max(),
                 "largest share of the formula": (normalized / closed).max()},
                 (normalized <= layered).all() and (normalized <= closed).all()),
    )  # fmt: skip
