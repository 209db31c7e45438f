"""``normscope explain``: text, JSON and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize("words", [["Theorem 13"], ["Theorem", "13"], ["than2025", "theorem", "13"]])
def test_a_theorem(run: Run, words: list[str]) -> None:
    result = run("explain", *words)
    assert result.exit_code == 0
    for piece in (
        "001-T13(8)",
        "verdict   false",
        "measured  true: 5",
        "code      normscope/papers/than2025/extremal/theorem_13_networks.py:",
    ):
        assert piece in result.stdout


def test_several_words_are_explained_one_after_the_other(run: Run) -> None:
    """And where one of them is unknown, what was asked for is named as a whole."""
    result = run("explain", "certified", "NS101")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines() if not line.startswith(" ") and line] == [
        "certified",
        "NS101",
    ]
    wrong = run("explain", "certified", "NS1O1")
    assert wrong.exit_code == 2
    assert "'certified NS1O1'" in wrong.stderr


def test_json_alone(run: Run) -> None:
    data = json.loads(run("explain", "001-L1", "--json").stdout)
    assert data["parts"][0]["verdict"] == "false"
    assert data["parts"][0]["code"][0]["file"] == "normscope/operators/normalizers/batch_norm.py"
    word = json.loads(run("explain", "certified", "--json").stdout)
    assert len(word["parts"]) == 1


@pytest.mark.parametrize(("text", "said"), [("Theorm 13", "Theorem 13"), ("qqqqqqq", "docs/words.md lists all words")])
def test_mistakes_are_one_line(run: Run, text: str, said: str) -> None:
    result = run("explain", text)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("word", ["activation patterns", "floor of chain bounds", "decades", "largest Jacobian"])
def test_words_of_the_tables_of_analyze(run: Run, word: str) -> None:
    assert run("explain", word).stdout.startswith(f"{word}: ")
