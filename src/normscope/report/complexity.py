"""Iteration counts as sections of a report: printed and corrected, for the chain and the real graph."""

from dataclasses import fields

from normscope.papers.than2025.complexity.network_complexity import Iterations, seen_as_chain
from normscope.report.numbers import kind_text, value_text
from normscope.report.table import Section, Table, shortened

NO_CHAIN = (
    "This network is not a plain chain (its proved constant exceeds the product over its layers), so the tables "
    "'without normalizers' and 'with normalizers' do not apply to it."
)


def complexity_sections(found: Iterations) -> list[Section]:
    """Return the report: the setting, the chain without and with normalizers, what it assumes, and the real graph."""
    sections = [_head(found)]
    for title, normalized in (("without normalizers", False), ("with normalizers", True)):
        sections.append(_chain(found, title, normalized))
    both = (counts for row in found.layers for counts in (row.without, row.normalized) if counts is not None)
    assumed = dict.fromkeys(a for counts in both for f in fields(counts) for a in getattr(counts, f.name).assumptions)
    sections.append(Section("assumed", tuple(assumed)))
    return [*sections, _graph(found)] if found.weights else sections


def _head(found: Iterations) -> Section:
    """Return the loss, the setting and the meaning of the columns."""
    setting = found.setting
    lines = (
        f"loss {found.loss}, constant {value_text(found.constant)}; alpha {setting.alpha:g}, delta {setting.delta:g}, "
        f"gap {setting.gap:g}, radius {setting.radius:g}, signal {setting.signal:g}",
        "printed: Corollary 18 (needed) and 19 (suffices) of than2025; neither is a bound",
        ("L: constant of the loss in the weight; Goldstein: order of the sufficient number, L^2 gap/(delta alpha^3)"),
        "convex: sufficient number if the loss were convex in the weight",
        *(() if seen_as_chain(found.result) else (NO_CHAIN,)),
    )
    return Section(f"iterations for each weight of {found.result.model.get('name', 'the network')}", lines)


def _chain(found: Iterations, title: str, normalized: bool) -> Section:
    columns = ("layer", "printed 18", "printed 19", "L", "Goldstein", "convex")
    cells = []
    for row in found.layers:
        counts = row.normalized if normalized else row.without
        if counts is not None:
            needed = value_text(None if normalized else row.corollary_18)
            numbers = (counts.corollary_19, counts.lipschitz, counts.goldstein, counts.convex)
            cells.append((row.name, needed, *map(value_text, numbers)))
    if not cells:
        return Section(title, after=("there are no normalizers",))
    table, said = shortened(Table(columns, tuple(cells), ("layer",)), found.result.blocks, everything=False)
    return Section(title, table=table, after=said)


def _graph(found: Iterations) -> Section:
    columns = ("weight", "L", "Goldstein", "convex", "kind of L", "domain")
    cells = tuple(
        (w.name, *map(value_text, (w.lipschitz, w.goldstein, w.convex)), kind_text(w.lipschitz), w.lipschitz.domain)
        for w in found.weights
    )
    left = ("weight", "kind of L", "domain")
    table, said = shortened(Table(columns, cells, left), found.result.blocks, everything=False)
    return Section("on the real graph, with its normalizers", table=table, after=said)
