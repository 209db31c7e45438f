"""The state of a training run in a file: written atomically, and enough to resume as if never stopped."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.core.files import replacing
from normscope.graph.safe_load import PICKLED, FileKind, safe_load

VERSION = 1
KIND = FileKind("the state of a training run", InputError, PICKLED, "It is written by a training run.")


@dataclass
class Progress:
    """How far a run has come, besides weights and optimizer."""

    losses: list[float] = field(default_factory=list)  #: mean loss of each whole epoch so far
    steps: int = 0  #: number of updates so far
    seconds: float = 0.0  #: wall time spent so far


def save_state(
    file: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: torch.Generator,
    progress: Progress,
    settings: dict[str, Any],
) -> None:
    """Write weights, optimizer, generators and progress; a reader sees the old file or the new one, never a part."""
    state = {
        "version": VERSION,
        "settings": settings,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "order": order.get_state(),
        "random": torch.get_rng_state(),
        "progress": asdict(progress),
    }
    with replacing(file) as temporary:
        torch.save(state, temporary)


def restore_state(
    file: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: torch.Generator,
    settings: dict[str, Any],
) -> Progress:
    """Restore a run to the state in its file, the global generator included."""
    state = safe_load(Path(file), KIND)
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise InputError(f"{file} is not the state of a training run (version {VERSION}).")
    differing = sorted(k for k in settings if state["settings"].get(k) != settings[k])
    if differing:
        was = ", ".join(f"{key}={state['settings'].get(key)} (now {settings[key]})" for key in differing)
        raise InputError(f"{file} was written with other settings ({was}). Use those, or another file.")
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(f"{file} belongs to another network: {str(error).splitlines()[0]}") from error
    order.set_state(state["order"])
    torch.set_rng_state(state["random"])
    return Progress(**state["progress"])


def steps_done(file: str | os.PathLike[str], *, epochs: bool = False) -> int:
    """Return how many updates, or whole epochs, the run in a file has made; none if there is no file.

    >>> steps_done("nowhere.pt")
    0
    """
    if not Path(file).exists():
        return 0
    progress = Progress(**safe_load(Path(file), KIND)["progress"])
    return len(progress.losses) if epochs else progress.steps
