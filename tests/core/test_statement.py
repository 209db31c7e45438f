"""The registry of statements: every function that names one can be found, and only known papers are named."""

from __future__ import annotations

import pytest

from normscope.core.statement import PAPERS, Statement, statement, statements


def test_a_function_is_registered_and_unchanged() -> None:
    """The decorator returns the function itself."""

    def bound() -> float:
        return 2.0

    assert statement("than2025", "Lemma 99", holds="x >= 0")(bound) is bound
    (found,) = [s for s in statements() if s.number == "Lemma 99"]
    assert found.paper == "than2025"
    assert found.holds == "x >= 0"
    assert found.label == "than2025 Lemma 99"
    assert found.function.endswith("test_a_function_is_registered_and_unchanged.<locals>.bound")


def test_the_default_is_as_stated() -> None:
    """A statement without hypotheses of its own holds as stated."""
    statement("rump2006", "Theorem 98")(lambda: 0.0)
    (found,) = [s for s in statements() if s.number == "Theorem 98"]
    assert found.holds == "as stated"


def test_unknown_papers_are_refused() -> None:
    """With the list of the known ones."""
    with pytest.raises(KeyError, match=r"Unknown paper 'nobody1999'.*rump2006"):
        statement("nobody1999", "Lemma 1")


def test_the_registry_cannot_be_changed_from_outside() -> None:
    """What is handed out is a tuple of frozen statements."""
    found = statements()
    assert isinstance(found, tuple)
    with pytest.raises(AttributeError):
        Statement("than2025", "1", "", "f").paper = "other"  # type: ignore[misc]


def test_every_paper_has_a_title() -> None:
    """The keys the code may cite."""
    assert {"than2025", "than2025slides", "kuczynski1992", "rump2006", "normscope"} <= set(PAPERS)
    assert all(len(title) > 20 for title in PAPERS.values())
