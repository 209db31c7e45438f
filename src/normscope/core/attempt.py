"""One part of many: what goes wrong in it is told, and the others are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from normscope.core.errors import NormscopeError

T = TypeVar("T")


def attempt(what: str, step: Callable[[], T], default: Any, told: list[str]) -> T:
    """Return what a step gives; if it fails, a default, and say what is missing and why.

    Args:
        what: the part, as it is named in the message.
        step: computes it.
        default: stands for it where it cannot be computed; never a number that could be taken for a bound.
        told: messages, to which a failure is added.

    >>> told = []
    >>> attempt("the table of depths", lambda: 1 // 0, 0, told), told[0].partition(":")[0]
    (0, 'the table of depths is left out (ZeroDivisionError')
    """
    try:
        return step()
    except Exception as error:
        told.append(failure(what, error))
        return default


def failure(what: str, error: Exception) -> str:
    """Return a failure in one line: what is missing, why, and what to do."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, NormscopeError):
        return f"{what} is left out: {first}"
    return f"{what} is left out ({type(error).__name__}: {first}); the rest is complete: please report this"
