"""What ``fix`` did, as plain text."""

from __future__ import annotations

from collections import Counter

from normscope.doctor.fixes.run import FixResult
from normscope.report.numbers import digits

#: How many changes or refusals of one kind are listed.
LISTED = 20


def fix_text(result: FixResult, *, everything: bool = False) -> str:
    """Return what was changed, what is left for a person, what was refused, and how far the outputs moved.

    Args:
        result: what ``fix`` returned.
        everything: list every change and refusal, however many.

    >>> print(fix_text(FixResult("net", (), (), 0.0, 4, {})))
    net: nothing to change
    """
    lines: list[str] = []
    kinds = Counter(change.kind for change in result.changes)
    for kind, count in kinds.items():
        own = [change for change in result.changes if change.kind == kind]
        lines.append(f"{kind} ({count}); training on: {own[0].training}")
        lines += _some([f"  {change.place}: {change.what}" for change in own], everything=everything)
    code = [f"  {change.code}" for change in result.changes if change.code]
    if code:
        lines += ["in the code, if you like (the new weights fit it as it is):", *_some(code, everything=everything)]
    if result.refusals:
        lines.append("left alone:")
        texts = [f"  {r.kind} {r.place or 'model'}: {r.reason}" for r in result.refusals]
        lines += _some(list(dict.fromkeys(texts)), everything=everything)
    if not result.changes:
        return "\n".join([*lines, f"{result.model}: nothing to change"])
    moved = "not at all" if result.difference == 0 else f"by {digits(result.difference)} (relative)"
    lines.append(f"{result.model}: {len(result.changes)} changes; outputs moved {moved} on {result.samples} samples")
    return "\n".join(lines)


def _some(lines: list[str], *, everything: bool) -> list[str]:
    """Return the first lines, and how many more there are."""
    if everything or len(lines) <= LISTED:
        return lines
    return [*lines[:LISTED], f"  and {len(lines) - LISTED} more (--all)"]
