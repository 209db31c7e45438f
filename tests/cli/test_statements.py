"""``normscope statements``: the whole registry."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

from normscope.core.statement import PAPERS
from normscope.papers.explain import every_statement

Run = Callable[..., Any]


def test_lists_paper_number_holds_and_function(run: Run) -> None:
    """The table names each paper and statement."""
    result = run("statements")
    assert result.exit_code == 0
    assert "than2025: " + PAPERS["than2025"] in result.stdout
    row = next(line for line in result.stdout.splitlines() if "lipschitz.theorem_9.theorem_9" in line)
    assert row.split()[:2] == ["Theorem", "9"]


def test_json_has_every_statement(run: Run) -> None:
    """The JSON form is the registry."""
    found = json.loads(run("statements", "--json").stdout)
    assert [tuple(s.values()) for s in found] == [(s.paper, s.number, s.holds, s.function) for s in every_statement()]


def test_every_function_exists() -> None:
    """Each function named can be imported."""
    for item in every_statement():
        parts = item.function.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            try:
                found: Any = importlib.import_module(".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            for name in parts[cut:]:
                found = getattr(found, name)
            break
        assert callable(found) or isinstance(found, property), item.function
