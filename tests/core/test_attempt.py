"""One part of many: a failure is told, and the rest kept."""

from __future__ import annotations

import pytest

from normscope.core.attempt import attempt
from normscope.core.errors import InputError

pytestmark = pytest.mark.parts_may_fail


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("math domain error\nmore"), "x is left out (ValueError: math domain error); the rest is complete"),
        (MemoryError(), "x is left out (MemoryError: )"),
        (RuntimeError("\n\n  can't allocate memory"), "x is left out (RuntimeError: can't allocate memory)"),
        (InputError("the data is empty"), "x is left out: the data is empty"),
    ],
)
def test_a_failure_is_one_line(error: Exception, said: str) -> None:
    """It names the part and the cause; what the user can mend is said without a class."""
    told: list[str] = []

    def step() -> int:
        raise error

    assert attempt("x", step, 7, told) == 7
    assert len(told) == 1
    assert told[0].startswith(said)
    assert "\n" not in told[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_it(error: type[BaseException]) -> None:
    """Ctrl-C is no failure of a part."""

    def step() -> None:
        raise error

    with pytest.raises(error):
        attempt("x", step, None, [])


def test_what_works_is_returned() -> None:
    """And nothing is told."""
    told: list[str] = []
    assert attempt("x", lambda: 3, 0, told) == 3
    assert not told
