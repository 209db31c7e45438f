"""The study at its smallest scale is repeatable, and its charts hold what its claims are judged by."""

from __future__ import annotations

from normscope.papers.study import run_study


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = (run_study("wn-activation", "smoke", seed=3) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert first.settings["seed"] == 3
