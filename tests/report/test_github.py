"""Workflow commands."""

from __future__ import annotations

from normscope.core.finding import Finding, Severity
from normscope.doctor.run import CheckResult
from normscope.report.github import github_text
from normscope.report.sarif import Source


def test_one_command_for_each_finding() -> None:
    """Severities become commands; commas, colons and percent signs are escaped."""
    findings = (
        Finding("NS204", Severity.ERROR, "bn", "half of it: 50 %, gone"),
        Finding("NS003", Severity.INFO, "", "a remark"),
    )
    result = CheckResult("m", findings)
    assert github_text(result, Source("a,b.py", 2)).splitlines() == [
        "::error file=a%2Cb.py,line=2,title=NS204 bn::half of it: 50 %25, gone (likely)",
        "::notice file=a%2Cb.py,line=2,title=NS003 model::a remark (likely)",
    ]
    assert github_text(result).startswith("::error title=NS204 bn::")
    assert github_text(CheckResult("m", ())) == ""
