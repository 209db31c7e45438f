"""Metrics that a user logs: kept until they are written, and read late so that nothing waits for an accelerator."""

import math
import operator
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.monitor.quantities import descriptions


def one_number(value: object) -> float:
    """Return a scalar of any type as a float.

    Raises:
        InputError: if it holds more than one number, or none.

    >>> one_number(torch.tensor([2.0]))
    2.0
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(f"Expected a scalar metric, got a tensor of shape {tuple(value.shape)}.")
        if value.is_complex():
            raise InputError("Expected a real metric, got a complex tensor.")
        return float(value.detach().reshape(()))
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"Expected a scalar metric, got {type(value).__name__}.") from None


def whole_number(value: Any, name: str, least: int = 0, *, hint: str = "") -> int:
    """Return an argument, such as a step, as an int.

    Raises:
        InputError: if it is not a whole number, or is too small.

    >>> whole_number(torch.tensor(3), "step")
    3
    """
    try:
        number = operator.index(value)
    except TypeError:
        shown = "a tensor" if isinstance(value, Tensor) else f"{value!r} ({type(value).__name__})"
        raise InputError(f"Expected {name} to be a whole number, got {shown}.{hint}") from None
    if number < least:
        raise InputError(f"Expected {name} >= {least}, got {number}.")
    return number


def deferred(value: object) -> Tensor | float:
    """Return a scalar as a float or, on an accelerator, as a copy to be read later without waiting now.

    >>> deferred(3), deferred(torch.tensor([2.0]))
    (3.0, 2.0)
    """
    if isinstance(value, Tensor) and on_accelerator(value) and value.numel() == 1 and not value.is_complex():
        return value.detach().clone()
    return one_number(value)


def on_accelerator(value: object) -> bool:
    """Return whether reading a value would wait for an accelerator."""
    return isinstance(value, Tensor) and value.device.type != "cpu" and not isinstance(value, torch.nn.Parameter)


@cache
def full_name(name: str) -> str:
    """Return the name that a metric has in the run: with its own group, or ``train/...`` for a name without one.

    The names of the monitor's own metrics are not given to others.

    >>> full_name("loss"), full_name("val/acc"), full_name("norm/0")
    ('train/loss', 'val/acc', 'train/norm/0')
    """
    return name if "/" in name and not any(d.matches(name) for d in descriptions()) else f"train/{name}"


class UserMetrics:
    """The metrics of some steps that have not been written yet.

    >>> own = UserMetrics()
    >>> own.keep(1, {"loss": 0.5, "accuracy": 0.25})
    >>> own.keep(2, {"loss": 0.4, "nothing": None})
    >>> own.pop_all()
    {1: {'train/loss': 0.5, 'train/accuracy': 0.25}, 2: {'train/loss': 0.4}}
    >>> bool(own)
    False
    """

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, Tensor | float]] = {}
        self._broken: dict[str, tuple[int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, step: int, metrics: Mapping[str, object]) -> None:
        """Keep metrics of a step, all or none of them; values of ``None`` are ignored."""
        given = {full_name(name): deferred(value) for name, value in metrics.items() if value is not None}
        if given:
            self._waiting.setdefault(step, {}).update(given)
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._broken.setdefault(name, (step, value))

    def is_ready(self) -> bool:
        """Return whether no value has to be fetched from an accelerator."""
        return not any(on_accelerator(value) for given in self._waiting.values() for value in given.values())

    def latest(self) -> dict[str, float]:
        """Return the last value of each metric that is not on an accelerator, without removing it."""
        last = {name: value for given in self._waiting.values() for name, value in given.items()}
        return {name: one_number(value) for name, value in last.items() if not on_accelerator(value)}

    def pop_broken(self) -> dict[str, tuple[int, float]]:
        """Return where each metric was first NaN or infinite since the last call."""
        found, self._broken = self._broken, {}
        return found

    def pop_all(self) -> dict[int, dict[str, float]]:
        """Remove and return everything by step."""
        found = {
            step: {name: one_number(value) for name, value in given.items()} for step, given in self._waiting.items()
        }
        self._waiting = {}
        return found
