"""The user's own numbers, which wait until writing them is cheap."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from normscope.monitor.objective import on_accelerator, one_number, waiting


class OwnNumbers:
    """Numbers given at steps, of each name the last one, until they are written.

    So a number that is given at every step is thinned out where there is no time to write it, and one that is given
    once in a while is kept.

    >>> own = OwnNumbers()
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

    def taken(self) -> dict[int, dict[str, float]]:
        """Return what waits by step, as ``train/...``; it waits no longer."""
        found: dict[int, dict[str, float]] = {}
        for name, (step, value) in sorted(self._waiting.items(), key=lambda item: item[1][0]):
            found.setdefault(step, {})[f"train/{name}"] = one_number(value)
        self._waiting = {}
        return found
