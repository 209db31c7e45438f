"""Findings as text and as a page."""

from __future__ import annotations

from html.parser import HTMLParser

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.run import CheckResult
from normscope.report.findings import WIDTH, findings_html, findings_text

LONG = Finding(
    "NS101", Severity.WARNING, "a.b", "word " * 60 + "end", {"n": 1}, Certainty.PROVED, fix="do <this> & that " * 10
)
RESULT = CheckResult("net", (LONG, LONG), ("NS101", "NS102"), {"NS203": "needs data", "NS601": "needs data"}, 3, True)


def test_text_is_wrapped_and_ends_with_a_summary() -> None:
    """Every line fits; reasons are told once."""
    lines = findings_text(RESULT).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[0].startswith("NS101 warning (proved) a.b: word")
    assert "2 more rules with data" in lines
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
    """And fetches nothing."""
    page = findings_html(RESULT)
    parser = _Tags()
    parser.feed(page)
    assert parser.tags.count("tr") == 3
    assert "do <this> & that" in parser.text
    assert not {"script", "link", "img", "this"} & set(parser.tags)
