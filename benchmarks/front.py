"""The first answer: a first look and a check in units of a forward pass of one sample, torchinfo's summary beside."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.analyze import SMALL, SUBJECTS, Subject
from benchmarks.fresh import fresh, here
from benchmarks.machine import environment

Say = Callable[[str], None]
#: What is measured, by the name of its task.
TASKS = ("first look", "check", "torchinfo")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        subjects: the networks.
        repeats: forward passes measured.
        isolated: whether every measurement gets a process of its own.
    """

    subjects: tuple[Subject, ...] = tuple(s for s in SUBJECTS if s.name != "resnet18")
    repeats: int = 5
    isolated: bool = True


QUICK = Settings(SMALL[:1], repeats=1, isolated=False)


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure every network, each task in a fresh process; yield after each."""
    ask = fresh if settings.isolated else here
    rows = []
    for subject in settings.subjects:
        network = {"name": subject.name, "arguments": subject.arguments, "length": subject.length}
        unit = statistics.median(ask("forward", batch=1, repeats=settings.repeats, **network)["cpu"])
        row: dict[str, Any] = {"name": subject.label, "forward": unit}
        for task in TASKS:
            row[task] = ask(task, **network)
            said = row[task].get("cpu")
            say(f"{subject.label}, {task}: " + ("not installed" if said is None else f"{said:.2f} CPU s"))
        rows.append(row)
        yield {"environment": environment(), "rows": rows}
