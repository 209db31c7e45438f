"""Numbers that a user logs: read now, or later so that nothing waits for an accelerator, and kept until written."""

from collections.abc import Mapping

import torch
from torch import Tensor

from normscope.core.errors import InputError


def one_number(value: object) -> float:
    """Return a scalar of any kind as a float.

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


def waiting(value: object) -> Tensor | float:
    """Return a scalar that may be read later: on an accelerator a copy of it, so that nothing waits for that now.

    >>> waiting(3), waiting(torch.tensor([2.0]))
    (3.0, 2.0)
    """
    if isinstance(value, Tensor) and on_accelerator(value) and value.numel() == 1 and not value.is_complex():
        return value.detach().clone()
    return one_number(value)


def on_accelerator(value: object) -> bool:
    """Return whether reading a value would wait for an accelerator."""
    return isinstance(value, Tensor) and value.device.type != "cpu" and not isinstance(value, torch.nn.Parameter)


class UserMetrics:
    """Numbers given at steps, all of them, until they are written.

    >>> own = UserMetrics()
    >>> own.keep(1, {"loss": 0.5, "accuracy": 0.25})
    >>> own.keep(2, {"loss": 0.4, "nothing": None})
    >>> own.taken()
    {1: {'train/loss': 0.5, 'train/accuracy': 0.25}, 2: {'train/loss': 0.4}}
    >>> bool(own)
    False
    """

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, Tensor | float]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, step: int, metrics: Mapping[str, object]) -> None:
        """Keep numbers of a step, all or none of them; ``None`` is no number."""
        given = {name: waiting(value) for name, value in metrics.items() if value is not None}
        if given:
            self._waiting.setdefault(step, {}).update(given)

    def at_hand(self) -> bool:
        """Return whether nothing has to be fetched from an accelerator."""
        return not any(on_accelerator(value) for given in self._waiting.values() for value in given.values())

    def seen(self) -> dict[str, float]:
        """Return the last of each name that is at hand, as ``train/...``; it goes on waiting."""
        last = {name: value for given in self._waiting.values() for name, value in given.items()}
        return {f"train/{name}": one_number(value) for name, value in last.items() if not on_accelerator(value)}

    def taken(self) -> dict[int, dict[str, float]]:
        """Return what waits by step, as ``train/...``; it waits no longer."""
        found = {
            step: {f"train/{name}": one_number(value) for name, value in given.items()}
            for step, given in self._waiting.items()
        }
        self._waiting = {}
        return found
