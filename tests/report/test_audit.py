"""The audit as people read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normscope import audit, explain
from normscope.papers.audit import Audit, CheckedClaim, every_claim
from normscope.papers.claim import Claim, Outcome, Verdict
from normscope.papers.explain import Answer, Explanation
from normscope.report.audit import (
    answer_sections,
    audit_markdown,
    audit_sections,
    markdown_row,
    measured_text,
    totals_text,
)
from normscope.report.table import plain_text

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
PART = ["001-L1", "001-C11", "001-C14=", "002-LN", "000-tight", "001-HKK"]


def _entry(outcome: Outcome | None, error: str = "") -> CheckedClaim:
    return CheckedClaim(
        Claim("001-Z", "than2025", "Lemma |0|", "a|b is c*d*e", "f", lambda: Outcome(Verdict.HOLDS)), outcome, error
    )


def test_numbers_have_four_digits_and_noise_none() -> None:
    assert [measured_text(x) for x in (1 / 3, 1e10, -2.5, float("inf"), 1e-11)] == [
        "0.3333",
        "1e+10",
        "-2.5",
        "inf",
        "1e-11",
    ]
    assert measured_text(-3e-16) == "< 1e-12"


def test_a_table_for_each_paper_and_the_totals() -> None:
    text = plain_text(audit_sections(audit(only=["001-L1", "002-BN"])))
    assert text.splitlines()[0].startswith("001: K. Than")
    assert "001-L1  Lemma 1  false" in text
    assert text.endswith("2 claims checked: 2 false")


def test_details_show_claim_numbers_and_correction() -> None:
    text = plain_text(audit_sections(audit(only=["001-L1"]), details=True))
    for piece in (
        "says      With population",
        "verdict   false: ",
        "instead   ||BN||_Lip",
        "measured  printed: 0.4167",
    ):
        assert piece in text
    assert text.endswith("1 claim checked: 1 false")


def test_an_error_is_in_the_table_and_in_the_totals() -> None:
    found = Audit((_entry(None, "ValueError: no"),))
    assert "ValueError: no" in plain_text(audit_sections(found))
    assert totals_text(found) == "1 claim checked: 1 error"
    assert "**error**" in audit_markdown(found)


def test_a_loose_claim_says_by_how_much() -> None:
    text = plain_text(audit_sections(Audit((_entry(Outcome(Verdict.LOOSE, {}, "so", 4.0)),))))
    assert "so (factor 4)" in text


def test_cells_are_escaped() -> None:
    row = markdown_row(_entry(Outcome(Verdict.FALSE, {"|x|": 1.5, "y": True}, "it is |x|")))
    assert row == r"| 001-Z | Lemma \|0\| | a\|b is c\*d\*e | **false** | \|x\|: 1.5; y: yes. It is \|x\|. | f |"


def test_what_is_true_has_its_own_word() -> None:
    parts = [
        Explanation("claim", "a", verdict="holds", corrected="this"),
        Explanation("claim", "b", verdict="false", corrected="this"),
        Explanation("rule", "c", corrected="this"),
    ]
    assert [section.sentences[-1].split() for section in answer_sections(Answer("several", tuple(parts)))] == [
        ["exactly", "this"],
        ["instead", "this"],
        ["do", "this"],
    ]


def test_explanations_show_where_the_code_is() -> None:
    text = plain_text(answer_sections(explain("Lemma 5")))
    assert re.search(r"code      normscope/lipschitz/theorem_9.py:\d+ \(lemma_5\)\n", text)
    assert "holds     1-Lipschitz activations, plain chain" in text


@pytest.mark.parametrize("id", PART)
def test_the_page_is_what_the_checks_find_now(id: str) -> None:
    """Regenerate with ``normscope audit --markdown docs/audit.md``."""
    (entry,) = audit(only=[id]).entries
    assert markdown_row(entry) in PAGE.read_text().splitlines()


def test_the_page_has_every_claim_once() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines() if " | **" in line]
    assert sorted(rows) == sorted(every_claim())
