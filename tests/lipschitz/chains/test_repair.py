"""Multipliers raised as far as a form needs them."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.lipschitz.chains.elimination import eliminate
from normscope.lipschitz.chains.form import chain
from normscope.lipschitz.chains.repair import repaired


def _form() -> tuple[object, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(b, a, generator=generator, dtype=torch.float64) for a, b in ((3, 5), (5, 4), (4, 2))]
    return chain(weights), weights


def test_multipliers_that_are_large_enough_stay() -> None:
    """And leave what elimination leaves."""
    form, _ = _form()
    given = [torch.full((5,), 300.0).double(), torch.full((4,), 30.0).double()]
    rest = eliminate(form, given)  # type: ignore[arg-type]
    found = repaired(form, given, torch.zeros(1).double())  # type: ignore[arg-type]
    assert rest is not None
    assert found is not None
    assert all(torch.equal(a, b) for a, b in zip(found[0], given, strict=True))
    assert float(found[1]) == pytest.approx(float(torch.linalg.eigvalsh(rest.sources).max()), rel=1e-12)


def test_small_ones_are_raised_until_they_bound() -> None:
    """The result bounds the network with every activation open."""
    form, weights = _form()
    found = repaired(form, [torch.ones(5).double(), 1e-3 * torch.ones(4).double()], torch.zeros(1).double())  # type: ignore[arg-type]
    assert found is not None
    assert eliminate(form, found[0]) is not None  # type: ignore[arg-type]
    assert math.sqrt(float(found[1])) >= float(torch.linalg.matrix_norm(weights[2] @ weights[1] @ weights[0], 2))
