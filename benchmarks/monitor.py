"""What the monitor costs: the same training with and without it, in turns, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.machine import environment
from normscope.graph.guard import same_bits
from normscope.monitor.budget import PRESETS, Budget
from normscope.monitor.monitor import Monitor
from normscope.zoo.networks.mlp import relu10
from normscope.zoo.networks.resnet import ResNet
from normscope.zoo.randomness import seeded

Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """A training to be measured.

    Attributes:
        name: of the network.
        build: makes it.
        batch: samples of a step.
        probe: samples of the probe.
        probes: probes after which a run ends.
        steps: updates after which it ends at the latest.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: int
    probe: int
    probes: int
    steps: int


@dataclass(frozen=True)
class Settings:
    """What to train, and with which presets."""

    cases: tuple[Case, ...] = (
        Case("relu10 (width 512), BatchNorm", lambda: relu10("bn"), 128, 64, 4, 2000),
        Case("ResNet-18 at 32x32", lambda: ResNet(classes=10, image_size=32), 64, 16, 2, 300),
    )
    presets: tuple[str, ...] = ("economy", "standard")


QUICK = Settings((Case("relu10 (width 8), BatchNorm", lambda: relu10("bn", width=8), 8, 4, 1, 40),), ("economy",))


class Training:
    """A training that is made step by step, so that two of them can take turns on a machine that others use too.

    Args:
        case: what is trained.
        preset: of the monitor; ``None`` for a training without one.
    """

    def __init__(self, case: Case, preset: str | None) -> None:
        with seeded(0):
            self.model = case.build().train()
            self.data = torch.randn(8, case.batch, 3, 32, 32), torch.randint(0, 10, (8, case.batch))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.losses: list[float] = []
        self.wall, self.cpu, self.setup = 0.0, 0.0, 0.0
        self._begin = time.perf_counter()
        self.monitor: Monitor | None = None
        if preset is not None:
            probe = self.data[0][0][: case.probe], self.data[1][0][: case.probe]
            self.monitor = Monitor(self.model, probe, preset, optimizer=self.optimizer, every=1).begin()
            self.setup = time.perf_counter() - self._begin
            expected = self.monitor.budget.expected
            self.monitor.budget = Budget(PRESETS[preset].budget, self.clock)  # the other training's time is not its own
            self.monitor.budget.expected = expected
            self._begin = time.perf_counter()
            self.monitor.budget.start()

    def clock(self) -> float:
        """Return the seconds of this training alone; it runs during a step."""
        return self.wall + time.perf_counter() - self._begin

    def step(self, index: int) -> None:
        """Make one update, and tell the monitor."""
        self._begin, cpu = time.perf_counter(), time.process_time()
        x, y = self.data[0][index % 8], self.data[1][index % 8]
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.monitor is not None:
            self.monitor.step(loss=loss)
        self.losses.append(float(loss.detach()))
        self.wall += time.perf_counter() - self._begin
        self.cpu += time.process_time() - cpu


def compare(case: Case, preset: str) -> dict[str, Any]:
    """Return what one training costs with the monitor and without, both made in turns."""
    plain, beside = Training(case, None), Training(case, preset)
    monitor = beside.monitor
    if monitor is None:
        raise RuntimeError("a training with a preset has a monitor")
    steps = 0
    while steps < case.steps and monitor.probes <= case.probes:  # the first one is part of the setup
        plain.step(steps)
        beside.step(steps)
        steps += 1
    return {
        "name": f"{case.name}, {preset}",
        "budget": PRESETS[preset].budget,
        "batch": case.batch,
        "steps": steps,
        "step_cpu": plain.cpu / steps,
        "probes": monitor.probes - 1,
        "probe_seconds": monitor.budget.expected,
        "setup_seconds": beside.setup,
        "share": monitor.budget.spent / beside.wall,
        "overhead_cpu": beside.cpu / plain.cpu - 1,
        "identical": plain.losses == beside.losses and _same(plain.model, beside.model),
    }


def _same(one: nn.Module, two: nn.Module) -> bool:
    """Return whether two models agree in every bit."""
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(same_bits(a, b) for a, b in pairs)


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure every case with every preset; yield after each."""
    rows: list[dict[str, Any]] = []
    for case in settings.cases:
        for preset in settings.presets:
            row = compare(case, preset)
            rows.append(row)
            say(
                f"{row['name']}: {row['probes']} probes in {row['steps']} steps, {100 * row['share']:.2f} % of its "
                f"time, CPU time {100 * row['overhead_cpu']:+.2f} %, "
                f"{'identical' if row['identical'] else 'NOT IDENTICAL'}"
            )
            yield {"environment": environment(), "rows": rows}
