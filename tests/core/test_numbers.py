"""Numbers out of range are refused with what came."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.core.numbers import check_count, check_fraction, parse_shape


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


def test_shapes() -> None:
    """Shapes are read with commas or crosses, or are numbers."""
    assert (parse_shape("16"), parse_shape("3x32x32"), parse_shape((2, 3))) == ((16,), (3, 32, 32), (2, 3))


@pytest.mark.parametrize("shape", ["", "a", "3,a", "3,0", "0,3", "-1", (-1,), "3,,3", "2.5", "3;4", ("a",)])
def test_what_is_no_shape(shape: Any) -> None:
    """Anything but positive integers is refused."""
    with pytest.raises(InputError, match="positive integers"):
        parse_shape(shape)


@pytest.mark.parametrize("text", ["99999999999999999999", "999999,999999,999999", "268435457"])
def test_shapes_that_fit_into_no_memory(text: str) -> None:
    """They are refused before anything is loaded."""
    with pytest.raises(InputError, match="at most 268435456 numbers"):
        parse_shape(text)
