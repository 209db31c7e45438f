"""The parts of an error: identities from five losses, and what the summary of the slides leaves out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.core.errors import InputError
from normscope.generalization import decompose

losses = st.floats(0.0, 10.0)


@given(losses, losses, losses, losses, losses, losses)
def test_the_parts_add_up(truth: float, best: float, trained: float, on_data: float, least: float, sup: float) -> None:
    """Whatever the five losses are."""
    parts = decompose(
        truth=truth,
        best=best,
        trained=trained,
        trained_on_data=on_data,
        minimizer_on_data=least,
        largest_deviation=sup,
    )
    assert all(abs(r) <= 1e-13 * 10 for r in parts.residuals().values())
    assert parts.total == pytest.approx(parts.slides_total + parts.selection, abs=1e-12)
    assert parts.bound == pytest.approx(parts.optimization + 2 * sup)


def test_a_missing_part_is_seen() -> None:
    """The check can fail."""
    parts = decompose(truth=0.0, best=1.0, trained=3.0, trained_on_data=2.0, minimizer_on_data=1.5)
    assert parts.adds_up()
    assert parts.bound is None
    wrong = type(parts)(**{**parts.__dict__, "selection": 0.0})
    assert not wrong.adds_up()


def test_wrong_losses() -> None:
    """Finite numbers only."""
    with pytest.raises(InputError, match="finite"):
        decompose(truth=0.0, best=math.nan, trained=1.0, trained_on_data=1.0, minimizer_on_data=1.0)
