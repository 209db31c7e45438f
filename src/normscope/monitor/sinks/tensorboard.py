"""TensorBoard as a sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.core.errors import MissingDependencyError


class TensorBoard:
    """Writes metrics as TensorBoard scalars.

    Args:
        path: the folder of the event files.

    Raises:
        MissingDependencyError: if TensorBoard is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError(
                "writing TensorBoard files needs tensorboard: pip install 'normscope[tensorboard]'"
            ) from error
        self._writer: Any = SummaryWriter(str(path))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar for each metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
