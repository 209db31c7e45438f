"""The monitor as a Lightning callback."""

import importlib
import sys
from typing import Any

from torch import Tensor

from normscope.core.errors import InputError, MissingDependencyError
from normscope.doctor import CheckResult, assert_healthy
from normscope.monitor.monitor import Monitor


def _callback() -> Any:
    """Return the base class of callbacks: of ``lightning``, or of ``pytorch_lightning`` if only that is imported."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        names.reverse()
    for name in names:
        try:
            return importlib.import_module(f"{name}.callbacks").Callback
        except ImportError:
            continue
    raise MissingDependencyError(
        "The Lightning callback needs Lightning. Install it with: pip install 'normscope[lightning]'"
    )


class LightningMonitor(_callback()):  # type: ignore[misc]
    """A callback that monitors the module being fitted.

    Args:
        probe: a fixed batch, ``(inputs, labels)`` or the arguments of the module's ``forward``.
        preset: as in :class:`~normscope.monitor.monitor.Monitor`.
        module: where the network is inside the Lightning module, e.g. ``"net"``; by default the module itself, whose
            ``forward`` is run.
        log: also write the metrics to the trainer's loggers.
        **settings: further arguments of :class:`~normscope.monitor.monitor.Monitor`, such as ``run`` or ``loss``.

    Attributes:
        monitor: the monitor of the last fit.
    """

    def __init__(
        self, probe: Any, preset: str = "economy", *, module: str = "", log: bool = True, **settings: Any
    ) -> None:
        super().__init__()
        self.monitor: Monitor | None = None
        self._probe, self._preset, self._module = probe, preset, module
        self._log, self._settings = log, settings
        self._step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the monitor: the module is on its device and a checkpoint, if any, is loaded."""
        try:
            model = pl_module.get_submodule(self._module)
        except AttributeError as error:
            raise InputError(f"No submodule {self._module!r} in the Lightning module: {error}") from None
        settings = dict(self._settings)
        own = [_Logger(logger) for logger in trainer.loggers] if self._log else []
        sinks = [*settings.pop("sinks", ()), *own]
        optimizers = [each for each in trainer.optimizers if hasattr(each, "param_groups")]
        self._step = trainer.global_step
        self.monitor = Monitor(model, self._probe, self._preset, sinks=sinks, step=self._step, **settings)
        self.monitor.optimizer = optimizers  # unchecked: a strategy may give them copies of the parameters
        self.monitor.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record an update, unless the batch only accumulated gradients."""
        if self.monitor is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.monitor.step(self._step, loss=loss if isinstance(loss, Tensor) else None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        if self.monitor is not None:
            self.monitor.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run without measuring; what was written is kept."""
        if self.monitor is not None:
            self.monitor.close(measure=False)


class LightningDoctor(_callback()):  # type: ignore[misc]
    """A callback that checks the module before the first step and stops the fit if something is wrong.

    Args:
        data: some inputs of the module's ``forward``, or ``None``.
        fail_on: the severity that stops the fit.
        module: where the network is inside the Lightning module; by default the module itself.
        **options: further arguments of ``normscope.check``, such as ``batch_size`` and ``ignore``.

    Attributes:
        result: the result of the check.
    """

    def __init__(self, data: Any = None, fail_on: str = "error", *, module: str = "", **options: Any) -> None:
        super().__init__()
        self.result: CheckResult | None = None
        self._data, self._fail_on, self._module, self._options = data, fail_on, module, options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check the network and its optimizer.

        Raises:
            UnhealthyError: if there are findings of that severity.
        """
        model = pl_module.get_submodule(self._module)
        optimizers = [getattr(each, "optimizer", each) for each in trainer.optimizers]
        optimizer = optimizers[0] if len(optimizers) == 1 else None
        options = {"purpose": "train", **self._options}
        self.result = assert_healthy(model, self._data, optimizer, fail_on=self._fail_on, **options)


class _Logger:
    """A logger of the trainer as a sink; the trainer closes it."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Pass metrics on to the logger."""
        self._logger.log_metrics(metrics, step=step)
