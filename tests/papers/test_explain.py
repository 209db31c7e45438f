"""Explanations: what is asked for is found, what is not there is said with what is near."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import normscope
from normscope import explain
from normscope.core.errors import InputError
from normscope.lipschitz.theorem_9 import lemma_5
from normscope.papers import explain as explain_module
from normscope.papers.explain import Explanation, Topic, every_statement, located, statement_modules

ROOT = Path(normscope.__file__).parents[1]


@pytest.mark.parametrize("text", ["001-T13(8)", "001-t13(8)", "  001-T13(8) "])
def test_a_claim_by_its_id(text: str) -> None:
    (part,) = explain(text).parts
    assert (part.kind, part.name, part.verdict) == ("claim", "001-T13(8)", "false")
    assert part.measured["true"] == pytest.approx(5.0)
    assert part.code
    assert part.corrected


@pytest.mark.parametrize("text", ["Theorem 13", "theorem 13", "than2025 Theorem 13", "001 theorem 13"])
def test_a_theorem_gives_its_claims_and_its_functions(text: str) -> None:
    parts = explain(text).parts
    assert [p.name for p in parts if p.kind == "claim"] == ["001-T13(8)", "001-T13(9)"]
    assert {p.name for p in parts if p.kind == "statement"} == {"than2025 Theorem 13"}


def test_a_number_is_not_a_beginning() -> None:
    """Theorem 1 is that of the slides, not Theorems 12, 13 and 15 of the paper."""
    assert [p.name for p in explain("than2025slides Theorem 1").parts if p.kind == "claim"] == ["002-T1"]


def test_a_statement_of_ours() -> None:
    parts = explain("Proposition LN-1").parts
    assert [p.name for p in parts] == ["normscope Proposition LN-1"]
    assert parts[0].code[0].name == "normscope.operators.normalizers.secular_equation.centered_scale_norm"
    assert parts == explain("normscope Proposition LN-1").parts


def test_the_place_of_code_is_where_it_stands() -> None:
    place = located("normscope.lipschitz.theorem_9.lemma_5")
    lines = (ROOT / place.file).read_text().splitlines()
    assert any("def lemma_5" in line for line in lines[place.line - 1 : place.line + 2])
    assert place.line == inspect.getsourcelines(lemma_5)[1]


def test_the_place_of_a_method() -> None:
    assert located("normscope.core.value.Value.on").file == "normscope/core/value.py"


@pytest.mark.parametrize("name", ["normscope.nothing", "normscope.core.value.nothing", "nowhere.at.all"])
def test_code_that_is_not_there(name: str) -> None:
    with pytest.raises(LookupError, match=name):
        located(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("001-L99", "Did you mean "),
        ("Theorem 133", "Theorem 13"),
        ("than2025 Lemma 99", "Lemma"),
        ("%%%%", "`normscope audit` all claims"),
        ("", "is named ''"),
    ],
)
def test_what_is_not_there_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        explain(text)
    assert said in str(caught.value)


def test_a_name_is_a_string() -> None:
    with pytest.raises(InputError, match="Expected a name as a string, such as 'certified' or 'NS101', got int"):
        explain(5)  # type: ignore[arg-type]


def test_what_is_in_several_papers_is_asked_back(monkeypatch: pytest.MonkeyPatch) -> None:
    more = Topic(("Lemma 1",), lambda: Explanation("claim", "other"), "akbar2025")
    every = [*explain_module.topics(), more]
    monkeypatch.setattr(explain_module, "topics", lambda: every)
    with pytest.raises(InputError, match=r"Choose one of than2025 Lemma 1, akbar2025 Lemma 1"):
        explain("Lemma 1")
    assert [p.name for p in explain("akbar2025 Lemma 1").parts] == ["other"]
    assert "001-L1" in [p.name for p in explain("than2025 Lemma 1").parts]


def test_the_json_form_is_strict() -> None:
    data = json.loads(explain("Lemma 2").to_json(), parse_constant=pytest.fail)
    assert {part["name"] for part in data["parts"]} >= {"001-L2a", "001-L2b", "than2025 Lemma 2"}
    assert all(place["line"] > 0 for part in data["parts"] for place in part["code"])


def test_every_claim_and_statement_is_found_by_its_own_name() -> None:
    topics = list(explain_module.topics())
    for topic in topics:
        name = f"{topic.paper} {topic.names[0]}" if topic.paper else topic.names[0]
        assert topic.names in {t.names for t in explain_module._found(name, topics)}, name


PROGRAM = """
import importlib, pkgutil, sys
import normscope
from normscope.papers.explain import every_statement
first = every_statement()
for folder in ("operators", "linalg", "lipschitz", "papers", "geometry", "analysis"):
    package = importlib.import_module(f"normscope.{folder}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
sys.exit(first != every_statement())
"""


@pytest.mark.turns(3)
def test_importing_everything_adds_no_statement() -> None:
    """What is found by looking at the sources is what is there once all is imported."""
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0


def test_modules_are_named_as_they_are_imported() -> None:
    names = statement_modules()
    assert len(set(names)) == len(names)
    assert not any(name.endswith("__init__") for name in names)


def test_statements_are_ours_and_sorted() -> None:
    found = every_statement()
    assert all(s.function.startswith("normscope.") for s in found)
    assert list(found) == sorted(found, key=lambda s: (s.paper, s.number, s.function))
    assert len(set(found)) == len(found)


def _statements(data: object) -> set[str]:
    """Return every statement in a JSON form."""
    if isinstance(data, dict):
        own = {data["statement"]} if isinstance(data.get("statement"), str) else set()
        return own.union(*map(_statements, data.values()))
    return set().union(*map(_statements, data)) if isinstance(data, list) else set()


def test_every_statement_of_a_result_is_explained() -> None:
    """As the file of a result names it."""
    norms = (nn.BatchNorm2d(2), nn.InstanceNorm2d(2), nn.GroupNorm(1, 2))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), *norms, nn.ReLU(), nn.Flatten(), nn.Linear(32, 4), nn.LayerNorm(4)).eval()
    x = torch.ones(3, 1, 6, 6).cumsum(-1)
    results = (normscope.analyze(net, x), normscope.weight_lipschitz(net, x))
    found = set().union(*(_statements(json.loads(result.to_json())) for result in results)) - {""}
    assert {"normscope F1", "normscope F10", "than2025 Corollary 10 (1)"} <= found
    topics = list(explain_module.topics())
    assert [name for name in sorted(found) if not explain_module._found(name, topics)] == []


def test_composition_is_what_f10_says_first() -> None:
    """A heading of the theory comes before a claim and a function below it."""
    parts = explain("F10").parts
    assert parts[0].says.startswith("composition: ")
    assert parts == explain("normscope F10").parts


@pytest.mark.parametrize(("text", "name"), [("GEN-20", "Proposition GEN-20"), ("grn-1", "Theorem GRN-1")])
def test_numbers_of_the_theory_need_no_word_before_them(text: str, name: str) -> None:
    assert {part.name for part in explain(text).parts} == {f"normscope {name}"}


def test_a_word_that_is_a_heading_too_is_not_asked_back() -> None:
    """The norm of a layer and the statement called norm."""
    assert [part.kind for part in explain("norm").parts] == ["word", "statement"]


def test_headings_are_those_of_the_theory() -> None:
    """Each with its own name in docs/theory.md, where there is one to read."""
    text = (ROOT.parent / "docs" / "theory.md").read_text()
    assert [name for name in explain_module.SECTIONS if not re.search(rf"^(##|\*\*).*\b{name}:?\b", text, re.M)] == []
