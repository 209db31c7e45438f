"""TensorBoard as a sink."""

from collections.abc import Callable, Mapping
from functools import partial
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
                "TensorBoard files need tensorboard. Install it with: pip install 'normscope[tensorboard]'"
            ) from error
        self._open: Callable[..., Any] = partial(SummaryWriter, str(path))
        self._writer: Any = None

    def resume(self, step: int) -> None:
        """Continue after a step; TensorBoard then ignores what an earlier run in the folder wrote after it."""
        self.close()
        self._writer = self._open(purge_step=step + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar for each metric."""
        if self._writer is None:
            self._writer = self._open()
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
