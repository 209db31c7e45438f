"""Every word that stands beside a number is explained."""

from __future__ import annotations

from normscope.cli.explain import _word
from normscope.core.finding import Certainty, Severity
from normscope.core.value import Kind, Value
from normscope.core.words import KINDS, WORDS
from normscope.report.numbers import kind_text


def test_every_kind_severity_and_certainty_has_its_sentence() -> None:
    """As it is written in reports."""
    shown = {kind_text(Value(0.0, kind)) for kind in Kind if kind is not Kind.PROBABILISTIC}
    assert shown | {"probabilistic"} <= set(KINDS)
    assert {s.value for s in Severity} | {c.value for c in Certainty} <= set(WORDS)


def test_words_are_found_however_they_are_written() -> None:
    """Capitals and hyphens do not matter; what is no word is left to the rest of explain."""
    assert _word("Variance-Floor") == f"variance floor: {WORDS['variance floor']}"
    assert _word("frozen batch") == f"frozen-batch: {WORDS['frozen-batch']}"
    assert _word("NS101") is None
