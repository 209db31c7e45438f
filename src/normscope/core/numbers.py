"""Numbers a user sets, checked: the same ranges in Python and on the command line."""

import math
from collections.abc import Sequence
from numbers import Integral, Real

from normscope.core.errors import InputError

#: The most numbers in one input: more are a typing mistake, or do not fit into memory.
MOST_NUMBERS = 2**28


def parse_shape(shape: Sequence[int] | str) -> tuple[int, ...]:
    """Return the shape of an input, given as numbers or as text.

    Raises:
        InputError: if it is not a list of positive integers, or has too many entries.

    >>> parse_shape("3,224,224")
    (3, 224, 224)
    """
    parts = shape.replace("x", ",").split(",") if isinstance(shape, str) else shape
    try:
        sizes = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise InputError(
            f"Expected a shape (--input) of positive integers without the batch axis, such as 3,224,224; got {shape!r}."
        )
    if math.prod(sizes) > MOST_NUMBERS:
        raise InputError(f"Expected an input (--input) of at most {MOST_NUMBERS} numbers, got {shape!r}.")
    return sizes


def check_fraction(value: object, what: str) -> None:
    """Raise unless a value is a number strictly between 0 and 1.

    >>> check_fraction(0.5, "a probability")
    >>> check_fraction(2.0, "a probability")
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: Expected a probability to be between 0 and 1, got 2.0.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < 1:
        raise InputError(f"Expected {what} to be between 0 and 1, got {value!r}.")


def check_count(value: object, what: str, *, least: int) -> None:
    """Raise unless a value is a whole number that is large enough.

    >>> check_count(3, "points", least=1)
    >>> check_count(0, "points", least=1)
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: Expected points to be an integer of at least 1, got 0.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"Expected {what} to be an integer of at least {least}, got {value!r}.")
