"""Fixes as plain text: what was changed, what was not and why, and how far the outputs moved."""

from collections import Counter

from normscope.core.number_text import digits
from normscope.doctor.fixes.run import FixResult
from normscope.report.numbers import plural
from normscope.report.table import Section

#: How many changes or refusals of one kind are listed.
LISTED = 20


def fix_sections(result: FixResult) -> list[Section]:
    """Return the changes of a fix as a section."""
    lines = fix_text(result).splitlines()
    return [Section(lines[-1], lines=tuple(lines[:-1]))]


def fix_text(result: FixResult, *, everything: bool = False) -> str:
    """Return the changes, suggested changes of the code, refusals, and how far the outputs moved.

    >>> print(fix_text(FixResult("net", (), (), 0.0, 4, {})))
    net: nothing to change
    """
    lines: list[str] = []
    kinds = Counter(change.kind for change in result.changes)
    for kind, count in kinds.items():
        own = [change for change in result.changes if change.kind == kind]
        lines.append(f"{kind}, {plural(count, 'change')}; further training is {own[0].training}")
        lines += _some([f"  {change.place}: {change.what}" for change in own], everything=everything)
    code = [f"  {change.code}" for change in result.changes if change.code]
    if code:
        lines += [
            "optional changes of the code (the new weights also fit the current code):",
            *_some(code, everything=everything),
        ]
    if result.refusals:
        lines.append("not changed:")
        texts = [f"  {r.kind} {r.place or 'model'}: {r.reason}" for r in result.refusals]
        lines += _some(list(dict.fromkeys(texts)), everything=everything)
    if not result.changes:
        return "\n".join([*lines, f"{result.model}: nothing to change"])
    moved = "not at all" if result.difference == 0 else f"by {digits(result.difference)} (relative)"
    done = plural(len(result.changes), "change")
    lines.append(f"{result.model}: {done}; outputs moved {moved} on {plural(result.samples, 'sample')}")
    return "\n".join(lines)


def _some(lines: list[str], *, everything: bool) -> list[str]:
    """Return the first lines, and how many more there are."""
    if everything or len(lines) <= LISTED:
        return lines
    return [*lines[:LISTED], f"  and {len(lines) - LISTED} more (--all)"]
