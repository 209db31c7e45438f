"""What the test bench found about a bound, as text."""

from __future__ import annotations

from normscope.generalization.bench.run import BenchResult, Trial
from normscope.report.table import Section, Table

_COLUMNS = ("problem", "draws", "violations", "p-value", "mean bound", "mean risk", "verdict")
_LEFT = frozenset({"problem", "verdict"})


def bench_sections(result: BenchResult) -> list[Section]:
    """Return the problems and what the bound did on each, the verdict first."""
    verdict = (
        f"broken: it fails more often than {100 * result.delta:g} % of the time"
        if result.broken
        else f"not broken: it never fails more often than {100 * result.delta:g} % of the time"
    )
    table = Table(_COLUMNS, tuple(map(_cells, result.trials)), _LEFT)
    return [Section(f"the bound {result.name} on problems of known risk", (verdict,), table)]


def _cells(trial: Trial) -> tuple[str, ...]:
    """Return the cells of a row."""
    if not trial.draws:
        return (trial.problem, "", "", "", "", "", "says nothing")
    verdict = "broken" if trial.broken else "holds"
    numbers = (f"{trial.p_value:.2g}", f"{trial.bound:.4g}", f"{trial.risk:.4g}")
    return (trial.problem, str(trial.draws), str(trial.violations), *numbers, verdict)
