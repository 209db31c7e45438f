"""What a run's configuration says: model, layers, probe, versions, commit, start."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from normscope.monitor.quantities import charts, descriptions
from normscope.monitor.view import View


def run_facts(model: nn.Module, view: View, name: str) -> dict[str, Any]:
    """Return the facts of a run that are known at its start."""
    from normscope import __version__

    return {
        "model": name or type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "probe": [list(t.shape) for t in view.inputs],
        "labelled": view.labels is not None,
        "layers": [layer.name for layer in view.layers()],
        "normalizers": [{"name": n.name, "kind": n.site.kind} for n in view.normalizers()],
        "notes": list(view.notes),
        "metrics": [d.to_dict() for d in descriptions()],
        "charts": [chart.to_dict() for chart in charts()],
        "versions": {"normscope": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Return the git commit of the working directory, or ``None`` outside of a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
