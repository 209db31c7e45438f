"""The catalogue of rules, and the examples on their pages."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normscope.doctor.rules as package
from normscope import check
from normscope.core.finding import Finding
from normscope.doctor.catalogue import RULES
from normscope.doctor.rule import NEEDS, Rule
from normscope.doctor.run_history import MetricHistory, RunHistory
from rule_pages import FAMILIES

ALL = list(RULES.values())


def test_every_file_of_rules_is_in_the_catalogue() -> None:
    """One rule, one file, one code, one name, one test file."""
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    assert {m.RULE.code for m in modules} == set(RULES)
    assert len(RULES) == len({rule.name for rule in ALL}) == len(modules)
    tests = {p.stem.removeprefix("test_") for p in (Path(__file__).parent / "rules").glob("test_*.py")}
    assert tests == {m.__name__.rpartition(".")[2] for m in modules}


def test_a_rule_names_the_metrics_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are not kept during a run."""
    asked: set[str] = set()

    def metrics(history: RunHistory, group: str) -> Iterator[MetricHistory]:
        asked.add(group)
        return iter(())

    monkeypatch.setattr(RunHistory, "metrics", metrics)
    for rule in ALL:
        asked.clear()
        if rule.check_history is not None:
            list(rule.check_history(rule, RunHistory()))
        assert asked == set(rule.metrics)


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_each_says_everything(rule: Rule) -> None:
    """Codes of one form, in a family; no empty text; known needs; threads as they stand on GitHub."""
    assert re.fullmatch(r"NS\d{3}", rule.code)
    assert rule.code[:3] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    for text in (rule.title, rule.why, rule.effect, rule.fix, rule.example, rule.good):
        assert text.strip()
    assert set(rule.needs) <= set(NEEDS)
    assert set(rule.explains) <= set(RULES) - {rule.code}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+/(issues|pull)/\d+", thread) for thread in rule.threads)


def _findings(code: str, text: str) -> list[Finding]:
    """Run an example and return what its rule finds."""
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(text, names)
    options = names.get("options", {})
    result = check(names["model"], names.get("data"), names.get("optimizer"), select=[code], **options)
    return list(result.findings)


@pytest.mark.turns(5)
@pytest.mark.parametrize("code", RULES)
def test_the_examples_are_what_the_page_says(code: str) -> None:
    """The first is found, the second is not."""
    assert _findings(code, RULES[code].example)
    assert _findings(code, RULES[code].good) == []
