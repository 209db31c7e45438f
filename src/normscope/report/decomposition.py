"""The error decomposition of a trained model as a section of a report and as JSON."""

from dataclasses import asdict
from typing import Any

from normscope.core.number_text import digits
from normscope.generalization.synthetic import Problem, Run
from normscope.report.numbers import NOTHING
from normscope.report.table import Section, Table


def run_sections(run: Run, title: str = "error of a trained model") -> list[Section]:
    """Return the parts of the error, what each is, and whether they add up."""
    parts = run.decomposition
    rows = (
        ("total", "F(P, h_o) - F(P, y*)", digits(parts.total)),
        ("  approximation", "F(P, h*) - F(P, y*)", digits(parts.approximation)),
        ("  estimation", "F(P, h_o) - F(P, h*)", digits(parts.estimation)),
        ("    optimization", "F(D, h_o) - F(D, h_o*)", digits(parts.optimization)),
        ("    generalization", "F(P, h_o) - F(D, h_o)", digits(parts.generalization)),
        ("    selection", "F(D, h_o*) - F(P, h*)", digits(parts.selection)),
    )
    bound = NOTHING if parts.bound is None else digits(parts.bound)
    after = (
        f"the parts add up: {'yes' if parts.adds_up() else 'NO'}",
        f"the slides' summary, without selection: {digits(parts.slides_total)}",
        f"the slides' bound on the estimation error, optimization + 2 sup |F(P, h) - F(D, h)|: {bound}",
    )
    table = Table(("part", "is", "value"), rows, ("part", "is"))
    return [Section(title, table=table, after=after)]


def decomposition_section(problem: Problem, samples: int, steps: int, run: Run) -> Section:
    """Return the error decomposition with the setting of the problem in its title."""
    setting = f"{problem.features} features, {samples} samples, {steps} steps, noise {problem.noise:g}"
    return run_sections(run, f"error of a model with {setting}")[0]


def decomposition_document(problem: Problem, samples: int, steps: int, seed: int, run: Run) -> dict[str, Any]:
    """Return the JSON form."""
    parts = run.decomposition
    setting = {"features": problem.features, "samples": samples, "steps": steps}
    return {
        "schema_version": 1,
        "kind": "decomposition",
        "setting": setting | {"noise": problem.noise, "radius": problem.radius},
        "seed": seed,
        **asdict(parts),
        "slides_total": parts.slides_total,
        "largest_deviation": run.largest_deviation,
        "residuals": parts.residuals(),
        "adds_up": parts.adds_up(),
    }
