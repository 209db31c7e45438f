"""The documents: every Python snippet runs, every statement is proved somewhere, every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from normscope.core.words import WORDS
from normscope.operators import registry
from normscope.papers.explain import every_statement

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
SNIPPET = re.compile(r"^```(?:python|\{code-cell\})\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Folders whose pages hold snippets; the pages of the doctor's rules have tests of their own.
FOLDERS = ("docs", "tutorials")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.turns(5)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.parent.name in FOLDERS and SNIPPET.search(p.read_text())], ids=lambda p: p.name
)
def test_snippets_run_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippets of a page, one after the other, run and their assertions hold."""
    monkeypatch.chdir(tmp_path)
    registry.find_rule("aten.relu.default")  # every rule of ours is registered before the snippets add theirs
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    source = "\n".join(SNIPPET.findall(page.read_text()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(source, page.name, "exec"), {"__name__": "snippet"})


def test_links_lead_to_files() -> None:
    """Relative links name files of the repository."""
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            assert "://" in target or (page.parent / target).exists(), target


def test_every_statement_of_ours_is_in_the_theory() -> None:
    """Each statement labelled as proved here is found by its number in docs/theory.md, alone or in a range."""
    text = " ".join((ROOT / "docs" / "theory.md").read_text().split())
    ranges = re.findall(r"([A-Z0-9]+)-(\d+) to \1-(\d+)", text)
    covered = {f"{name}-{i}" for name, first, last in ranges for i in range(int(first), int(last) + 1)}
    for item in every_statement():
        if item.paper != "normscope":
            continue
        last = item.number.split()[-1]
        label = last if re.fullmatch(r"[A-Z0-9]+-\d+", last) else item.number
        assert label in covered or re.search(rf"\b{re.escape(label)}\b(?!-?\d)", text), item.number


def test_labels_in_results_are_in_the_theory() -> None:
    """Statements that values carry as ``normscope X`` are headings or bold words of docs/theory.md."""
    text = (ROOT / "docs" / "theory.md").read_text()
    sources = "\n".join(p.read_text() for p in (ROOT / "src").rglob("*.py"))
    labels = set(re.findall(r'"normscope ((?:F\d+|GRN|norm|Jacobian)\b)', sources))
    assert {"F1", "F10", "norm", "Jacobian"} <= labels
    for label in labels:
        assert re.search(rf"(^## .*\b{label}\b|\*\*{label}\b)", text, re.MULTILINE), label


def test_every_page_is_in_the_table_of_contents() -> None:
    """A page nobody can find is of no use."""
    index = (ROOT / "docs" / "index.md").read_text()
    listed = set(re.findall(r"^([\w/*]+)$", index, re.MULTILINE))
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name in listed | {"index", "figures/README"} or name.startswith("checks/NS") or "_build" in name, name


def test_every_word_has_its_sentence_in_the_docs() -> None:
    """The page of words says what `explain` says."""
    text = (ROOT / "docs" / "words.md").read_text()
    for word, says in WORDS.items():
        assert f"{word}\n: {says[0].upper()}{says[1:]}.\n" in text, word


def test_pages_name_no_place_of_one_machine() -> None:
    """No absolute path of a machine."""
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(home|root|work|tmp|Users)/", page.read_text())
