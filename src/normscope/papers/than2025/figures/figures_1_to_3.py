"""Claims about the figures of the paper, the evidence of a run for each, and the facts needed to repeat it."""

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import numpy as np
import torch

from normscope import __version__
from normscope.core.result import Result
from normscope.core.statement import statement
from normscope.monitor.run import Run, Series
from normscope.papers.study import Evidence, fit_line
from normscope.papers.than2025.figures.training_setting import TrainingSetting

#: What the products reach according to the paper, as decimal logarithms, and the network that this is about.
PRODUCT_OF_NORMS, PRODUCT_OF_INVERSE_SIGMA, SAID_OF = 50.0, -25.0, "resnet18"
#: Growth is called exponential if a line through the logarithms has at least this coefficient of determination.
STRAIGHT = 0.9
#: What 1e-25 may be the product of: metric, words. The text means one of them and prints another.
REDUCTIONS = (
    ("product/inverse_sigma_printed_log10", "||1/sigma||_2 (printed, without gamma)"),
    ("product/inverse_sigma_slides_log10", "||gamma/sigma||_2 (printed on slides, with gamma)"),
    ("product/inverse_sigma_unscaled_log10", "max 1/sigma (proved, without gamma)"),
    ("product/inverse_sigma_proved_log10", "max |gamma|/sigma (proved, with gamma)"),
    ("product/folded_log10", "||diag(gamma/sigma) W|| (folded, which rescaling leaves)"),
)


def variances(run: Run) -> dict[str, Series]:
    """Return the variance before each normalizer, or before each activation where there is no normalizer."""
    every, normalizers = run.group("variance"), run.group("variance_min")
    return {name: every[name] for name in normalizers if name in every} or every


@statement(
    "than2025", "Figure 2", holds="the product of layer-wise variances as it is drawn; it moves with the weights"
)
def product_of_variances(run: Run) -> Series:
    r"""Return :math:`\log_{10} \prod_k \sigma_k^2` along a run, mean variance over channels at each layer."""
    series = list(variances(run).values())
    logs = np.sum([np.log10(np.maximum(s.values, 1e-300)) for s in series], axis=0)
    return Series(series[0].steps, series[0].times, logs)


@statement("than2025", "Figure 1", holds="norms of the layers as they act, from below")
def weight_norm_evidence(run: Run, network: str) -> list[Evidence]:
    """Return what a run says of the claims around Figure 1 (and the left half of Figure 3)."""
    norms = run.group("norm")
    first = np.array([s.values[0] for s in norms.values()])
    last = np.array([s.values[-1] for s in norms.values()])
    product = run.series("product/norms_log10").values
    accuracy = run.series("probe/accuracy").values
    return [
        Evidence("the norms of the weight matrices become larger than one at all layers", network,
                 {"layers": len(norms), "above one, first": (first > 1).mean(), "above one": (last > 1).mean(),
                 "least": last.min(), "largest": last.max()}, (last > 1).all()),
        Evidence("the norms grow as training goes on", network,
                 {"layers that grew": (last > first).mean(), "largest growth": (last / first).max()},
                 (last > first).mean() > 0.5),
        Evidence(f"the product of norms reaches 1e{PRODUCT_OF_NORMS:.0f}", network,
                 {"log10, first": product[0], "log10, largest": product.max(), "log10": product[-1]},
                 bool(product.max() >= PRODUCT_OF_NORMS) if network == SAID_OF else None),
        Evidence("the product of norms grows", network,
                 {"log10, first": product[0], "log10, least": product.min(), "log10": product[-1]},
                 product[-1] > product[0]),
        Evidence("the network is trained meanwhile", network,
                 {"accuracy on training images, first": accuracy[0], "accuracy on training images": accuracy[-1]},
                 accuracy[-1] > 2 * accuracy[0]),
    ]  # fmt: skip


def variance_evidence(run: Run, network: str) -> list[Evidence]:
    """Return what a run says of the claims around Figure 2 (and the right half of Figure 3)."""
    series = variances(run)
    first = np.array([s.values[0] for s in series.values()])
    last = np.array([s.values[-1] for s in series.values()])
    found = [
        Evidence("input variances are small at the start", network,
                 {"layers": len(series), "below one": (first < 1).mean(), "largest": first.max()}, (first < 1).all()),
        Evidence("during training several of them exceed one by a large margin", network,
                 {"above one": (last > 1).mean(), "above ten": (last > 10).mean(), "largest": last.max()},
                 (last > 10).sum() >= 2),
        _exponential("their product grows about exponentially", network, product_of_variances(run)),
    ]  # fmt: skip
    return found + reduction_evidence(run, network)


