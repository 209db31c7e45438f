"""The symmetries of a model as text and for notebooks."""

from __future__ import annotations

from normscope.geometry.discover import Symmetries
from normscope.report.table import Section, Table

#: How many groups are listed.
LISTED = 40


def symmetry_sections(found: Symmetries, *, everything: bool = False) -> list[Section]:
    """Return the report: the dimension, then one row per group."""
    statistics = "batch statistics, as in training" if found.mode == "batch" else "running statistics, as in evaluation"
    loss = "cross-entropy of the outputs" if found.loss == "cross_entropy" else "the outputs themselves"
    lines = (
        f"{found.dimension} of {found.parameters} directions change nothing ({statistics}; {loss})",
        "every group was verified in float64 with eps = 0: derivative, finite orbit",
    )
    head = Section(f"symmetries of {found.model}", lines)
    if not found.groups:
        return [Section(head.title, ("No symmetry found: every change of the parameters changes the function.",))]
    shown = found.groups if everything else found.groups[:LISTED]
    cells = tuple(
        (
            group.kind,
            str(group.dimension) if group.kind != "permutation" else "discrete",
            "" if group.certificate is None else f"{group.certificate.derivative:.0e}",
            "" if group.certificate is None else f"{group.certificate.orbit:.0e}",
            group.statement,
        )
        for group in shown
    )
    more = () if len(shown) == len(found.groups) else (f"and {len(found.groups) - len(shown)} more (--all)",)
    columns = ("kind", "dimension", "derivative", "orbit", "what")
    return [head, Section("groups", table=Table(columns, cells, frozenset(("kind", "what"))), after=more)]
