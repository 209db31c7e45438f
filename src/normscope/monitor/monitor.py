"""``Monitor``: measures a model during training on a fixed probe batch, within a share of the wall time."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.result import Result
from normscope.core.value import Value, json_number
from normscope.graph.objective import LossFunction
from normscope.graph.wrappers import require_optimizer_of
from normscope.monitor.budget import PRESETS, Budget, gap_after
from normscope.monitor.check_run import RunDoctor, probe_samples
from normscope.monitor.facts import run_facts
from normscope.monitor.probing import apart_from_training, probe_inputs, view_of
from normscope.monitor.quantities import QUANTITIES, descriptions, quantities_in
from normscope.monitor.quantities.certified import DESCRIPTIONS as CERTIFIED
from normscope.monitor.quantities.certified import certified_metrics
from normscope.monitor.quantity import Quantity
from normscope.monitor.sinks.group import SinkGroup
from normscope.monitor.snapshot import Snapshot
from normscope.monitor.training_objects import is_first_process, learning_rates, optimizers_of, unwrapped
from normscope.monitor.user_metrics import UserMetrics, whole_number
from normscope.monitor.view import View, without_labels
from normscope.monitor.warm_norms import WarmNorms

#: Logs what the doctor finds during a run.
FINDINGS = logging.getLogger("normscope.doctor")
#: A run with at most this many probes gets a note that it was short.
SHORT = 3
#: The part of the budget that may be used for writing the user's metrics at every step.
SCALARS = 0.25
#: The cost of probes that are spread over updates varies: the expected cost falls by at most this factor per probe.
LASTING = 0.95


class Monitor:
    """Measures what normalization does to a model while it is trained.

    At chosen steps a fixed probe batch is run through the model's captured graph with the current weights. No hook is
    added and the model is not changed, so training with and without the monitor is identical, bit for bit: compiled, in
    mixed precision, with gradient accumulation or in several processes. The monitor times itself and probes as often as
    its share of the wall time allows. Failures to measure or write are reported by a warning and a note in the run, and
    never reach the training loop.

    Args:
        model: the model as it is trained, also compiled or inside ``DistributedDataParallel``.
        probe: a fixed batch: inputs, ``(inputs, labels)`` or a mapping of the model's arguments.
        preset: ``economy`` (2 % of the time), ``standard`` (5 %, gradients too) or ``full`` (certified bounds too).
        run: a folder to write the run to; a run of the same model in it is continued.
        sinks: further places to write to: objects with ``log(dict, step=...)``, such as the module ``wandb``.
        optimizer: an optimizer, or a list of several, to read learning rates from; without it, pass ``lr`` to
            :meth:`step`, or do without them.
        loss: ``f(outputs, labels)``; by default the model's own loss, cross-entropy or the mean squared error.
        mode: the statistics that BatchNorm uses on the probe: ``batch`` as in training, or ``running``.
        quantities: names of quantities, or one name, instead of the preset's.
        budget: share of the wall time, instead of the preset's; infinity for no limit.
        every: least number of steps between probes; by default small at the start, then growing with the run.
        step: the step training continues from, for a resumed run.
        remember: start norms from those of the last probe, which is faster; without it, probes are independent.
        name: name of the model in the run.

    Raises:
        InputError: if a setting is unknown; at the start, if the model does not run on the probe, the labels do not
            match its outputs, or the run folder cannot be written.

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
        names = quantities_in(preset) if quantities is None else _names(quantities)
        unknown = [n for n in names if n not in QUANTITIES]
        if unknown:
            raise InputError(f"Unknown quantities: {', '.join(map(repr, unknown))}. Known: {', '.join(QUANTITIES)}.")
        if mode not in ("batch", "running"):
            raise InputError(f"Expected mode to be 'batch' or 'running', got {mode!r}.")
        self.every = chosen.every if every is None else whole_number(every, "every", 1)
        self._gap = partial(gap_after, every=chosen.every) if every is None else lambda _: self.every
        step = None if step is None else whole_number(step, "step")
        self.model, self.name, self.mode = unwrapped(model), name, mode
        self.quantities: list[Quantity] = [QUANTITIES[n]() for n in names]
        self.budget = Budget(chosen.budget if budget is None else budget)
        self._sinks = SinkGroup(run, sinks)
        self._failures = self._sinks.failures
        require_optimizer_of(self.model, optimizers_of(optimizer))
        self.optimizer = optimizer
        self.latest: dict[str, float] = {}
        self.probes = 0
        self._probe_batch, self._loss, self._certify_every = probe, loss, chosen.certify
        self._step, self._resumed = step or 0, step
        self._last_probe = self._measured_at = self._step
        self._view: View | None = None
        self._norms = WarmNorms(remember=remember)
        self._previous_weights: tuple[int, dict[str, Tensor]] | None = None
        self._given_rate: float | None = None
        self._user_metrics = UserMetrics()
        self._unwritten: dict[int, dict[str, float]] = {}  # measured, not yet written, by step
        self._times: dict[int, float] = {}  # of the steps that are not written yet
        self._probe_seconds = 0.0  # of the last probe, in seconds
        self._config: dict[str, Any] = {}
        self._doctor: RunDoctor | None = None
        self._has_ended = self._went_back = False
        self._measures_here = is_first_process()

    @property
    def sinks(self) -> list[Any]:
        """Return the sinks that have not been given up."""
        return self._sinks.sinks

    def begin(self) -> Monitor:
        """Capture the model, measure it once, and start the clock; ``with`` calls this.

        After :meth:`close` the run continues from the last step, with every point kept.
        """
        if not self._measures_here or self._view is not None:
            return self
        start = time.perf_counter()
        with apart_from_training(self._device()):
            view = view_of(self.model, self._probe_batch, self._loss, self.mode)
            self._config = run_facts(self.model, view, self.name) | {
                "preset": self.preset,
                "mode": self.mode,
                "budget": json_number(self.budget.share),
                "every": self.every,
                "quantities": [q.name for q in self.quantities],
            }
        try:
            start_at = self._sinks.begin(self._config, self._step, self._resumed, self._gap, again=self._has_ended)
            self._step, self._view = start_at.step, view
            self._measure(at_once=True)  # finds the leading vectors, so that the next one shows the cost of a probe
            self.probes = 0
            first = self._measure(at_once=True) | (self._certify_now() if self._certify_every else {})
        except BaseException:  # refused or interrupted: release the sinks
            self._view = None
            self._sinks.close(self._step)
            raise
        self.latest |= first
        if not self._has_ended:  # probe at the same steps as without the interruption
            self._last_probe = self._step if start_at.probed is None else start_at.probed
        if not (self._has_ended or start_at.resumed):
            self._write(first | {"clock/setup_seconds": time.perf_counter() - start})
        self._measured_at = self._step
        self.budget.start()
        self._keep_weights()
        return self

    def step(self, step: int | None = None, *, lr: float | None = None, **metrics: Any) -> None:
        """Record that an update was made; call it after ``optimizer.step()``.

        Args:
            step: the number of updates so far; by default one more than in the last call.
            lr: the learning rate, if there is no optimizer to read it from.
            **metrics: your own metrics, such as ``loss=...``; all are kept, as ``train/loss``. They are written at once
                if that is cheap compared with the step and no value has to be fetched from an accelerator; otherwise
                with the next probe or at the end.

        Raises:
            InputError: if the step is not a whole number, or a metric is not one real number; nothing is recorded then.
        """
        if not self._measures_here:
            return
        given = None if step is None else whole_number(step, "step", hint=" Pass the loss as loss=...")
        self.begin()
        with self.budget.spending():
            now, rate = self._step + 1 if given is None else given, lr if lr is None else float(lr)
            self._user_metrics.keep(now, metrics)
            if now < self._step and not self._went_back:
                self._went_back = True
                self._failures.report(
                    f"monitor: step {now} follows step {self._step}: the monitor measures only after step "
                    f"{self._last_probe}, its last probe, and trackers may drop metrics of earlier steps",
                    now,
                )
            self._step, self._given_rate = now, rate
            if self._is_unfinished():
                self._continue_probe()
            elif self._is_due():
                self._unwritten[self._step] = self._run_probe()
            self._keep_time()
            if self._unwritten or self._may_write_now():
                self._write({})
            self._keep_weights()

    def _keep_time(self) -> None:
        """Keep the time of this step if something waits to be written."""
        if self._user_metrics or self._unwritten:
            self._times.setdefault(self._step, time.time())

    def _is_unfinished(self) -> bool:
        return any(quantity.unfinished for quantity in self.quantities)

    def _may_write_now(self) -> bool:
        """Return whether there are user metrics that may be written now."""
        return bool(self._user_metrics) and self.budget.allows(SCALARS, cost=0.0) and self._user_metrics.is_ready()

    def log(self, named: Mapping[str, Any] | None = None, /, **metrics: Any) -> None:
        """Log your own metrics at the current step, for loops that know them only after the step.

        They are written like those of :meth:`step`, and the run starts if it has not. After :meth:`close` the run is
        opened for these metrics only.

        Args:
            named: metrics by name; a name with a group, such as ``val/acc``, keeps it.
            **metrics: metrics by name, kept as ``train/...``.
        """
        if not self._measures_here:
            return
        if not (named is None or isinstance(named, Mapping)):
            raise InputError(f"Expected metrics by name, such as log(loss=...), got {type(named).__name__}.")
        metrics = {**(named or {}), **metrics}
        if self._view is None and self._has_ended:
            self._user_metrics.keep(self._step, metrics)
            with self._failures.tolerate("writing after the end", self._step):
                self._sinks.begin(self._config, self._step, None, self._gap, again=True)
                self._write({})
            self._sinks.close(self._step)
            return
        self.begin()
        with self.budget.spending():
            self._user_metrics.keep(self._step, metrics)
            self._keep_time()
            if self._may_write_now():
                self._write({})

    def probe(self) -> dict[str, float]:
        """Measure now, regardless of the budget; the time counts as spent.

        Returns:
            The metrics by name.
        """
        self.begin()
        if not self._measures_here:
            return {}
        with self.budget.spending():
            self._finish_probe()
            found = self._run_probe(at_once=True)
            self._write(found)
            self._keep_weights()
        return found

    def certify(self, **settings: Any) -> Result:
        """Analyze the current model with ``normscope.analyze`` on the probe, and log the certified bounds.

        Args:
            **settings: fields of :class:`normscope.Options`.

        Returns:
            The result; its time does not count against the budget.
        """
        self.begin()
        result = self._analyze(**settings)
        if self._measures_here:
            found = certified_metrics(result)
            self.latest |= found
            self._write(found)
        return result

    def value(self, name: str) -> Value:
        """Return the last number of a metric with its kind, domain and statement.

        Raises:
            InputError: if the metric is unknown, was not measured, may be negative, or is NaN.
        """
        if name not in self.latest:
            raise InputError(f"No metric {name!r} yet. Measured so far: {', '.join(sorted(self.latest)) or 'none'}.")
        described = next((d for d in descriptions() if d.matches(name)), None)
        if described is None:
            raise InputError(f"{name!r} is not one of the monitor's own metrics.")
        return described.value(self.latest[name], name)

    def close(self, *, measure: bool = True) -> None:
        """Write what is not written yet, and close run folders and TensorBoard files; trackers stay open.

        Args:
            measure: first measure once more, if the budget allows it or only the start was measured (a run of a few
                seconds should have an end, too). Not after an error.
        """
        if self._view is None:
            return
        with self.budget.spending():
            self._finish_probe(proceed=measure)
        allowed = self.budget.allows()
        if measure and self._step > self._measured_at and (allowed or self.probes <= 1):
            last = self._last_probe
            with self.budget.spending() if allowed else contextlib.nullcontext():  # training is over
                self._write(self._run_probe(at_once=True))
            self._last_probe = last  # a continued run keeps its schedule of probes
        self._write({})
        if measure and self.probes <= SHORT < self._step and math.isfinite(self.budget.share):
            probes = "1 probe" if self.probes == 1 else f"{self.probes} probes"
            few = f"only {probes} fitted into {100 * self.budget.share:g} % of the run's time"
            with contextlib.suppress(Exception):  # a folder that cannot be written was reported before
                self._sinks.note(f"{few}; pass budget=math.inf to measure more", self._step)
        self._sinks.close(self._step)
        self._view, self._previous_weights = None, None
        self._has_ended, self._resumed = True, None  # a continued run starts after the last point, not at ``step=``

    def __enter__(self) -> Monitor:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(measure=kind is None)

    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _is_due(self) -> bool:
        """Return whether to probe now: the weights before the last update were kept, or no quantity needs them."""
        if any(q.previous for q in self.quantities):
            return self._weights_before_update() is not None
        return self._step - self._last_probe >= self._gap(self._last_probe) and self.budget.allows()

    def _weights_before_update(self) -> dict[str, Tensor] | None:
        """Return the layers' weights before the last update, if they were kept."""
        kept = self._previous_weights
        return kept[1] if kept is not None and kept[0] < self._step else None

    def _keep_weights(self) -> None:
        """Keep the weights if the next step will be probed and a quantity compares them."""
        soon = self._step + 1 - self._last_probe >= self._gap(self._last_probe)
        if self._view is None or self._previous_weights is not None or not soon or not self.budget.allows():
            return
        if self._is_unfinished() or not any(q.previous for q in self.quantities):
            return

        def give_up() -> None:  # so that the other quantities are not held up
            self.quantities = [q for q in self.quantities if not q.previous]

        with self._failures.tolerate("keeping weights", self._step, give_up):
            wanted = {layer.parameter for layer in self._view.layers()}
            kept = {n: p.clone() for n, p in self._view.parameters().items() if n in wanted}
            self._previous_weights = self._step, kept

    def _run_probe(self, *, at_once: bool = False) -> dict[str, float]:
        """Measure and, if the preset says so, certify; a long analysis delays the next probes.

        With ``at_once``, quantities that may be spread over the next updates are finished now.
        """
        found = self._measure(at_once=at_once) | {"clock/share": self.budget.used(self._probe_seconds)}
        self._check_health(found)
        self._last_probe, self._measured_at, self._previous_weights = self._step, self._step, None
        if self._certify_every and self.probes % self._certify_every == 0:
            found |= self._certify_now()
        # A metric that could not be measured now has no latest number, unless it is still being measured or is not part
        # of every probe, like angles and certified bounds.
        seldom = [d for q in self.quantities if q.previous or q.unfinished for d in q.describes] + list(CERTIFIED)
        self.latest = {n: x for n, x in self.latest.items() if any(d.matches(n) for d in seldom)} | found
        return found

    def _measure(self, *, at_once: bool) -> dict[str, float]:
        """Return the current metrics without those that fail, or none if the model does not run."""
        if self._view is None:
            return {}
        begin = time.perf_counter()
        found: dict[str, float] = {}
        with self._failures.tolerate("probing", self._step), apart_from_training(self._device()):
            _wait_for_training()
            begin = time.perf_counter()
            moment = Snapshot(
                self._view,
                self._step,
                rates=learning_rates(self.model, self.optimizer, self._given_rate),
                previous=self._weights_before_update() or {},
                gradient=any(q.gradient for q in self.quantities),
                warm_norms=self._norms,
                tolerate=partial(self._failures.tolerate, step=self._step),
            )
            if moment.changed:
                self.latest = {}  # they belong to another model
                with contextlib.suppress(Exception):  # a folder that cannot be written is reported with the points
                    self._sinks.note(f"the model has changed since the last probe: {moment.changed}", self._step)
            for quantity in tuple(self.quantities):
                found |= self._measure_one(quantity, partial(quantity.measure, moment))
                while at_once and quantity.unfinished:
                    found |= self._measure_one(quantity, quantity.proceed)
            skipped = vars(moment).get("not_finite", {})  # what no quantity asked for was not skipped
            self._failures.skip(list(skipped.values()), self._step)
        self.probes += 1
        self._probe_seconds = time.perf_counter() - begin
        spreads = any(q.spreads for q in self.quantities)
        self.budget.expected = max(self._probe_seconds, LASTING * self.budget.expected if spreads else 0.0)
        return found | {"clock/probe_seconds": self._probe_seconds}

    def _continue_probe(self) -> None:
        """Continue the last probe; its metrics belong to the step at which it started."""
        _wait_for_training()
        begin = time.perf_counter()
        found: dict[str, float] = {}
        with apart_from_training(self._device()):
            for quantity in tuple(self.quantities):
                if quantity.unfinished:
                    found |= self._measure_one(quantity, quantity.proceed)
        cost = time.perf_counter() - begin
        self._probe_seconds += cost
        self.budget.expected = max(self._probe_seconds, self.budget.expected)
        self.latest |= found
        clock = {"clock/probe_seconds": self._probe_seconds, "clock/share": self.budget.used(cost)}
        self._unwritten.setdefault(self._measured_at, {}).update(found | clock)

    def _finish_probe(self, *, proceed: bool = True) -> None:
        """Finish the last probe now, or drop the rest of it."""
        while proceed and self._is_unfinished():
            self._continue_probe()
        for quantity in self.quantities:
            quantity.drop()

    def _check_health(self, found: Mapping[str, float]) -> None:
        """Apply the doctor's rules to the run so far; new findings are noted in the run and logged."""
        with self._failures.tolerate("the doctor", self._step):
            if self._doctor is None:
                self._doctor = RunDoctor(probe_samples(self._config))
            metrics, broken = self._user_metrics.latest() | dict(found), self._user_metrics.pop_broken()
            for finding in self._doctor.examine(metrics, self._step, broken):
                text = f"{finding.code} {finding.place}: {finding.message}. {finding.fix[:1].upper()}{finding.fix[1:]}."
                FINDINGS.warning(text)
                self._sinks.note(text, self._step)

    def _measure_one(self, quantity: Quantity, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the metrics of a quantity, or none if it fails."""
        found: dict[str, float] = {}
        give_up = partial(self.quantities.remove, quantity)
        with self._failures.tolerate(f"quantity {quantity.name}", self._step, give_up):
            found = measure()
        return found

    def _analyze(self, **settings: Any) -> Result:
        from normscope.analysis import analyze

        with apart_from_training(self._device()):
            inputs, _ = probe_inputs(self._probe_batch, self.model)
            return analyze(self.model, without_labels(inputs), name=self.name, **{"stacked": False, **settings})

    def _certify_now(self) -> dict[str, float]:
        """Return certified metrics, or none if the analysis fails."""
        found: dict[str, float] = {}
        with self._failures.tolerate("certification", self._step, partial(setattr, self, "_certify_every", 0)):
            found = certified_metrics(self._analyze())
        return found

    def _write(self, metrics: Mapping[str, float]) -> None:
        """Write metrics of this step, and all that are not written yet, to every sink in the order of their steps.

        Sinks accept no step after a later one, so nothing is written until an unfinished probe is complete.
        """
        self._unwritten[self._step] = self._unwritten.get(self._step, {}) | dict(metrics)
        if self._is_unfinished():
            return
        points = self._user_metrics.pop_all()
        for step, measured in self._unwritten.items():
            points[step] = points.get(step, {}) | measured
        times, self._unwritten, self._times = self._times, {}, {}
        self._sinks.log_points({step: points[step] for step in sorted(points) if points[step]}, times)


def _wait_for_training() -> None:
    """Wait for work that training has queued on an accelerator, so that the probe is not charged for it."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _names(quantities: Iterable[str]) -> tuple[str, ...]:
    return (quantities,) if isinstance(quantities, str) else tuple(quantities)
