"""``Monitor``: measures a model beside its training, on a fixed probe batch, within a share of the time."""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.result import Result
from normscope.core.value import Value, json_number
from normscope.graph.objective import LossFunction
from normscope.monitor.budget import PRESETS, Budget, gap_after
from normscope.monitor.check_run import Watcher, samples
from normscope.monitor.outlets import Outlets
from normscope.monitor.probing import aside, probe_inputs, view_of
from normscope.monitor.quantities import QUANTITIES, charts, descriptions
from normscope.monitor.quantities.certified import DESCRIPTIONS as CERTIFIED
from normscope.monitor.quantities.certified import certified_metrics
from normscope.monitor.quantity import Quantity
from normscope.monitor.scalars import UserMetrics
from normscope.monitor.snapshot import Snapshot
from normscope.monitor.training_objects import is_first_process, learning_rates, optimizers_of, unwrapped
from normscope.monitor.view import View
from normscope.monitor.warm_norms import ColdNorms, WarmNorms

#: Where the doctor tells what it finds along a run.
FINDINGS = logging.getLogger("normscope.doctor")
#: Probes of a run in which there is little to see.
SHORT = 3
#: The part of the budget that writing the user's own metrics at every step may use.
SCALARS = 0.25
#: What is spread over updates costs now little, now much: this part of what was expected of a probe stays expected.
LASTING = 0.95


