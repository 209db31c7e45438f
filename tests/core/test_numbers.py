"""Numbers out of range are refused with what came."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.core.numbers import check_count, check_fraction


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, -1.0, 2, math.nan, math.inf, "0.5", None, True])
def test_what_is_no_fraction(value: Any) -> None:
    """The ends are not in, and no text is."""
    with pytest.raises(InputError, match="Expected a width to be between 0 and 1, got"):
        check_fraction(value, "a width")


@pytest.mark.parametrize("value", [0, -3, 2.0, math.nan, "3", None, True])
def test_what_is_no_count(value: Any) -> None:
    """Whole numbers only."""
    with pytest.raises(InputError, match="Expected points to be an integer of at least 1, got"):
        check_count(value, "points", least=1)


def test_numbers_of_numpy_are_numbers() -> None:
    """They come out of arrays of settings."""
    check_fraction(np.float32(0.5), "a width")
    check_count(np.int64(1), "points", least=1)
