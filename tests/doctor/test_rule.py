"""A rule and its findings."""

from __future__ import annotations

from torch import nn

from normscope.core.finding import Certainty, Severity
from normscope.doctor.catalogue import RULES
from normscope.doctor.subject import Subject


def test_a_finding_has_the_rules_own_unless_told_otherwise() -> None:
    """Severity, certainty, fix."""
    rule = RULES["NS101"]
    plain = rule.finding("a", "m")
    assert (plain.code, plain.severity, plain.certainty, plain.fix) == (
        "NS101",
        rule.severity,
        rule.certainty,
        rule.fix,
    )
    other = rule.finding("a", "m", severity=Severity.INFO, certainty=Certainty.LIKELY, fix="f")
    assert (other.severity, other.certainty, other.fix) == (Severity.INFO, Certainty.LIKELY, "f")


def test_what_is_missing_is_told_in_words() -> None:
    """A subject with nothing but a model."""
    assert RULES["NS203"].missing(Subject(nn.Linear(1, 1))) == ["the model's graph", "data (--data)"]
    assert RULES["NS204"].missing(Subject(nn.Linear(1, 1))) == []
