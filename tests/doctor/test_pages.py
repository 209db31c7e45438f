"""The pages of the rules: what a rule says is on its page, and the pages in the documentation are these."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from normscope.doctor.catalogue import RULES
from normscope.doctor.rule import NEEDS
from rule_pages import FAMILIES, INDEX, WIDTH, index, page, write_pages

DOCS = Path(__file__).parents[2] / "docs" / "checks"
ALL = list(RULES.values())


def _words(text: str) -> str:
    return " ".join(text.split())


def test_the_page_of_each_is_up_to_date() -> None:
    """Write them anew with ``python tests/rule_pages.py``."""
    for rule in ALL:
        assert (DOCS / f"{rule.code}.md").read_text() == page(rule)


def test_the_index_is_up_to_date_and_nothing_else_is_there() -> None:
    """No page of a rule that is gone."""
    assert (DOCS / INDEX).read_text() == index()
    assert {p.name for p in DOCS.glob("*.md")} == {INDEX, *(f"{code}.md" for code in RULES)}


def test_a_page_holds_all_that_its_rule_says() -> None:
    """Every text, what it needs, both examples as code; only code may be wider than a line."""
    for rule in ALL:
        text = page(rule)
        for said in (
            rule.title,
            rule.why,
            rule.effect[1:],
            rule.fix[1:],
            f"`{rule.name}`",
            rule.severity.value,
            rule.certainty.value,
        ):
            assert _words(said) in _words(text)
        for need in rule.needs:
            assert NEEDS[need] in _words(text)
        for code in (rule.example, rule.good):
            assert all(f"    {line}".rstrip() in text for line in code.splitlines())
        assert all(len(line) <= WIDTH for line in text.splitlines() if not line.startswith("    "))
        assert all(f"<https://github.com/{thread}>" in text for thread in rule.threads)
        assert text.count("\n## ") == 4 + bool(rule.statement) + bool(rule.threads)


def test_a_rule_that_needs_nothing_and_states_nothing() -> None:
    """Has no heading without content."""
    bare = page(replace(RULES["NS101"], needs=(), statement=""))
    assert "Needs: nothing but the model." in _words(bare)
    assert "## Statement" not in bare


def test_every_rule_is_in_the_index_once_under_its_family() -> None:
    """In order, with a link to its page."""
    parts = re.split(r"^## (NS\d)xx: .*$", index(), flags=re.MULTILINE)[1:]
    families = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(families) == list(FAMILIES)
    found = [(family, code) for family, text in families.items() for code in re.findall(r"\[(NS\d+)\]\(\1\.md\)", text)]
    assert sorted(code for _, code in found) == sorted(RULES)
    assert all(code.startswith(family) for family, code in found)


def test_pages_are_written_where_one_says(tmp_path: Path) -> None:
    """All of them, and they say what the functions return."""
    write_pages(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {INDEX, *(f"{c}.md" for c in RULES)}
    assert (tmp_path / "NS101.md").read_text() == page(RULES["NS101"])
    assert (tmp_path / INDEX).read_text() == index()
