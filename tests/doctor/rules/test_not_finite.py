"""NS002: NaN and infinity in weights and values."""

from __future__ import annotations

import torch
from torch import nn

from checking import found
from networks import Lambda
from normscope.core.finding import Severity


def test_a_nan_in_a_weight() -> None:
    """The message names it."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[1] = float("nan")
    (one,) = found("NS002", model)
    assert one.severity is Severity.ERROR
    assert "bias has 1 NaN" in one.message


def test_a_value_that_is_not_finite_on_the_data() -> None:
    """Zero divided by zero before a normalizer."""
    model = Lambda(lambda s, x: s.norm(x / x.abs()), norm=nn.LayerNorm(2))
    assert len(found("NS002", model, torch.zeros(3, 2))) == 1
    assert found("NS002", model, torch.ones(3, 2)) == []
