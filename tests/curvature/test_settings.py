"""Settings that make no sense are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.curvature.settings import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("top", 0), ("bottom", -1), ("max_products", 0), ("probes", -1), ("density", -2), ("tolerance", float("nan")),
     ("batch", 0), ("limit", 0)],
)  # fmt: skip
def test_numbers_that_are_too_small_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"Expected {name} to be at least"):
        Settings(**{name: value})


def test_a_problem_takes_them_on() -> None:
    data = torch.zeros(9, 2), torch.zeros(9, 1)
    problem = Settings(batch=4, limit=6, parameters="bias", dtype=torch.float64).problem(nn.Linear(2, 1), data, None)
    assert [term.inputs.batch for term in problem.terms] == [4, 2]
    assert [block.name for block in problem.blocks] == ["bias"]
    assert problem.dtype == torch.float64
