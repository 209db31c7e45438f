"""Runs as a monitor leaves them, written point by point."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.monitor.quantities import charts
from normscope.monitor.sinks.folder import RunFolder

METRICS: list[dict[str, Any]] = [
    {"pattern": "norm/*", "kind": "lower", "words": "spectral norm of a layer", "statement": "normscope norm",
     "log10": False, "domain": "all inputs"},
    {"pattern": "probe/loss", "kind": "estimate", "words": "loss on the probe batch", "statement": "", "log10": False,
     "domain": "the probe batch"},
    {"pattern": "product/folded_log10", "kind": "lower", "words": "product of the folded norms", "statement": "",
     "log10": True, "domain": "all inputs"},
]  # fmt: skip
CONFIG: dict[str, Any] = {
    "model": "net",
    "parameters": 12,
    "probe": [[2, 3]],
    "layers": ["a", "b"],
    "normalizers": [],
    "notes": ["the probe is small"],
    "metrics": METRICS,
    "charts": [chart.to_dict() for chart in charts()],
    "started": "2025-01-01T00:00:00+00:00",
}


def begin(folder: Path, step: int | None = None, **config: Any) -> RunFolder:
    """Begin a run, or go on with it, as a monitor does."""
    run = RunFolder(folder)
    run.begin({**CONFIG, **config}, step)
    return run


def written(folder: Path, points: Mapping[int, Mapping[str, float]], **config: Any) -> Path:
    """Write a whole run and return its folder."""
    run = begin(folder, **config)
    for step, metrics in points.items():
        run.log(metrics, step=step)
    run.close()
    return folder


def large(folder: Path, points: int = 100_000, layers: int = 200, probes: int = 400) -> Path:
    """Write a long run of a deep network by hand: a loss at each step, norms of every layer at some."""
    folder.mkdir(parents=True)
    names = [f"blocks.{i // 4}.layer{i % 4}" for i in range(layers)]
    (folder / "config.json").write_text(json.dumps({**CONFIG, "format": 1, "layers": names}))
    every = points // probes
    lines = []
    for step in range(1, points + 1):
        metrics = {"train/loss": 2.0 + (step * 7919 % 1000) / 1000 - step / points, "train/accuracy": step / points}
        if step == points // 3:
            metrics["train/loss"] = 50.0  # the one peak that no thinning may lose
        if step % every == 0:
            turn = step * 31 % 17
            metrics |= {f"norm/{name}": 1 + i / 50 + turn / 100 for i, name in enumerate(names)}
            metrics |= {f"folded/{name}": 2 + i / 40 + turn / 90 for i, name in enumerate(names)}
        lines.append(json.dumps({"step": step, "time": step / 100, "metrics": metrics}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder
