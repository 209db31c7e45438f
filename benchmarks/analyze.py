"""Whole analyses in units of a forward pass of a batch of 32, and the memory they need."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.fresh import fresh, here
from benchmarks.machine import environment

Say = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """A network, the length of its token sequences where it reads tokens, and the forwards an analysis may cost."""

    label: str
    name: str
    arguments: dict[str, Any]
    length: int | None = None
    target: float | None = None


SUBJECTS = (
    Subject("resnet18 @224", "resnet18", {}),
    Subject("vit_tiny @224", "vit_tiny", {}),
    Subject("resnet50 @224", "resnet50", {}, target=40.0),
    Subject("gpt 12x768, 128 tokens", "gpt", {"layers": 12, "width": 768, "heads": 12, "context": 128}, length=128),
)
SMALL = (
    Subject("mlp 16-8-2", "mlp", {"hidden": [8], "in_features": 16, "classes": 2}, target=40.0),
    Subject("gpt 1x8, 4 tokens", "gpt", {"layers": 1, "width": 8, "heads": 2, "context": 8, "vocabulary": 8}, length=4),
)


@dataclass(frozen=True)
class Settings:
    """What to analyze.

    Attributes:
        subjects: the networks.
        data: samples given to the analysis.
        unit: samples of the forward pass that is the unit.
        repeats: forward passes measured, half of them before the analysis and half after it.
        isolated: whether every measurement gets a process of its own.
        only: analyze these networks alone, if there are any.
        known: labels not to analyze.
    """

    subjects: tuple[Subject, ...] = SUBJECTS
    data: int = 8
    unit: int = 32
    repeats: int = 5
    isolated: bool = True
    only: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


QUICK = Settings(SMALL, data=2, unit=2, repeats=1, isolated=False)


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure every network: the unit before and after the analysis, each in a fresh process; yield after each."""
    ask = fresh if settings.isolated else here
    rows = []
    for subject in settings.subjects:
        if subject.label in settings.known or (settings.only and subject.name not in settings.only):
            continue
        network = {"name": subject.name, "arguments": subject.arguments, "length": subject.length}
        before = ask("forward", batch=settings.unit, repeats=(settings.repeats + 1) // 2, **network)
        found = ask("analyze", batch=settings.data, **network)
        after = ask("forward", batch=settings.unit, repeats=(settings.repeats + 1) // 2, **network)
        unit = statistics.median(before["cpu"] + after["cpu"])
        forwards = found["cpu"] / unit if unit else float("nan")
        rows.append({"name": subject.label, "forward": unit, "forwards": forwards, "target": subject.target} | found)
        say(f"{subject.label}: {found['cpu']:.1f} CPU s, {forwards:.1f} forwards, {found['memory_mib']:.0f} MiB")
        yield {"environment": environment(), "rows": rows}
