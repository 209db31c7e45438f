"""Errors a user can cause, one small class per mistake: what was expected, what was found, what to do."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

#: How many names a message lists.
LISTED = 12


def listed(names: Sequence[str], most: int = LISTED) -> str:
    """Return the first names, by default at most a dozen, and how many more there are.

    >>> listed(["a", "b"])
    'a, b'
    >>> listed([str(i) for i in range(14)])
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6, most: int = LISTED) -> str:
    """Return a hint for an unknown name: the nearest known names or, if none is near, a list of them.

    >>> suggestion("resnet19", ["resnet18", "vgg11"]), suggestion("x", ["b", "a"])
    ('Did you mean resnet18?', 'Known names: b, a.')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=cutoff)
    return f"Did you mean {' or '.join(near)}?" if near else f"Known names: {listed(names, most) or 'none'}."


class NormscopeError(Exception):
    """Base of every error a user can cause; the command line turns it into exit code 2."""


class ModelNotFoundError(NormscopeError):
    """The model specification names no file, module, factory or known model."""


class FactoryError(NormscopeError):
    """The user's factory raised, or did not return an ``nn.Module``."""


class WeightsError(NormscopeError):
    """A checkpoint cannot be read safely, or does not fit the model."""


class InputError(NormscopeError):
    """Data or example input of the wrong shape, dtype or content."""


class ModelFailedError(InputError, RuntimeError):
    """The model raised an exception; also a RuntimeError, since another way of running the model may avoid it."""


class NonFiniteError(NormscopeError):
    """A weight or an input holds NaN or infinity."""


class NonFiniteInputError(NonFiniteError, InputError):
    """The data holds NaN or infinity."""


class CaptureError(NormscopeError):
    """The model could not be run or recorded as a graph."""


class StatefulError(CaptureError):
    """The model returns a different result after it has been called: forward() changes what it depends on."""


class RandomError(CaptureError):
    """The model draws random numbers in evaluation mode: two runs on one input differ."""


class NotEnoughMemoryError(NormscopeError):
    """The requested computation does not fit into memory."""


class OutOfTimeError(NormscopeError):
    """The time limit was reached before the end of a search."""


class MissingDependencyError(NormscopeError):
    """An optional library is needed for this and is not installed."""


class RuleError(NormscopeError):
    """A registered rule is unusable, or a rule is registered twice."""


class StateChangedError(NormscopeError):
    """Running the model changed its parameters, or would turn it into another model."""


@contextmanager
def failures_of_the_model() -> Iterator[None]:
    """Turn an exception that a model raises into :class:`ModelFailedError`; memory that runs out stays what it is.

    >>> with failures_of_the_model():
    ...     raise KeyError("table")
    Traceback (most recent call last):
        ...
    normscope.core.errors.ModelFailedError: The model failed with KeyError: 'table'
    """
    try:
        yield
    except (NormscopeError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            raise
        raise ModelFailedError(f"The model failed with {type(error).__name__}: {error}") from error


T = TypeVar("T")


def attempt(what: str, step: Callable[[], T], default: Any, messages: list[str]) -> T:
    """Return the result of a step or, if it fails, a default, and say what is missing and why.

    The default is never a number that could be taken for a bound; a failure is added to the messages.

    >>> messages = []
    >>> attempt("the table of depths", lambda: 1 // 0, 0, messages), messages[0].partition(":")[0]
    (0, 'the table of depths is left out (ZeroDivisionError')
    """
    try:
        return step()
    except Exception as error:
        messages.append(failure(what, error))
        return default


#: The message of a result that was stopped with Ctrl-C.
STOPPED = "stopped early: the values shown hold, the missing ones were not computed"


def unless_stopped(what: str, step: Callable[[], T], default: Any, messages: list[str]) -> T:
    """Return the result of a step as :func:`attempt` does; after Ctrl-C it and every later step return their defaults.

    >>> messages = [STOPPED]
    >>> unless_stopped("the bound", lambda: 1, None, messages) is None
    True
    """
    if STOPPED in messages:
        return default
    try:
        return attempt(what, step, default, messages)
    except KeyboardInterrupt:
        messages.append(STOPPED)
        return default


def failure(what: str, error: Exception) -> str:
    """Return a failure in one line: what is missing, why, and what to do."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, NormscopeError):
        return f"{what} is left out: {first}"
    return f"{what} is left out ({type(error).__name__}: {first}). The rest is complete. Please report this."
