"""The monitor as a callback of the Hugging Face trainer."""

from typing import Any

from normscope.core.errors import MissingDependencyError
from normscope.doctor import CheckResult, assert_healthy
from normscope.monitor.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError(
        "The Trainer callback needs transformers. Install it with: pip install 'normscope[hf]'"
    ) from error


class HuggingFaceMonitor(TrainerCallback):
    """A callback that monitors the model being trained.

    Args:
        probe: a fixed batch of the model's arguments, e.g. ``collator([dataset[i] for i in range(32)])``; with
            ``labels`` the model's own loss is used.
        preset: as in :class:`~normscope.monitor.monitor.Monitor`.
        **settings: further arguments of :class:`~normscope.monitor.monitor.Monitor`, such as ``run`` or ``sinks``.

    Attributes:
        monitor: the monitor of the last training.
    """

    def __init__(self, probe: Any, preset: str = "economy", **settings: Any) -> None:
        self.monitor: Monitor | None = None
        self._probe, self._preset, self._settings = probe, preset, settings

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the monitor: the model is on its device and a checkpoint, if any, is loaded.

        The trainer does not notify callbacks of errors, so the run of an earlier training that failed is closed here.
        """
        if self.monitor is not None:
            self.monitor.close(measure=False)
        optimizer = kwargs.get("optimizer")
        probe = dict(self._probe) if hasattr(self._probe, "items") else self._probe
        self.monitor = Monitor(kwargs["model"], probe, self._preset, step=state.global_step, **self._settings)
        if hasattr(optimizer, "param_groups"):  # unchecked: a plugin may give it copies of the parameters
            self.monitor.optimizer = optimizer
        self.monitor.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record an update, which comes after all accumulated batches."""
        if self.monitor is not None:
            self.monitor.optimizer = kwargs.get("optimizer") or self.monitor.optimizer
            self.monitor.step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record what the trainer logs: loss, learning rate, gradient norm, evaluation."""
        if self.monitor is not None and logs:
            numbers = {k: v for k, v in logs.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            self.monitor.log(**numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        if self.monitor is not None:
            self.monitor.close()


class HuggingFaceDoctor(TrainerCallback):
    """A callback that checks the model before the first step and stops training if something is wrong.

    Args:
        data: some inputs of the model, or ``None``.
        fail_on: the severity that stops training.
        **options: further arguments of ``normscope.check``, such as ``ignore``.

    Attributes:
        result: the result of the check.
    """

    def __init__(self, data: Any = None, fail_on: str = "error", **options: Any) -> None:
        self.result: CheckResult | None = None
        self._data, self._fail_on, self._options = data, fail_on, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the model, its optimizer and the size of a batch on one device.

        Raises:
            UnhealthyError: if there are findings of that severity.
        """
        data = dict(self._data) if hasattr(self._data, "items") else self._data
        optimizer = getattr(kwargs.get("optimizer"), "optimizer", kwargs.get("optimizer"))
        options = {"purpose": "train", "batch_size": args.per_device_train_batch_size, **self._options}
        self.result = assert_healthy(kwargs["model"], data, optimizer, fail_on=self._fail_on, **options)
