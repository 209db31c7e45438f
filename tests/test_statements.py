"""Statements: every one names a known paper, is tested by name, and is what results refer to."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from torch import nn

import normscope
from networks import Lambda, points, seeded
from normscope import analyze
from normscope.core.result import Result
from normscope.core.statement import PAPERS
from normscope.core.value import Value
from normscope.papers.audit import every_claim
from normscope.papers.explain import every_statement

TESTS = Path(__file__).parent
SOURCES = Path(normscope.__file__).parent
OWN = [s for s in every_statement() if s.function.startswith("normscope.")]


@functools.cache
def _words_of_tests() -> frozenset[str]:
    """Return every name that occurs in the tests as a name, not only in a comment or a text."""
    found: set[str] = set()
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                found.update(alias.name for alias in node.names)
    return frozenset(found)


def test_each_names_a_known_paper_and_its_hypotheses() -> None:
    """With a number and what it holds for."""
    for item in OWN:
        assert item.paper in PAPERS
        assert item.number.strip()
        assert item.holds.strip()


def test_each_has_a_test_that_uses_its_function() -> None:
    """The function, or the method, is used somewhere in the tests."""
    for item in OWN:
        name = item.function.rsplit(".", 1)[-1]
        # A method may be tested through the one that calls it: the composition's outputs are part of its total.
        through = {"outputs": "run"}
        assert {name, through.get(name, name)} & _words_of_tests(), f"no test uses {item.function}"


def test_there_are_statements_or_claims_of_every_paper() -> None:
    """None of the papers is cited for nothing."""
    assert {s.paper for s in OWN} | {claim.paper for claim in every_claim().values()} == set(PAPERS)


def _labels_in(result: Result) -> set[str]:
    """Return the statements of all values of a result."""
    found: set[str] = set()

    def visit(value: object) -> None:
        if isinstance(value, Value):
            found.add(value.statement)
        elif isinstance(value, dict):
            for item in value.values():
                visit(item)
        elif isinstance(value, tuple | list):
            for item in value:
                visit(item)
        elif hasattr(value, "__dataclass_fields__"):
            visit(vars(value))

    visit(vars(result))
    return found


def test_results_refer_to_statements_that_exist() -> None:
    """Every number of an analysis with all kinds of normalizers names its paper, and one of ours is in the theory."""
    model = seeded(
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4),
            nn.LayerNorm([4, 4, 4]), nn.RMSNorm([4, 4, 4]), nn.Flatten(), nn.Linear(64, 3),
        )
    )  # fmt: skip
    labels = _labels_in(analyze(model, points(4, 2, 6, 6)))
    labels |= _labels_in(analyze(seeded(Lambda(lambda s, x: s.a(x), a=nn.Linear(3, 2)))))
    theory = (SOURCES.parents[1] / "docs" / "theory.md").read_text()
    numbers = {(s.paper, s.number) for s in OWN}
    for label in labels:
        paper, _, number = label.partition(" ")
        assert paper in PAPERS, label
        if paper == "normscope":
            assert re.search(rf"\b{re.escape(number)}\b", theory), f"{label} is not in docs/theory.md"
        else:
            plain = re.sub(r" \(\d\)$", "", number)  # a corollary may have several parts
            assert (paper, plain) in numbers or (paper, number) in numbers, label


def test_labels_in_the_code_are_of_known_papers() -> None:
    """``statement="paper number"``, wherever a value is made: the number is one that some function implements."""
    known = {s.label for s in OWN}
    theory = (SOURCES.parents[1] / "docs" / "theory.md").read_text()
    for file in sorted(SOURCES.rglob("*.py")):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "statement" in text else ():
            if isinstance(node, ast.keyword) and node.arg == "statement" and isinstance(node.value, ast.Constant):
                label = str(node.value.value)
                paper, _, number = label.partition(" ")
                if paper in PAPERS:
                    ours = paper == "normscope" and re.search(rf"\b{re.escape(number)}\b", theory) is not None
                    assert label in known or ours, f"{file.name} refers to {label}, which nothing implements"
