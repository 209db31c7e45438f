"""Lipschitz constants in the weights as text: one row for each weight."""

import math
from collections.abc import Mapping

from normscope.core.number_text import digits
from normscope.core.value import Value
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.report.numbers import NOTHING, kind_text, value_text
from normscope.report.table import ROWS, Section, Table, without_empty

#: Rows of the table of all weights together: key in the result and words.
_JOINTLY = {
    "certified": "all weights together, sqrt(sum L_i^2)",
    "attained": "all weights together, attained",
    "stacked_certified": "all weights together, stacked batch",
    "stacked_attained": "all weights together, stacked batch, attained",
}


def weight_sections(result: WeightResult, *, everything: bool = False) -> list[Section]:
    """Return the report on weights as sections: the model, all weights together, then every weight."""
    sections = [_model(result)]
    if result.messages:
        sections.append(Section("messages", lines=result.messages))
    if result.jointly:
        sections.append(_jointly(result.jointly))
    if result.weights:
        sections += _weights(result, everything)
    return sections


def _model(result: WeightResult) -> Section:
    """Return the facts about the model and the accuracy of the singular values."""
    facts = result.model
    lines = []
    if "parameters" in facts:
        lines.append(f"{facts.get('class', '')}, {int(facts['parameters']):,} parameters")
    counts = result.samples
    lines.append(f"{counts['data']} data points, Jacobians measured at {counts['jacobians']}")
    if result.residual is not None:
        exact = math.isfinite(result.residual)
        words = f"singular pairs to a relative residual of {digits(result.residual)}"
        lines.append(words if exact else "attained along one direction of the output, not the largest of each weight")
    return Section(f"model: {facts.get('name', '')}", lines=tuple(lines))


def _jointly(values: Mapping[str, Value]) -> Section:
    rows = tuple(
        (words, value_text(values[key]), kind_text(values[key]), values[key].domain)
        for key, words in _JOINTLY.items()
        if key in values
    )
    columns = ("constant", "value", "kind", "domain")
    return Section("all weights", table=Table(columns, rows, ("constant", "kind", "domain")))


def _weights(result: WeightResult, everything: bool) -> list[Section]:
    """Return the tables of every weight: in the weight itself, then in the output of its layer."""
    shown = result.weights if everything else result.weights[:ROWS]
    more = len(result.weights) - len(shown)
    said = (f"... {more} more rows, all in weights.json (or with --all)",) if more else ()
    sections = []
    if any(row.constants for row in shown):
        measured = ("attained", "certified", "over all W", "input", "Theorem 12", "a bound?", "stacked")
        columns = ("weight", "shape", "uses", *measured)
        table = Table(columns, tuple(_constants(row) for row in shown), ("weight", "shape", "a bound?"))
        after = (
            *said,
            "attained: largest ||dh/dW|| at a point; certified: ||h, W|| over the data, smallest of all domains",
            "over all W: on all inputs and for every value of this weight; input: largest norm of dW -> dy in the data",
        )
        sections.append(Section("in the weights", table=without_empty(table), after=after))
    titles = ("weight", "uses", "attained", "all inputs", "small changes", "variance floor", "small changes there")
    keys = ("global", "global_small", "variance_floor", "variance_floor_small")
    rows = tuple(
        (r.name, str(r.uses), value_text(r.attained_output), *(value_text(r.outputs.get(key)) for key in keys))
        for r in shown
    )
    table = without_empty(Table(titles, rows, ("weight",)))
    sections.append(Section("in the outputs of their layers", table=table, after=said))
    notes = tuple(f"{row.name}: {note}" for row in shown for note in row.notes)
    if notes:
        cut = notes if everything else notes[:ROWS]
        left = len(notes) - len(cut)
        sections.append(Section("notes", lines=cut, after=(f"... {left} more (--all shows all)",) if left else ()))
    return sections


def _constants(row: WeightRow) -> tuple[str, ...]:
    bound = {None: NOTHING if row.printed is None else "undecided", True: "yes", False: "no"}[row.printed_is_bound]
    return (
        row.name,
        "x".join(map(str, row.shape)) or "scalar",
        str(row.uses),
        value_text(row.attained),
        value_text(row.best),
        value_text(row.constants.get("global")),
        value_text(row.input_norm),
        value_text(row.printed),
        bound,
        value_text(row.stacked.get("certified")),
    )
