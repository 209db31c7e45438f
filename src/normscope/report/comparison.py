"""A comparison as text: the whole networks, then what changed most, then new findings."""

import math
from dataclasses import replace

from normscope.analysis.compare import ComparedPart, Comparison, Quantity
from normscope.core.finding import Finding
from normscope.core.number_text import number_text
from normscope.core.value import Kind, Value
from normscope.report.analysis import END_TO_END, FOLDED
from normscope.report.numbers import NOTHING, kind_text, plural, value_text
from normscope.report.table import ROWS, Section, Table

_WORDS = {key: words for key, words, _ in END_TO_END} | {
    "printed_kernels": "product of matrices and reshaped kernels, not a bound",
}
#: Numbers of a layer, a normalizer or a tensor.
_NUMBERS = {"upper": "certified", "proved": "certified", "on_floor": "on variance floor", "kernel": "reshaped kernel"}
_NUMBERS |= {
    "largest": "largest entry",
    "std_min": "least std",
    "std_max": "largest std",
    "frobenius": "Frobenius norm",
}


def comparison_sections(comparison: Comparison, *, everything: bool = False, printed: bool = False) -> list[Section]:
    """Return a comparison as sections; those without content are left out."""
    names = [f"{letter} = {name}" for letter, name in zip(letters(comparison), comparison.models, strict=True)]
    sections = [Section("compared", lines=(*names, *comparison.messages))]
    sections.append(_whole(comparison, printed))
    if comparison.layers:
        sections.append(_parts("layers", comparison, comparison.layers, everything))
    if comparison.normalizers:
        rows = tuple(replace(row, quantities=_asked(row.quantities, printed)) for row in comparison.normalizers)
        sections.append(_parts("normalizers", comparison, rows, everything))
    if any(comparison.checked):
        sections.append(_findings(comparison))
    return sections


def letters(comparison: Comparison) -> tuple[str, ...]:
    """Return a short column title for each model: A, B, C, ..., and numbers beyond Z.

    >>> letters(Comparison(("x", "y"), (), ()))
    ('A', 'B')
    """
    return tuple(chr(ord("A") + i) if i < 26 else f"M{i + 1}" for i in range(len(comparison.models)))


def change_text(change: float | None) -> str:
    """Return a change, given by its decimal logarithm, as a factor.

    >>> change_text(0.0), change_text(1.0), change_text(-0.30103), change_text(None)
    ('same', 'x 10', 'x 0.5', '-')
    """
    if change is None or math.isnan(change):
        return NOTHING
    if change == 0.0:
        return "same"
    return "x no bound" if change == math.inf else f"x {number_text(change)}"


def _whole(comparison: Comparison, printed: bool) -> Section:
    columns = ("constant", *letters(comparison), *(f"{x}/A" for x in letters(comparison)[1:]), "kind")
    asked = _asked(comparison.end_to_end, printed) or comparison.end_to_end
    ordered = sorted(asked, key=lambda q: list(_WORDS).index(q.name))
    rows = tuple((_WORDS[q.name], *_cells(q), kind_text(_first(q))) for q in ordered)
    after = (FOLDED,) if len(asked) < len(comparison.end_to_end) else ()
    return Section("end to end", table=Table(columns, rows, ("constant", "kind")), after=after)


def _asked(quantities: tuple[Quantity, ...], printed: bool) -> tuple[Quantity, ...]:
    """Return quantities, without formulas printed in papers unless they are asked for."""
    return tuple(q for q in quantities if printed or (value := _first(q)) is None or value.kind is not Kind.PRINTED)


def _cells(quantity: Quantity) -> tuple[str, ...]:
    first = quantity.values[0]
    zero = first is not None and first.log == -math.inf
    changes = ("from 0" if zero and c == math.inf else change_text(c) for c in quantity.changes[1:])
    return (*map(value_text, quantity.values), *changes)


def _first(quantity: Quantity) -> Value | None:
    return next((v for v in quantity.values if v is not None), None)


def _parts(title: str, comparison: Comparison, rows: tuple[ComparedPart, ...], everything: bool) -> Section:
    """Return the parts whose numbers changed, most first; all of them in order if asked."""
    shown = list(rows)
    after: list[str] = []
    if not everything:
        changed = [row for row in rows if row.largest_change > 0]
        unseen = sum(map(_not_compared, rows))
        note = [f"{plural(unseen, 'tensor')} without numbers to compare, such as integers"] if unseen else []
        compared = len(rows) - unseen
        if not changed:
            return Section(title, lines=(f"none of {compared} changed in the numbers that are compared", *note))
        shown = sorted(changed, key=lambda row: -row.largest_change)[:ROWS]
        same = compared - len(changed)
        if same:
            after.append(f"{same} of {compared} did not change in these numbers")
        after += note
        if len(changed) > ROWS:
            after.append(f"... {len(changed) - ROWS} more that changed less (--all shows all)")
    columns = ("name", "what", "number", *letters(comparison), *(f"{x}/A" for x in letters(comparison)[1:]))
    cells = []
    for row in shown:
        kinds = " / ".join(dict.fromkeys(kind for kind in row.kinds if kind is not None))
        for i, quantity in enumerate(row.quantities):
            head = (_name(row), kinds) if i == 0 else ("", "")
            cells.append((*head, _NUMBERS.get(quantity.name, quantity.name), *_cells(quantity)))
        if not row.quantities:
            there = (NOTHING if name is None else "there" for name in row.names)
            number = "not compared" if _not_compared(row) else NOTHING
            cells.append((_name(row), kinds, number, *there, *(NOTHING for _ in row.names[1:])))
    table = Table(columns, tuple(cells), ("name", "what", "number"))
    return Section(title, table=table, after=tuple(after))


def _not_compared(row: ComparedPart) -> bool:
    """Return whether a part is in every model but has no number."""
    return not row.quantities and None not in row.names


def _name(row: ComparedPart) -> str:
    """Return the names of a part, once if they are equal."""
    return " = ".join(dict.fromkeys(name for name in row.names if name is not None))


def _findings(comparison: Comparison) -> Section:
    """Return the findings that are new or gone in each model."""
    places: dict[tuple[str, str], list[str]] = {}
    for i, letter in list(enumerate(letters(comparison)))[1:]:
        for word, found in (("new", comparison.new_findings(i)), ("gone", comparison.gone_findings(i))):
            for finding in found:
                places.setdefault((word, _finding(finding)), []).append(letter)
    lines = [f"{word} in {', '.join(where)}: {finding}" for (word, finding), where in places.items()]
    unseen = [x for x, seen in zip(letters(comparison), comparison.checked, strict=True) if not seen]
    after = (f"not checked: {', '.join(unseen)} (a stored result does not contain the model)",) if unseen else ()
    return Section("findings", lines=tuple(lines) or ("the same in all",), after=after)


def _finding(finding: Finding) -> str:
    return f"{finding.code} {finding.severity.value} {finding.place}: {finding.message}"
