"""Findings as workflow commands of GitHub Actions: annotations on a pull request."""

from __future__ import annotations

from normscope.core.finding import Finding, Severity
from normscope.doctor.run import CheckResult
from normscope.report.sarif import Source

_COMMANDS = {Severity.INFO: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def github_text(result: CheckResult, source: Source | None = None) -> str:
    """Return one workflow command for each finding.

    Args:
        result: what ``check`` returned.
        source: the model's file, if it has one.

    >>> one = Finding("NS101", Severity.WARNING, "conv", "100 % gone")
    >>> github_text(CheckResult("net", (one,)), Source("net.py", 3))
    '::warning file=net.py,line=3,title=NS101 conv::100 %25 gone (likely)'
    """
    return "\n".join(_command(f, source) for f in result.findings)


def _command(finding: Finding, source: Source | None) -> str:
    """Return the command of one finding."""
    properties = {} if source is None else {"file": source.file, "line": str(source.line)}
    properties["title"] = f"{finding.code} {finding.place or 'model'}"
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    parts = [f"{finding.message} ({finding.certainty.value})"]
    parts += [f"{key}: {text}" for key, text in (("effect", finding.effect), ("fix", finding.fix)) if text]
    return f"::{_COMMANDS[finding.severity]} {listed}::{_data(chr(10).join(parts))}"


def _data(text: str) -> str:
    """Escape a message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property.

    >>> _property("a,b:c")
    'a%2Cb%3Ac'
    """
    return _data(text).replace(":", "%3A").replace(",", "%2C")
