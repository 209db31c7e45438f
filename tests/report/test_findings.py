"""Findings as text and as a page."""

from __future__ import annotations

from html.parser import HTMLParser

from normscope.core.finding import Certainty, Finding, Severity
from normscope.core.result import Coverage, Result
from normscope.doctor.run import CheckResult
from normscope.report.findings import WIDTH, check_sections, findings_text, github_text
from normscope.report.html import report_html
from normscope.report.sarif import SourceLocation, sarif_text

LONG = Finding(
    "NS101", Severity.WARNING, "a.b", "word " * 60 + "end", {"n": 1}, Certainty.PROVED, fix="do <this> & that " * 10
)
RESULT = CheckResult("net", (LONG, LONG), ("NS101", "NS102"), {"NS203": "needs data", "NS601": "needs data"}, 3, True)


def test_text_is_wrapped_and_ends_with_a_summary() -> None:
    """Every line fits; reasons are told once."""
    lines = findings_text(RESULT).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[0].startswith("NS101 warning (proved) a.b: word")
    assert "Not run: 2 rules that need data." in lines
    assert lines[-1] == "net: 2 warnings (2 rules ran, 2 could not, 3 hidden by settings or baseline)"


class _Tags(HTMLParser):
    """Collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Note a tag."""
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data


def test_the_page_holds_every_finding_escaped() -> None:
    """And fetches nothing; the one page for all reports."""
    page = report_html({}, sections=check_sections(RESULT))
    parser = _Tags()
    parser.feed(page)
    assert parser.text.count("NS101 warning (proved) a.b") == 2
    assert "do <this> & that" in parser.text
    assert not {"link", "img", "this"} & set(parser.tags)


def test_one_command_for_each_finding() -> None:
    """Severities become commands; commas, colons and percent signs are escaped."""
    findings = (
        Finding("NS204", Severity.ERROR, "bn", "half of it: 50 %, gone"),
        Finding("NS003", Severity.INFO, "", "a remark"),
    )
    result = CheckResult("m", findings)
    assert github_text(result, SourceLocation("a,b.py", 2)).splitlines() == [
        "::error file=a%2Cb.py,line=2,title=NS204 bn::half of it: 50 %25, gone (likely)",
        "::notice file=a%2Cb.py,line=2,title=NS003 model::a remark (likely)",
    ]
    assert github_text(result).startswith("::error title=NS204 bn::")
    assert github_text(CheckResult("m", ())) == ""


def test_every_format_carries_purpose_certainty_cause_and_fix() -> None:
    """Text, JSON, SARIF, annotations and both pages."""
    one = Finding("NS212", Severity.WARNING, "bn", "too large", certainty=Certainty.PROVED, fix="use a tenth",
                  cause="momentum of another framework", effect="noise")  # fmt: skip
    result = CheckResult("net", (one,), ("NS212",), purpose="finetune")
    page = report_html(Result({"name": "net"}, {}, Coverage(0, 0, 1.0, 0), (), (), {}), findings=[one],
                       title="net for finetune")  # fmt: skip
    forms = (
        findings_text(result),
        result.to_json(),
        sarif_text(result),
        github_text(result),
        report_html({}, sections=check_sections(result), title="net for finetune"),
        page,
    )
    for text in forms:
        for wanted in ("finetune", "proved", "momentum of another framework", "use a tenth"):
            assert wanted in text
