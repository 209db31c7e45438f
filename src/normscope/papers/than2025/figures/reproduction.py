"""A reproduced figure: the evidence of its runs, and the facts one needs to repeat it."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from normscope import __version__
from normscope.monitor.run import Run
from normscope.papers.study import Evidence
from normscope.papers.than2025.figures.evidence import (
    certified_evidence,
    variance_evidence,
    weight_norm_evidence,
)
from normscope.papers.than2025.figures.setting import Setting

#: What each figure speaks of.
_PARTS = {
    "fig1": (weight_norm_evidence,),
    "fig2": (variance_evidence,),
    "fig3": (weight_norm_evidence, variance_evidence),
}


def evidence_of(figure: str, runs: Mapping[str, Run], folder: Path) -> list[Evidence]:
    """Return every claim around a figure with what its runs show, then what the certified constants did."""
    found: list[Evidence] = []
    for network, run in runs.items():
        for part in _PARTS[figure]:
            found += part(run, network)
        found += certified_evidence(folder / network, network)
    return found


def command_of(figure: str, scale: str, seed: int, *, certify: bool = True, located: bool = False) -> str:
    """Return the command that reproduces a figure; the folder of its data is the reader's own.

    >>> command_of("fig1", "laptop", 0, certify=False, located=True)
    'normscope reproduce fig1 --scale laptop --seed 0 --no-certify --data-root DIR'
    """
    parts = [f"normscope reproduce {figure} --scale {scale} --seed {seed}"]
    return " ".join(parts + ["--no-certify"] * (not certify) + ["--data-root DIR"] * located)


def facts(
    figure: str,
    scale: str,
    settings: Sequence[Setting],
    evidence: Sequence[Evidence],
    *,
    certify: bool = True,
    located: bool = False,
) -> dict[str, Any]:
    """Return the JSON form of a reproduction: what was run, with what, and what came of it."""
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
