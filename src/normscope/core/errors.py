"""What can go wrong, one small class per mistake: what holds, what came, what to do."""

from __future__ import annotations

#: How many names a message lists.
LISTED = 12


def listed(names: list[str]) -> str:
    """Return at most a dozen names, and how many more there are.

    >>> listed(["a", "b"])
    'a, b'
    >>> listed([str(i) for i in range(14)])
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more'
    """
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


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


class NonFiniteError(NormscopeError):
    """A weight or an input holds NaN or infinity."""


class NonFiniteInputError(NonFiniteError, InputError):
    """The data holds NaN or infinity."""


class CaptureError(NormscopeError):
    """The model could not be run or recorded as a graph."""


class NotEnoughMemoryError(NormscopeError):
    """What is asked for does not fit into memory."""


class MissingDependencyError(NormscopeError):
    """An optional library is needed for this and is not installed."""


class RuleError(NormscopeError):
    """A registered rule is unusable, or a rule is registered twice."""


class StateChangedError(NormscopeError):
    """Running the model changed its parameters, or would turn it into another model."""