class Monitor:
    """Measures what normalization does to a model while it is trained.

    At chosen steps a fixed probe batch is run through the model's captured graph with the current weights. No
    hook is added and the model is not changed, so training with and without the monitor is identical, bit
    for bit, compiled, in mixed precision, with gradient accumulation or in several processes. It times itself and
    probes as often as its share of the wall time allows. Failures while it measures or writes are reported by a warning
    and a note in the run, and never reach the training loop.

    Args:
        model: the model as it is trained; ``torch.compile`` and ``DistributedDataParallel`` are looked through.
        probe: a fixed batch: inputs, ``(inputs, labels)`` or a mapping as the model takes it.
        preset: ``economy`` (2 % of the time), ``standard`` (5 %, gradients too) or ``full`` (certified bounds too).
        run: a folder to write the run to; one that holds a run of the same model is continued.
        sinks: further places to write to: objects with ``log(dict, step=...)``, such as ``wandb`` itself.
        optimizer: where learning rates are read, or a list of several; without it give ``lr`` to :meth:`step`, or do
            without them.
        loss: ``f(outputs, labels)``; by default the model's own loss, cross-entropy or the mean squared error.
        mode: what BatchNorm does on the probe: ``batch`` as in training, or ``running``.
        quantities: names in the place of the preset's.
        budget: share of the wall time in the place of the preset's; infinity for no limit.
        every: least number of steps between probes; by default few at the start, then growing with the run.
        step: the step training goes on from, for a resumed run.
        remember: follow norms from probe to probe, which is faster; without, each probe depends on its moment alone.
        name: how the run calls the model.

    Raises:
        InputError: if a setting is unknown; when it begins, if the model does not run on the probe, the labels do not
            fit its outputs, or the run folder cannot be written.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> with Monitor(model, probe=(torch.eye(3), torch.tensor([0, 1, 1]))) as mon:
    ...     mon.step(loss=0.7)
    >>> sorted(name for name in mon.latest if name.startswith("norm/"))
    ['norm/0', 'norm/3']
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        preset: str = "economy",
        *,
        run: str | Path | None = None,
        sinks: Iterable[Any] = (),
        optimizer: Any = None,
        loss: LossFunction | None = None,
        mode: str = "batch",
        quantities: Iterable[str] | None = None,
        budget: float | None = None,
        every: int | None = None,
        step: int | None = None,
        remember: bool = True,
        name: str = "",
    ) -> None:
        if preset not in PRESETS:
            raise InputError(f"Unknown preset {preset!r}. Known: {', '.join(PRESETS)}.")
        self.preset, chosen = preset, PRESETS[preset]
        names = tuple(chosen.quantities if quantities is None else quantities)
        unknown = [n for n in names if n not in QUANTITIES]
        if unknown:
            raise InputError(f"Unknown quantities: {', '.join(map(repr, unknown))}. Known: {', '.join(QUANTITIES)}.")
        if mode not in ("batch", "running"):
            raise InputError(f"Expected mode to be 'batch' or 'running', got {mode!r}.")
        self.every = chosen.every if every is None else every
        self._gap = partial(gap_after, every=chosen.every) if every is None else lambda _: self.every
        if self.every < 1:
            raise InputError(f"Expected every >= 1, got {every}.")
        self.model, self.name, self.mode = unwrapped(model), name, mode
        self.quantities: list[Quantity] = [QUANTITIES[n]() for n in names]
        self.budget = Budget(chosen.budget if budget is None else budget)
        self._outlets = Outlets(run, sinks)
        self._failures = self._outlets.failures
        optimizers_of(optimizer)
        self.optimizer = optimizer
        self.latest: dict[str, float] = {}
        self.probes = 0
        self._probe, self._loss, self._certify_every = probe, loss, chosen.certify
        self._step, self._resumed = step or 0, step
        self._last = self._measured_at = self._step
        self._view: View | None = None
        self._norms = WarmNorms() if remember else ColdNorms()
        self._previous: tuple[int, dict[str, Tensor]] | None = None
        self._rate: float | None = None
        self._own = UserMetrics()
        self._held: dict[int, dict[str, float]] = {}  # measured, not yet written, by step
        self._cost = 0.0  # of the last probe, in seconds
        self._config: dict[str, Any] = {}
        self._watcher: Watcher | None = None
        self._ended = False
        self._active = is_first_process()

    @property
    def sinks(self) -> list[Any]:
        """Return the sinks that are not given up."""
        return self._outlets.sinks

    def begin(self) -> Monitor:
        """Capture the model, measure it once, and start the clock; ``with`` does this by itself.

        After the end it goes on from the last step, with every point kept.
        """
        if not self._active or self._view is not None:
            return self
        start = time.perf_counter()
        with aside(self._device()):
            view = view_of(self.model, self._probe, self._loss, self.mode)
            self._config = run_facts(self.model, view, self.name) | {
                "preset": self.preset,
                "mode": self.mode,
                "budget": json_number(self.budget.share),
                "every": self.every,
                "quantities": [q.name for q in self.quantities],
            }
        try:
            start_at = self._outlets.begin(self._config, self._step, self._resumed, self._gap, again=self._ended)
            self._step, self._view = start_at.step, view
            self._measured(at_once=True)  # finds the leading vectors: the next one shows what a probe costs
            self.probes = 0
            first = self._measured(at_once=True) | (self._certified() if self._certify_every else {})
        except BaseException:  # refused, or interrupted: others may write to what was opened
            self._view = None
            self._outlets.close(self._step)
            raise
        self.latest |= first
        if not self._ended:  # probes fall on the steps they would have without the break
            self._last = self._step if start_at.probed is None else start_at.probed
        if not (self._ended or start_at.resumed):
            self._write(first | {"clock/setup_seconds": time.perf_counter() - start})
        self._measured_at = self._step
        self.budget.start()
        self._keep_weights()
        return self

    def step(self, step: int | None = None, *, lr: float | None = None, **metrics: Any) -> None:
        """Tell the monitor that an update was made; call it after ``optimizer.step()``.

        Args:
            step: the number of updates so far; by default one more than the last time.
            lr: the learning rate, where there is no optimizer to read it from.
            **metrics: numbers of your own, such as ``loss=...``; all are kept, as ``train/loss``. They are written
                at once if that is cheap beside the step and they need not be fetched from an accelerator; otherwise
                they wait for that, for the next probe or for the end.
        """
        if not self._active:
            return
        self.begin()
        with self.budget.spending():
            self._step = self._step + 1 if step is None else int(step)
            self._rate = lr if lr is None else float(lr)
            self._own.keep(self._step, metrics)
            if self._unfinished():
                self._proceed()
            elif self._due():
                self._held[self._step] = self._probed()
            if self._held or self._cheap():
                self._write({})
            self._keep_weights()

    def _unfinished(self) -> bool:
        """Return whether the last probe goes on."""
        return any(quantity.unfinished for quantity in self.quantities)

    def _cheap(self) -> bool:
        """Return whether the user's numbers that wait may be written now."""
        return bool(self._own) and self.budget.allows(SCALARS, cost=0.0) and self._own.at_hand()

    def log(self, **metrics: Any) -> None:
        """Keep numbers of your own at the current step, as ``train/...``; for loops that know them only later.

        They are written as those of :meth:`step` are; as there, the run begins by it. After the end the run is opened
        for these numbers alone.
        """
        if not self._active:
            return
        if self._view is None and self._ended:
            self._own.keep(self._step, metrics)
            with self._failures.survived("writing after the end", self._step):
                self._outlets.begin(self._config, self._step, None, self._gap, again=True)
                self._write({})
            self._outlets.close(self._step)
            return
        self.begin()
        with self.budget.spending():
            self._own.keep(self._step, metrics)
            if self._cheap():
                self._write({})

    def probe(self) -> dict[str, float]:
        """Measure now, whatever the budget says; the time counts as spent.

        Returns:
            The metrics by name.
        """
        self.begin()
        if not self._active:
            return {}
        with self.budget.spending():
            self._finish()
            found = self._probed(at_once=True)
            self._write(found)
            self._keep_weights()
        return found

    def certify(self, **settings: Any) -> Result:
        """Bound the model as it is now by ``normscope.analyze`` on the probe, and log what is certified.

        Args:
            **settings: fields of :class:`normscope.Options`.

        Returns:
            The result; the time it takes is not counted, it was asked for.
        """
        self.begin()
        result = self._analyzed(**settings)
        if self._active:
            found = certified_metrics(result)
            self.latest |= found
            self._write(found)
        return result

    def value(self, name: str) -> Value:
        """Return the last number of a metric with its kind, domain and statement.

        Raises:
            InputError: if the metric is unknown, was not measured, or may be negative.
        """
        if name not in self.latest:
            raise InputError(f"No metric {name!r} yet. Measured so far: {', '.join(sorted(self.latest)) or 'none'}.")
        described = next((d for d in descriptions() if d.matches(name)), None)
        if described is None:
            raise InputError(f"{name!r} is not one of the monitor's own metrics.")
        return described.value(self.latest[name])

    def close(self, *, measure: bool = True) -> None:
        """Write what waits, and close run folders and TensorBoard files; a tracker is closed by whom it belongs to.

        Args:
            measure: first measure once more, if the budget allows, or if nothing but the start was measured: of a
                run of seconds the end is what there is to see. Not while an error is on its way.
        """
        if self._view is None:
            return
        with self.budget.spending():
            self._finish(proceed=measure)
        allowed = self.budget.allows()
        if measure and self._step > self._measured_at and (allowed or self.probes <= 1):
            last = self._last
            with self.budget.spending() if allowed else contextlib.nullcontext():  # training no longer waits
                self._write(self._probed(at_once=True))
            self._last = last  # where it goes on, the probes do too
        self._write({})
        if measure and self.probes <= SHORT < self._step and math.isfinite(self.budget.share):
            share = f"{self.probes} probes fit into {100 * self.budget.share:g} % of its time"
            with contextlib.suppress(Exception):  # a folder that cannot be written was told when points were
                self._outlets.note(f"a short run: {share}; budget=math.inf measures more", self._step)
        self._outlets.close(self._step)
        self._view, self._previous = None, None
        self._ended, self._resumed = True, None  # from now on it goes on after the last point, not from ``step=``

    def __enter__(self) -> Monitor:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(measure=kind is None)

    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _due(self) -> bool:
        """Return whether to probe now: the weights of one update before were kept, or nothing asks for them."""
        if any(q.previous for q in self.quantities):
            return self._previous is not None and self._previous[0] < self._step
        return self._step - self._last >= self._gap(self._last) and self.budget.allows()

    def _keep_weights(self) -> None:
        """Keep the weights if the next step will be probed, so that the turn of that one update is seen."""
        soon = self._step + 1 - self._last >= self._gap(self._last) and any(q.previous for q in self.quantities)
        if self._view is None or self._previous is not None or not soon or not self.budget.allows():
            return
        if self._unfinished():  # the next probe waits for that
            return

        def give_up() -> None:  # the quantities that do not need them need not wait
            self.quantities = [q for q in self.quantities if not q.previous]

        with self._failures.survived("keeping weights", self._step, give_up):
            wanted = {layer.parameter for layer in self._view.layers()}
            kept = {n: p.clone() for n, p in self._view.parameters().items() if n in wanted}
            self._previous = self._step, kept

    def _probed(self, *, at_once: bool = False) -> dict[str, float]:
        """Measure and, where the preset asks for it, certify; a long analysis holds up the probes after it.

        What would otherwise be spread over the next updates may be measured at once.
        """
        found = self._measured(at_once=at_once) | {"clock/share": self.budget.used(self._cost)}
        self._examined(found)
        self._last, self._measured_at, self._previous = self._step, self._step, None
        if self._certify_every and self.probes % self._certify_every == 0:
            found |= self._certified()
        # What could not be measured now has no last number, unless it is still being measured; angles and certified
        # bounds are not of every probe.
        seldom = [d for q in self.quantities if q.previous or q.unfinished for d in q.describes] + list(CERTIFIED)
        self.latest = {n: x for n, x in self.latest.items() if any(d.matches(n) for d in seldom)} | found
        return found

    def _measured(self, *, at_once: bool) -> dict[str, float]:
        """Return the metrics of this moment; without those that fail, or with none if the model does not run."""
        if self._view is None:
            return {}
        begin = time.perf_counter()
        found: dict[str, float] = {}
        previous = self._previous if self._previous is not None and self._previous[0] < self._step else (0, None)
        with self._failures.survived("probing", self._step), aside(self._device()):
            _wait_for_training()
            begin = time.perf_counter()
            moment = Snapshot(
                self._view,
                self._step,
                rates=learning_rates(self.model, self.optimizer, self._rate),
                previous=previous[1],
                gradient=any(q.gradient for q in self.quantities),
                norms=self._norms,
                survived=partial(self._failures.survived, step=self._step),
            )
            if moment.changed:
                self.latest = {}  # of another model
                with contextlib.suppress(Exception):  # a folder that cannot be written is told when points are
                    self._outlets.note(f"the model has changed since the last probe: {moment.changed}", self._step)
            for quantity in tuple(self.quantities):
                found |= self._of(quantity, partial(quantity.measure, moment))
                while at_once and quantity.unfinished:
                    found |= self._of(quantity, quantity.proceed)
        self.probes += 1
        self._cost = time.perf_counter() - begin
        spreads = any(q.spreads for q in self.quantities)
        self.budget.expected = max(self._cost, LASTING * self.budget.expected if spreads else 0.0)
        return found | {"clock/probe_seconds": self._cost}

    def _proceed(self) -> None:
        """Measure further at the step of the last probe, to which the numbers belong."""
        _wait_for_training()
        begin = time.perf_counter()
        found: dict[str, float] = {}
        with aside(self._device()):
            for quantity in tuple(self.quantities):
                if quantity.unfinished:
                    found |= self._of(quantity, quantity.proceed)
        cost = time.perf_counter() - begin
        self._cost += cost
        self.budget.expected = max(self._cost, self.budget.expected)
        self.latest |= found
        clock = {"clock/probe_seconds": self._cost, "clock/share": self.budget.used(cost)}
        self._held.setdefault(self._measured_at, {}).update(found | clock)

    def _finish(self, *, proceed: bool = True) -> None:
        """Finish what is spread over updates, now or not at all."""
        while proceed and self._unfinished():
            self._proceed()
        for quantity in self.quantities:
            quantity.drop()

    def _examined(self, found: Mapping[str, float]) -> None:
        """Let the doctor's rules look at the run so far; what is new is noted in the run and told in the log."""
        with self._failures.survived("the doctor", self._step):
            if self._watcher is None:
                self._watcher = Watcher(samples(self._config))
            for finding in self._watcher.see(self._own.seen() | dict(found), self._step):
                text = f"{finding.code} {finding.place}: {finding.message}. {finding.fix[:1].upper()}{finding.fix[1:]}."
                FINDINGS.warning(text)
                self._outlets.note(text, self._step)

    def _of(self, quantity: Quantity, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return what a quantity measures, nothing if it fails."""
        found: dict[str, float] = {}
        give_up = partial(self.quantities.remove, quantity)
        with self._failures.survived(f"quantity {quantity.name}", self._step, give_up):
            found = measure()
        return found

    def _analyzed(self, **settings: Any) -> Result:
        """Analyze the model as it is now."""
        from normscope.analysis import analyze

        with aside(self._device()):
            inputs, _ = probe_inputs(self._probe, self.model)
            unlabelled = replace(inputs, kwargs={k: v for k, v in inputs.kwargs.items() if k != "labels"})
            return analyze(self.model, unlabelled, name=self.name, **{"stacked": False, **settings})

    def _certified(self) -> dict[str, float]:
        """Return certified metrics, nothing if the analysis fails."""
        found: dict[str, float] = {}
        with self._failures.survived("certification", self._step, partial(setattr, self, "_certify_every", 0)):
            found = certified_metrics(self._analyzed())
        return found

    def _write(self, metrics: Mapping[str, float]) -> None:
        """Hand metrics of this step to every sink, and with them all that waits, in the order of their steps.

        Sinks take no step after a later one, so everything waits for a probe that is not finished.
        """
        self._held[self._step] = self._held.get(self._step, {}) | dict(metrics)
        if self._unfinished():
            return
        points = self._own.taken()
        for step, measured in self._held.items():
            points[step] = points.get(step, {}) | measured
        self._held = {}
        self._outlets.log_points({step: points[step] for step in sorted(points) if points[step]})


def _wait_for_training() -> None:
    """Wait for what training left to do on an accelerator: that is not the probe's time."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def run_facts(model: nn.Module, view: View, name: str) -> dict[str, Any]:
    """Return the facts of a run that hold from its start."""
    from normscope import __version__

    return {
        "model": name or type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "probe": [list(t.shape) for t in view.inputs],
        "labelled": view.labels is not None,
        "layers": [layer.name for layer in view.layers()],
        "normalizers": [{"name": n.name, "kind": n.site.kind} for n in view.normalizers()],
        "notes": list(view.notes),
        "metrics": [d.to_dict() for d in descriptions()],
        "charts": [chart.to_dict() for chart in charts()],
        "versions": {"normscope": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Return the git commit of the working directory, or ``None`` outside of a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
