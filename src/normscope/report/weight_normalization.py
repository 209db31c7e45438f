"""Guarantees for a weight-normalized network beside measurements, as a section with a chart."""

from normscope.core.value import Value
from normscope.report.charts import Chart, ChartLine
from normscope.report.table import Section, Table
from normscope.weight_normalization.guarantees import Guarantees, shown

_COLUMNS = ("quantity", "bound", "with measured activations", "measured", "note")
_LEFT = ("quantity", "note")


def weight_normalization_sections(found: Guarantees) -> list[Section]:
    """Return the guarantees of a network and the certificate for its next step.

    >>> import torch
    >>> from normscope.weight_normalization import WeightNormNetwork, verify
    >>> found = verify(WeightNormNetwork(3, width=8, depth=2, seed=0), torch.eye(3), torch.ones(3, 1))
    >>> weight_normalization_sections(found)[0].title
    'weight normalization: bounds and measured values'
    """
    rows = tuple((r.name, shown(r.bound), shown(r.tight), shown(r.measured), r.note) for r in found.rows)
    lines = (
        "the paper's own network" if found.paper_form else "weight normalization with gains, biases or convolutions",
        *found.step_lines(),
    )
    return [
        Section("weight normalization: bounds and measured values", lines, Table(_COLUMNS, rows, _LEFT),
                chart=_chart(found))
    ]  # fmt: skip


def _chart(found: Guarantees) -> Chart:
    """Return bound, tightened bound and measured value of every quantity."""
    names = tuple(r.name for r in found.rows)
    columns: dict[tuple[str, str, str], list[Value | None]] = {
        ("global", "bound", "certified"): [r.bound for r in found.rows],
        ("variance_floor", "with measured activations", "certified"): [r.tight for r in found.rows],
        ("lower", "measured", "attained"): [r.measured for r in found.rows],
    }
    lines = tuple(
        ChartLine(style, label, kind, label, tuple(None if v is None else v.log10 for v in values), gaps=True)
        for (style, label, kind), values in columns.items()
    )
    return Chart(
        "weight-normalization", "Bounds of weight normalization", names, lines, ("quantity",) * len(names),
        x_title="quantity", y_title="at most",
    )  # fmt: skip
