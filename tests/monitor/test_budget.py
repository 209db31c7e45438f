"""The monitor's share of the time."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from torch import nn

from normscope.core.errors import InputError
from normscope.monitor.budget import PRESETS, Budget, gap_after
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import QUANTITIES, quantities_in


class Clock:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.time


@pytest.mark.parametrize("share", [0.02, 0.05, 0.5])
def test_what_is_spent_stays_within_the_share(share: float) -> None:
    clock = Clock()
    budget = Budget(share, clock)
    budget.start()
    budget.expected = 1.0
    draw = random.Random(0)
    probes = 0
    for _ in range(5000):
        clock.time += draw.uniform(0.01, 0.3)  # a training step
        if budget.allows():
            with budget.spending():
                clock.time += draw.uniform(0.5, 1.0)  # never more than expected
            probes += 1
        assert budget.spent <= share * budget.elapsed()
    assert probes > 5
    assert budget.used() > 0.7 * share  # and it is made use of


def test_a_dearer_probe_holds_up_the_next_ones() -> None:
    clock = Clock()
    budget = Budget(0.1, clock)
    budget.start()
    budget.expected = 1.0
    clock.time += 16
    assert not budget.allows()  # a probe half as dear again would be too much
    clock.time += 1
    assert budget.allows()
    with budget.spending():
        clock.time += 5.0
    budget.expected = 5.0
    clock.time += 115
    assert not budget.allows()  # twelve and a half seconds of 137
    clock.time += 5
    assert budget.allows()


def test_time_counts_also_when_a_probe_fails() -> None:
    clock = Clock()
    budget = Budget(0.1, clock)
    budget.start()

    def fail() -> None:
        with budget.spending():
            clock.time += 2.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert budget.spent == 2.0


def test_no_limit() -> None:
    budget = Budget(math.inf, lambda: 0.0)
    budget.expected = 1e9
    assert budget.allows()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, math.nan])
def test_other_shares_are_refused(share: float) -> None:
    with pytest.raises(InputError, match="Expected a budget"):
        Budget(share)


def test_what_is_being_spent_counts() -> None:
    """Whoever asks in the middle of a probe is not told that there is time for the next."""
    clock = Clock()
    budget = Budget(0.1, clock)
    budget.start()
    budget.expected = 1.0
    clock.time += 20
    assert budget.allows()
    with budget.spending():
        clock.time += 1
        assert not budget.allows()
    assert not budget.allows()


def test_budgets_and_quantities() -> None:
    assert PRESETS["economy"].budget == 0.02
    assert PRESETS["standard"].budget == 0.05
    assert not any(QUANTITIES[name].gradient for name in quantities_in("economy"))
    assert set(quantities_in("economy")) < set(quantities_in("standard")) < set(quantities_in("full"))
    assert {kind.preset for kind in QUANTITIES.values()} <= {"", *PRESETS}
    assert [p.certify > 0 for p in PRESETS.values()] == [False, False, True]


def test_others_are_refused() -> None:
    with pytest.raises(InputError, match="economy, standard, full"):
        Monitor(nn.Linear(1, 1), None, "cheap")


def test_probes_are_dense_at_the_start_and_then_geometric() -> None:
    """The first steps are all probed, and a run a hundred times as long has a few times as many probes."""

    def schedule(steps: int) -> list[int]:
        probes = [0]
        while probes[-1] + gap_after(probes[-1], 10) <= steps:
            probes.append(probes[-1] + gap_after(probes[-1], 10))
        return probes

    assert schedule(8) == list(range(9))
    assert len(schedule(1_000_000)) < 1_500 < 15 * len(schedule(1_000))
    gaps = [b - a for a, b in itertools.pairwise(schedule(100_000))]
    assert gaps == sorted(gaps)
