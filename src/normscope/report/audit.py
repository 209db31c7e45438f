"""The audit as text: a table for each paper, claims in detail, and a page of documentation."""

from collections.abc import Sequence

from normscope.core.number_text import digits
from normscope.core.statement import PAPERS, Statement
from normscope.papers.audit import SOURCES, Audit, CheckedClaim
from normscope.papers.claim import Number
from normscope.papers.explain import Answer, Explanation
from normscope.report.table import Section, Table

#: Below this a measured number is rounding, which differs between machines.
NOISE = 1e-12
_COLUMNS = ("id", "place", "verdict", "what was found")


def measured_text(value: Number) -> str:
    """Return a measured number with four digits; rounding noise as an upper bound.

    >>> measured_text(0.41666), measured_text(3), measured_text(True), measured_text(5e-17), measured_text(0.0)
    ('0.4167', '3', 'yes', '< 1e-12', '0')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"< {NOISE:g}" if 0 < abs(value) < NOISE else digits(value)
    return str(value)


def audit_sections(audit: Audit, *, details: bool = False) -> list[Section]:
    """Return the report of an audit as sections."""
    sections: list[Section] = []
    for number, key, _ in SOURCES:
        entries = [entry for entry in audit.entries if entry.claim.paper == key]
        if not entries:
            continue
        title = f"{number}: {PAPERS[key]}"
        if details:
            sections.append(Section(title))
            sections += [_entry_section(entry) for entry in entries]
        else:
            rows = tuple((e.claim.id, e.claim.place, e.verdict, _finding(e)) for e in entries)
            sections.append(Section(title, table=Table(_COLUMNS, rows, _COLUMNS)))
    return [*sections, Section(totals_text(audit))]


def totals_text(audit: Audit) -> str:
    """Return the number of claims and of each verdict as one line."""
    count = len(audit.entries)
    found = ", ".join(f"{n} {word}" for word, n in audit.totals.items() if n)
    return f"{count} claim{'' if count == 1 else 's'} checked: {found}"


def answer_sections(answer: Answer) -> list[Section]:
    """Return an answer as sections."""
    return [_section(part) for part in answer.parts]


def statement_sections(found: Sequence[Statement]) -> list[Section]:
    """Return numbered statements as sections, one for each paper."""
    columns = ("number", "holds", "function")
    sections = []
    for paper, title in PAPERS.items():
        rows = tuple((s.number, s.holds, s.function.removeprefix("normscope.")) for s in found if s.paper == paper)
        if rows:
            sections.append(Section(f"{paper}: {title}", table=Table(columns, rows, columns)))
    return sections


def audit_markdown(audit: Audit) -> str:
    """Return the audit as a page of documentation."""
    lines = [
        "# The audit",
        "",
        "Every claim of the papers, checked by the code of this project. This page is written by",
        "`normscope audit --markdown docs/audit.md`. No verdict in it is stored: each follows from numbers measured in",
        "that run. `normscope explain ID` shows one claim with the functions that compute it.",
        "",
        "A claim *holds*; is *loose* (true, and a tighter statement is given); is *false* as stated (with what is true",
        "instead); *needs an assumption* that is not stated; is *unsupported* (there is no proof, or the evidence does",
        "not show it); or is *not checkable* here.",
        "",
        "| verdict | claims |",
        "|---|---:|",
        *(f"| {word} | {n} |" for word, n in audit.totals.items() if n),
    ]
    for number, key, _ in SOURCES:
        entries = [entry for entry in audit.entries if entry.claim.paper == key]
        if entries:
            lines += ["", f"## {number}: {PAPERS[key]}", ""]
            lines += ["| id | place | claim | verdict | measured | corrected |", "|---|---|---|---|---|---|"]
            lines += [markdown_row(entry) for entry in entries]
    return "\n".join(lines) + "\n"


def markdown_row(entry: CheckedClaim) -> str:
    """Return the row of one claim."""
    claim = entry.claim
    measured = {} if entry.outcome is None else entry.outcome.measured
    numbers = "; ".join(f"{name}: {measured_text(value)}" for name, value in measured.items())
    found = ". ".join(filter(None, (numbers, _sentence(_finding(entry)))))
    id, place, says = map(_escaped, (claim.id, claim.place, claim.says))
    return f"| {id} | {place} | {says} | **{entry.verdict}** | {_escaped(found)} | {_escaped(claim.corrected)} |"


def _escaped(text: str) -> str:
    """Escape the characters that have a meaning in a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def _sentence(text: str) -> str:
    """Return a text as a sentence; a symbol at its beginning keeps its case.

    >>> _sentence("a bound"), _sentence("h = 0 is one"), _sentence("sqrt(n) is lost"), _sentence("it is |x|.")
    ('A bound.', 'h = 0 is one.', 'sqrt(n) is lost.', 'It is |x|.')
    """
    first, _, rest = text.partition(" ")
    symbol = not first.isalpha() or rest[:1] in ("=", "<", ">")
    return (text if symbol else text[:1].upper() + text[1:]).rstrip(".") + "."


def _finding(entry: CheckedClaim) -> str:
    """Return the reason for the verdict, or the error, as one line."""
    if entry.outcome is None:
        return entry.error
    factor = entry.outcome.factor
    return entry.outcome.because + ("" if factor is None else f" (factor {digits(factor)})")


def _entry_section(entry: CheckedClaim) -> Section:
    claim, measured = entry.claim, {} if entry.outcome is None else entry.outcome.measured
    what = (claim.id, claim.paper, claim.place, claim.says)
    return _section(Explanation("claim", *what, entry.verdict, _finding(entry), measured, claim.corrected))


def _section(part: Explanation) -> Section:
    true = {"rule": "do", "claim": "exactly" if part.verdict == "holds" else "instead"}.get(part.kind, "instead")
    lines: list[str] = []
    for word, text in (
        ("says", part.says),
        ("verdict", part.verdict + (f": {part.because}" if part.because else "")),
        (true, part.corrected),
        ("holds", part.holds),
    ):
        lines += [f"{word:<9} {text}"] if text else []
    lines += [f"measured  {name}: {measured_text(value)}" for name, value in part.measured.items()]
    lines += [f"code      {place.file}:{place.line} ({place.name.rpartition('.')[2]})" for place in part.code]
    # A statement's name holds its paper and place already.
    title = part.name if part.kind == "statement" else "  ".join(text for text in (part.name, part.place) if text)
    return Section(title, sentences=tuple(lines))
