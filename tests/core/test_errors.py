"""Errors: one base that the command line catches, one class per mistake, each with its description."""

from __future__ import annotations

import inspect

import pytest

from normscope.core import errors
from normscope.core.errors import InputError, NonFiniteError, NonFiniteInputError, NormscopeError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


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
