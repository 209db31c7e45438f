"""What an analysis is asked for is checked before it works, in Python as on the command line."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from normscope import analyze
from normscope.analysis.options import Options
from normscope.core.errors import InputError


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"delta": 2.0}, "Expected delta, a probability, to be between 0 and 1, got 2.0"),
        ({"delta": 0}, "delta, a probability"),
        ({"tolerance": -1}, "Expected tolerance, a relative width, to be between 0 and 1, got -1"),
        ({"tolerance": math.nan}, "got nan"),
        ({"tolerance": "1e-3"}, "got '1e-3'"),
        ({"points": 0}, "Expected points to be an integer of at least 1, got 0"),
        ({"ascent": -1}, "Expected ascent to be an integer of at least 0, got -1"),
        ({"seed": 0.5}, "Expected seed to be an integer of at least 0, got 0.5"),
    ],
)
def test_numbers_out_of_range_are_refused(setting: dict[str, Any], message: str) -> None:
    """By the options themselves, so by everything that takes them."""
    with pytest.raises(InputError, match=message):
        Options(**setting)
    with pytest.raises(InputError, match=message):
        analyze(nn.Linear(2, 2), torch.ones(2, 2), **setting)


def test_what_the_size_of_the_network_chooses_may_be_left_out() -> None:
    """None is no number out of range."""
    assert Options(points=None, ascent=None, tolerance=None) == Options()
    least = {"points": 1, "ascent": 0, "tolerance": 0.5, "delta": 0.5, "seed": 0}
    assert {name: getattr(Options(**least), name) for name in least} == least


def test_single_fields_count_more_than_the_options_they_come_with() -> None:
    """Nothing that is given is dropped, and a field that is none is named."""
    both = analyze(nn.Linear(2, 2), torch.ones(2, 2), options=Options(mode="running", points=1), mode="batch")
    assert both.end_to_end["global"].domain == "inputs in stacked batches of 2"  # type: ignore[union-attr]
    assert Options.of(Options(seed=3), {"points": 2}) == Options(seed=3, points=2)
    with pytest.raises(InputError, match=r"Unknown setting 'sead'. Known settings: mode,"):
        analyze(nn.Linear(2, 2), torch.ones(2, 2), sead=3)
    with pytest.raises(InputError, match="one of 'running', "):
        Options(mode="training")
