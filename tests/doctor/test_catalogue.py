"""The catalogue of rules."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import normscope.doctor.rules as package
from checking import found
from normscope.doctor.catalogue import RULES
from normscope.doctor.pages import FAMILIES
from normscope.doctor.rule import NEEDS, Rule

ALL = list(RULES.values())


def test_every_file_of_rules_is_in_the_catalogue() -> None:
    """One rule, one file, one code, one name."""
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    assert {m.RULE.code for m in modules} == set(RULES)
    assert len({m.RULE.code for m in modules}) == len({m.RULE.name for m in modules}) == len(modules)
    tests = {p.stem.removeprefix("test_") for p in (Path(__file__).parent / "rules").glob("test_*.py")}
    assert tests == {m.__name__.rpartition(".")[2] for m in modules}


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_each_says_everything(rule: Rule) -> None:
    """Codes of one form, in a family; no empty text; known needs."""
    assert re.fullmatch(r"NS\d{3}", rule.code)
    assert rule.code[:3] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    for text in (rule.title, rule.why, rule.fix, rule.example, rule.good):
        assert text.strip()
    assert set(rule.needs) <= set(NEEDS)


#: Examples that are whole models, and the shape of one input of theirs.
EXAMPLES = {
    "NS101": (3, 8, 8),
    "NS102": (8,),
    "NS103": (8, 6, 6),
    "NS104": (3, 6, 6),
    "NS202": (8, 4, 4),
    "NS302": (64,),
    "NS505": (8, 6, 6),
}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_are_what_the_page_says(code: str) -> None:
    """The first is found, the second is not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bad, good = (eval(text, {"nn": nn, "torch": torch}) for text in (RULES[code].example, RULES[code].good))
    assert found(code, bad.eval(), input_shape=EXAMPLES[code])
    good_shape = (8,) if code == "NS505" else EXAMPLES[code]  # a linear layer instead of a convolution
    assert found(code, good.eval(), input_shape=good_shape) == []
