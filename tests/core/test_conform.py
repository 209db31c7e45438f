"""Objects checked against their declared types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from normscope.core.conform import nonconforming
from normscope.core.result import Result
from report.samples import deep, opaque, result


@pytest.mark.parametrize("whole", [result(), deep(5), result(coverage=opaque())])
def test_whole_results_conform(whole: Result) -> None:
    """Every field of every row."""
    assert nonconforming(whole, Result) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"end_to_end": {"global": {"log10": 1.0}}}, ".end_to_end['global'] is dict, not Value"),
        ({"messages": ("a", 3)}, ".messages[1] is int, not str"),
        ({"effect": []}, ".effect is list, not dict"),
        ({"layers": (replace(result().layers[0], shape=("a",)),)}, ".layers[0].shape[0] is str, not int"),
        ({"coverage": replace(result().coverage, ops=True)}, ".coverage.ops is bool, not int"),
    ],
)
def test_the_first_fault_is_named(changes: dict[str, Any], said: str) -> None:
    """With its place, what it is and what it should be."""
    assert nonconforming(replace(result(), **changes), Result).endswith(said)
