"""Findings as plain text: one paragraph each, the gravest first."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping

from normscope.core.finding import Finding
from normscope.doctor.run import CheckResult, counts_text

WIDTH = 118


def findings_text(result: CheckResult) -> str:
    """Return the findings of a check as plain text.

    Args:
        result: what ``check`` returned.

    Returns:
        A paragraph for each finding, what could not be checked and why, and a summary.

    >>> print(findings_text(CheckResult("net", (), ran=("NS101",), skipped={"NS601": "needs data (--data)"})))
    1 more rule with data (--data)
    net: no findings (1 rule ran, 1 could not)
    """
    blocks = [finding_text(f) for f in result.findings]
    lines = not_checked(result.skipped)
    ran = f"{len(result.ran)} rule{'' if len(result.ran) == 1 else 's'} ran"
    more = f", {len(result.skipped)} could not" if result.skipped else ""
    hidden = f", {result.hidden} hidden by settings or baseline" if result.hidden else ""
    purpose = f" for {result.purpose}" if result.purpose else ""
    lines.append(f"{result.model}{purpose}: {counts_text(result)} ({ran}{more}{hidden})")
    return "\n\n".join([*blocks, "\n".join(lines)])


def not_checked(skipped: Mapping[str, str]) -> list[str]:
    """Return what further rules need, in one line, and those that failed, in one line each.

    >>> not_checked({"NS601": "needs data (--data)", "NS401": "needs x", "NS402": "needs x", "NS1": "failed: why"})
    ['NS1 failed: why', '1 more rule with data (--data), 2 with x']
    """
    needs: dict[str, int] = {}
    lines = []
    for code, reason in skipped.items():
        if reason.startswith("needs "):
            needs[reason.removeprefix("needs ")] = needs.get(reason.removeprefix("needs "), 0) + 1
        else:
            lines.append(f"{code} {reason}")
    parts = [f"{n} with {what}" for what, n in needs.items()]
    if parts:
        count, _, rest = parts[0].partition(" ")
        lines.append(", ".join([f"{count} more rule{'' if count == '1' else 's'} {rest}", *parts[1:]]))
    return lines


def finding_text(finding: Finding) -> str:
    """Return one finding as a paragraph.

    >>> from normscope.core.finding import Severity
    >>> one = Finding("NS101", Severity.WARNING, "conv", "a bias has no effect", fix="bias=False", effect="none")
    >>> print(finding_text(one))
    NS101 warning (likely) conv: a bias has no effect
        effect: none
        fix: bias=False
    """
    place = finding.place or "model"
    head = f"{finding.code} {finding.severity.value} ({finding.certainty.value}) {place}: {finding.message}"
    lines = _wrapped(head, "", "    ")
    if finding.effect:
        lines += _wrapped(f"effect: {finding.effect}", "    ", "         ")
    if finding.explains:
        lines += _wrapped(f"also behind: {', '.join(finding.explains)}", "    ", "         ")
    if finding.fix:
        lines += _wrapped(f"fix: {finding.fix}", "    ", "         ")
    return "\n".join(lines)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """Return a text in lines; module paths and numbers are never broken."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def findings_html(result: CheckResult) -> str:
    """Return the findings as a small HTML page of its own, without scripts, fonts or anything to fetch.

    >>> "no findings" in findings_html(CheckResult("net", ()))
    True
    """
    rows = "\n".join(_row(f) for f in result.findings)
    head = "".join(f"<th>{h}</th>" for h in ("code", "severity", "certainty", "place", "finding", "effect", "fix"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>" if rows else ""
    purpose = f" for {result.purpose}" if result.purpose else ""
    title = html.escape(f"{result.model}{purpose}: {counts_text(result)}")
    skipped = "".join(f"<li>{c} {html.escape(reason)}</li>" for c, reason in result.skipped.items())
    rest = f"<h2>not checked</h2><ul>{skipped}</ul>" if skipped else ""
    style = (
        "body{font:16px/1.4 system-ui,sans-serif;margin:2rem;max-width:80rem}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #999;padding:.3rem .6rem;text-align:left;vertical-align:top}"
        ".error{color:#b00020}.warning{color:#8a5a00}"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style></head><body><h1>{title}</h1>{table}{rest}</body></html>"
    )


def _row(finding: Finding) -> str:
    """Return one finding as a row of a table."""
    severity = finding.severity.value
    cells = (
        f"<td>{finding.code}</td><td class={severity}>{severity}</td><td>{finding.certainty.value}</td>"
        f"<td><code>{html.escape(finding.place or 'model')}</code></td>"
        f"<td>{html.escape(finding.message)}</td><td>{html.escape(finding.effect)}</td><td>{html.escape(finding.fix)}</td>"
    )
    return f"<tr>{cells}</tr>"
