"""The error decomposition of a trained model as a section of a report."""

from normscope.core.number_text import digits
from normscope.generalization.synthetic import Run
from normscope.report.numbers import NOTHING
from normscope.report.table import Section, Table


def decomposition_sections(run: Run) -> list[Section]:
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
    setting = f"{run.problem.features} features, {run.samples} samples, {run.steps} steps, noise {run.problem.noise:g}"
    table = Table(("part", "is", "value"), rows, ("part", "is"))
    return [Section(f"error of a model with {setting}", table=table, after=after)]
