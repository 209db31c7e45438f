"""``check_run``: the doctor's rules applied to a recorded run, or to a run in progress."""

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from normscope.core.errors import InputError
from normscope.core.finding import Finding, Severity
from normscope.doctor.catalogue import RULES
from normscope.doctor.run import CheckResult, check_history
from normscope.doctor.run_history import RunHistory
from normscope.doctor.settings import Settings
from normscope.monitor.run import METRICS, Run

#: The groups of metrics that rules read, and how many values of each metric are kept during a run.
GROUPS, KEPT = frozenset(group for rule in RULES.values() for group in rule.metrics), 64


def check_run(
    run: Run | str | Path, *, settings: Settings | None = None, select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
) -> CheckResult:  # fmt: skip
    """Find problems in a training run recorded by a monitor.

    Args:
        run: a run, or its folder; it may still be growing.
        settings: as in :func:`normscope.check`.
        select: codes, or prefixes of codes, to run; all if empty.
        ignore: codes, or prefixes of codes, to skip.

    Returns:
        The findings, most severe first; their evidence includes steps.

    Raises:
        InputError: if the folder holds no run, or no complete point of it.
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    if not opened.names:
        why = f"{METRICS} has no complete point" if (opened.path / METRICS).is_file() else f"it has no {METRICS}"
        raise InputError(f"Nothing to check in the run {opened.path}: {why}.")
    return check_history(history_of(opened), settings=settings, select=select, ignore=ignore, name=str(opened.path))


def history_of(run: Run) -> RunHistory:
    """Return the metrics of a run that the rules read."""
    series = {name: run.series(name) for name in run.names if name.partition("/")[0] in GROUPS}
    return RunHistory({n: (s.steps.tolist(), s.values.tolist()) for n, s in series.items()}, probe_samples(run.config))


def probe_samples(config: Mapping[str, Any]) -> int:
    """Return the number of samples in the probe of a run, from its configuration.

    >>> probe_samples({"probe": [[64, 3, 8, 8]]}), probe_samples({})
    (64, 0)
    """
    shapes = config.get("probe") or []
    return int(shapes[0][0]) if shapes and shapes[0] else 0


class RunDoctor:
    """Applies the rules to a run in progress; each warning is returned once, when it first appears.

    Args:
        samples: the number of samples in the probe.

    >>> doctor = RunDoctor(64)
    >>> doctor.examine({"not_finite/fc": 3.0}, 10)[0].message
    'by step 10 it is the first layer in the network with NaN or infinite values'
    >>> doctor.examine({"not_finite/fc": 3.0}, 20)
    []
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._kept: dict[str, tuple[deque[int], deque[float]]] = {}
        self._told: set[tuple[str, str]] = set()

    def examine(
        self, metrics: Mapping[str, float], step: int, broken: Mapping[str, tuple[int, float]] = MappingProxyType({})
    ) -> list[Finding]:
        """Add the metrics of a step, and return the new warnings and errors.

        Args:
            metrics: the metrics by name.
            step: the step.
            broken: metrics that were NaN or infinite at an earlier step since the last call, with that step.
        """
        for name, (at, value) in [*broken.items(), *((name, (step, value)) for name, value in metrics.items())]:
            if name.partition("/")[0] in GROUPS:
                steps, values = self._kept.setdefault(name, (deque(maxlen=KEPT), deque(maxlen=KEPT)))
                steps.append(at)
                values.append(float(value))
        series = {name: (list(steps), list(values)) for name, (steps, values) in self._kept.items()}
        found = check_history(RunHistory(series, self.samples)).findings
        new = [f for f in found if f.severity is not Severity.INFO and (f.code, f.place) not in self._told]
        self._told.update((f.code, f.place) for f in new)
        return new
