"""Findings as plain text: one paragraph each, the most severe first."""

import re
import textwrap
from collections import Counter
from collections.abc import Mapping

from normscope.core.finding import Finding, Severity
from normscope.doctor.run import CheckResult, counts_text
from normscope.report.numbers import plural
from normscope.report.sarif import SourceLocation
from normscope.report.table import Section

WIDTH = 118


def findings_text(result: CheckResult, width: int = WIDTH) -> str:
    """Return the findings of a check as plain text.

    >>> print(findings_text(CheckResult("net", (), ran=("NS101",), skipped={"NS601": "needs data (--data)"})))
    Not run: 1 rule that needs data (--data).
    net: no findings (1 rule ran, 1 could not)
    """
    blocks = [finding_text(f, width) for f in result.findings]
    lines = [line for text in not_checked(result.skipped) for line in _wrapped(text, "", "    ", width)]
    ran = f"{len(result.ran)} rule{'' if len(result.ran) == 1 else 's'} ran"
    more = f", {len(result.skipped)} could not" if result.skipped else ""
    hidden = f", {result.hidden} hidden by settings or baseline" if result.hidden else ""
    purpose = f" for {result.purpose}" if result.purpose else ""
    lines.append(f"{result.model}{purpose}: {counts_text(result)} ({ran}{more}{hidden})")
    return "\n\n".join([*blocks, "\n".join(lines)])


def check_sections(result: CheckResult, *, typed: bool = False) -> list[Section]:
    """Return the findings of a check as sections: a summary, then one for each finding.

    Options are named as in Python, or as they are typed on the command line.

    >>> check_sections(CheckResult("net", ()))[0].title
    'net: no findings'
    """
    first = Section(f"{result.model}: {counts_text(result)}", after=tuple(not_checked(result.skipped, typed=typed)))
    return [first, *(_section(f) for f in result.findings)]


def _section(finding: Finding) -> Section:
    lines = [finding.message]
    lines += [f"{word}: {text}" for word in ("cause", "effect", "fix") if (text := getattr(finding, word))]
    title = f"{finding.code} {finding.severity.value} ({finding.certainty.value}) {finding.place or 'model'}"
    return Section(title, lines=tuple(lines))


def not_checked(skipped: Mapping[str, str], *, typed: bool = True) -> list[str]:
    """Return one line for each rule that failed, and one with the inputs that further rules need.

    >>> not_checked({"NS601": "needs data (--data)", "NS401": "needs x", "NS402": "needs x", "NS1": "failed: why"})
    ['NS1 failed: why', 'Not run: 1 rule that needs data (--data); 2 that need x.']
    >>> not_checked({"NS601": "needs data (--data)"}, typed=False)
    ['Not run: 1 rule that needs data (data=).']
    """
    needs = Counter(reason.removeprefix("needs ") for reason in skipped.values() if reason.startswith("needs "))
    lines = [f"{code} {reason}" for code, reason in skipped.items() if not reason.startswith("needs ")]
    parts = [f"that {'needs' if n == 1 else 'need'} {what}" for what, n in needs.items()]
    if parts:
        counts = [plural(n, "rule") if i == 0 else str(n) for i, n in enumerate(needs.values())]
        text = "; ".join(f"{count} {part}" for count, part in zip(counts, parts, strict=True))
        lines.append(f"Not run: {text}.")
    return lines if typed else [re.sub(r"--([\w-]+) ?", lambda m: f"{m[1].replace('-', '_')}=", x) for x in lines]


def finding_line(finding: Finding) -> str:
    """Return one finding as one line, as it is printed while the check still runs.

    >>> finding_line(Finding("NS101", Severity.WARNING, "conv", "a bias has no effect; bias=False saves it"))
    'NS101 warning conv: a bias has no effect'
    """
    said = " ".join(finding.message.split()).partition("; ")[0]
    return f"{finding.code} {finding.severity.value} {finding.place or 'model'}: {said}"


def finding_text(finding: Finding, width: int = WIDTH) -> str:
    """Return one finding as a paragraph, in lines of a width.

    >>> from normscope.core.finding import Severity
    >>> one = Finding("NS101", Severity.WARNING, "conv", "a bias has no effect", fix="bias=False", effect="none")
    >>> print(finding_text(one))
    NS101 warning (likely) conv: a bias has no effect
        effect: none
        fix: bias=False
    """
    place = finding.place or "model"
    head = f"{finding.code} {finding.severity.value} ({finding.certainty.value}) {place}: {finding.message}"
    lines = _wrapped(head, "", "    ", width)
    also = ", ".join(finding.explains)
    said = {"cause": finding.cause, "effect": finding.effect, "also explains": also, "fix": finding.fix}
    for word, text in said.items():
        lines += _wrapped(f"{word}: {text}", "    ", "         ", width) if text else []
    return "\n".join(lines)


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    """Return a text in lines; module paths and numbers are never broken."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


_COMMANDS = {Severity.INFO: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def github_text(result: CheckResult, source: SourceLocation | None = None) -> str:
    """Return one workflow command for each finding.

    >>> one = Finding("NS101", Severity.WARNING, "conv", "100 % gone")
    >>> github_text(CheckResult("net", (one,)), SourceLocation("net.py", 3))
    '::warning file=net.py,line=3,title=NS101 conv::100 %25 gone (likely)'
    """
    return "\n".join(_command(f, source, result.purpose) for f in result.findings)


def _command(finding: Finding, source: SourceLocation | None, purpose: str) -> str:
    properties = {} if source is None else {"file": source.file, "line": str(source.line)}
    properties["title"] = f"{finding.code} {finding.place or 'model'}"
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    parts = [f"{finding.message} ({finding.certainty.value})"]
    said = {"cause": finding.cause, "effect": finding.effect, "fix": finding.fix, "purpose": purpose}
    parts += [f"{key}: {text}" for key, text in said.items() if text]
    return f"::{_COMMANDS[finding.severity]} {listed}::{_data(chr(10).join(parts))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property.

    >>> _property("a,b:c")
    'a%2Cb%3Ac'
    """
    return _data(text).replace(":", "%3A").replace(",", "%2C")