def reduction_evidence(run: Run, network: str) -> list[Evidence]:
    """Return the evidence of a run for the product that the paper reports as 1e-25, under each reading."""
    courses = [("1/sigma (of the mean variance)", -product_of_variances(run).values / 2)]
    courses += [(words, run.series(name).values) for name, words in REDUCTIONS if name in run.names]
    normalized = len(courses) > 1
    return [
        Evidence(
            f"the product of {words} falls to 1e{PRODUCT_OF_INVERSE_SIGMA:.0f}" if normalized
            else f"the product of {words}, if there were normalizers",
            network,
            {"log10, first": values[0], "log10, least": values.min(), "log10": values[-1]},
            bool(values.min() <= PRODUCT_OF_INVERSE_SIGMA) if normalized and network == SAID_OF else None,
        )
        for words, values in courses
    ]  # fmt: skip


def _exponential(claim: str, network: str, logs: Series) -> Evidence:
    """Judge exponential growth by a linear fit of the logarithms; fewer than three points decide nothing."""
    measured = {"log10, first": logs.values[0], "log10, largest": logs.values.max(), "log10": logs.values[-1]}
    if len(logs.steps) < 3:
        return Evidence(claim, network, measured, None)
    slope, straight = fit_line(np.asarray(logs.steps, dtype=float), logs.values)
    measured |= {"log10 per 1000 updates": 1000 * slope, "R^2": straight}
    return Evidence(claim, network, measured, slope > 0 and straight >= STRAIGHT)


def certified_evidence(folder: Path, network: str) -> list[Evidence]:
    """Return the certified end-to-end constants at the start and at the end of a run."""
    files = [folder / "start.json", folder / "end.json"]
    if not all(file.exists() for file in files):
        return []
    start, end = (Result.from_dict(json.loads(file.read_text())) for file in files)
    found = []
    for key, words in (
        ("variance_floor", "certified end-to-end constant, on the variance floor"),
        ("without_normalizers", "certified constant of the same weights without normalizers"),
        ("lower", "attained end-to-end constant"),
    ):
        first, last = start.end_to_end.get(key), end.end_to_end.get(key)
        if first is not None and last is not None:
            measured = {"log10, first": first.log10, "log10": last.log10}
            found.append(Evidence(words, network, measured, None))
    return found


#: The evidence for each figure.
_PARTS = {
    "fig1": (weight_norm_evidence,),
    "fig2": (variance_evidence,),
    "fig3": (weight_norm_evidence, variance_evidence),
}


def evidence_of(figure: str, runs: Mapping[str, Run], folder: Path) -> list[Evidence]:
    """Return the evidence of runs for every claim about a figure, then their certified constants."""
    found: list[Evidence] = []
    for network, run in runs.items():
        for part in _PARTS[figure]:
            found += part(run, network)
        found += certified_evidence(folder / network, network)
    return found


def command_of(figure: str, scale: str, seed: int, *, certify: bool = True, located: bool = False) -> str:
    """Return the command that reproduces a figure, with a placeholder for the data folder.

    >>> command_of("fig1", "laptop", 0, certify=False, located=True)
    'normscope reproduce fig1 --scale laptop --seed 0 --no-certify --data-root DIR'
    """
    parts = [f"normscope reproduce {figure} --scale {scale} --seed {seed}"]
    return " ".join(parts + ["--no-certify"] * (not certify) + ["--data-root DIR"] * located)


def facts(
    figure: str,
    scale: str,
    settings: Sequence[TrainingSetting],
    evidence: Sequence[Evidence],
    *,
    certify: bool = True,
    located: bool = False,
) -> dict[str, Any]:
    """Return the JSON form of a reproduction: command, settings, versions and evidence."""
    return {
        "kind": "reproduction",
        "figure": figure,
        "scale": scale,
        "command": command_of(figure, scale, settings[0].seed, certify=certify, located=located),
        "settings": [s.to_dict() for s in settings],
        "versions": {
            "normscope": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
        "evidence": [e.to_dict() for e in evidence],
    }
