"""Numbers that a user logs: read now, or later so that nothing waits for an accelerator, and kept until written."""

from __future__ import annotations

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
    """Return a scalar that is read later: of a tensor the tensor, so that nothing waits for an accelerator now.

    Raises:
        InputError: if it holds more than one number, or none.

    >>> waiting(3), waiting(torch.tensor([2.0]))
    (3.0, tensor([2.]))
    """
    simple = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    return value.detach() if isinstance(value, Tensor) and simple else one_number(value)


def on_accelerator(value: object) -> bool:
    """Tell whether reading a value would wait for an accelerator."""
    return isinstance(value, Tensor) and value.device.type != "cpu" and not isinstance(value, torch.nn.Parameter)


class UserMetrics:
    """Numbers given at steps, of each name the last one, until they are written.

    So a number that is given at every step is thinned out where there is no time to write it, and one that is given
    once in a while is kept.

    >>> own = UserMetrics()
    >>> own.keep(1, {"loss": 0.5, "accuracy": 0.25})
    >>> own.keep(2, {"loss": 0.4, "nothing": None})
    >>> own.taken()
    {1: {'train/accuracy': 0.25}, 2: {'train/loss': 0.4}}
    >>> bool(own)
    False
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, Tensor | float]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, step: int, metrics: Mapping[str, object]) -> None:
        """Keep numbers of a step; ``None`` is no number.

        Raises:
            InputError: if one is not a single real number; then none of them is kept.
        """
        given = {name: (step, waiting(value)) for name, value in metrics.items() if value is not None}
        self._waiting.update(given)

    def at_hand(self) -> bool:
        """Tell whether nothing has to be fetched from an accelerator."""
        return not any(on_accelerator(value) for _, value in self._waiting.values())

    def seen(self) -> dict[str, float]:
        """Return what waits and is at hand, as ``train/...``; it goes on waiting."""
        kept = {name: value for name, (_, value) in self._waiting.items() if not on_accelerator(value)}
        return {f"train/{name}": one_number(value) for name, value in kept.items()}

    def taken(self) -> dict[int, dict[str, float]]:
        """Return what waits by step, as ``train/...``; it waits no longer."""
        found: dict[int, dict[str, float]] = {}
        for name, (step, value) in sorted(self._waiting.items(), key=lambda item: item[1][0]):
            found.setdefault(step, {})[f"train/{name}"] = one_number(value)
        self._waiting = {}
        return found
