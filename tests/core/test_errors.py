"""Errors: one base that the command line catches, one class per mistake, each with its description."""

from __future__ import annotations

import inspect

import pytest

from normscope.core import errors
from normscope.core.errors import (
    InputError,
    ModelFailedError,
    NonFiniteError,
    NonFiniteInputError,
    NormscopeError,
    attempt,
    failures_of_the_model,
)

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_ours_and_described(kind: type[Exception]) -> None:
    """And carries its message unchanged."""
    assert issubclass(kind, NormscopeError)
    assert kind.__doc__
    assert kind.__name__.endswith("Error")
    assert str(kind("what holds, what came, what to do")) == "what holds, what came, what to do"


def test_infinite_data_is_both_mistakes() -> None:
    """It can be caught as wrong input and as a number that is none."""
    assert issubclass(NonFiniteInputError, InputError)
    assert issubclass(NonFiniteInputError, NonFiniteError)


def test_programming_mistakes_are_not_swallowed() -> None:
    """The base is no parent of Python's own errors, nor their child."""
    assert not issubclass(NormscopeError, ValueError | RuntimeError)
    assert not issubclass(ValueError, NormscopeError)


pytestmark = pytest.mark.parts_may_fail


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("math domain error\nmore"), "x is left out (ValueError: math domain error). The rest is complete"),
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


@pytest.mark.parametrize("kind", [RuntimeError, LookupError, SystemExit])
def test_what_a_model_raises_becomes_one_error_of_ours(kind: type[BaseException]) -> None:
    """Also a model that ends the process."""
    with (
        pytest.raises(ModelFailedError, match=f"The model failed with {kind.__name__}: enough"),
        failures_of_the_model(),
    ):
        raise kind("enough")


@pytest.mark.parametrize("kind", [InputError, MemoryError, KeyboardInterrupt])
def test_other_failures_stay_what_they_are(kind: type[BaseException]) -> None:
    """Ours, memory that runs out, and Ctrl-C."""
    with pytest.raises(kind) as caught, failures_of_the_model():
        raise kind("enough")
    assert caught.type is kind
