"""One operation at a time: its rule held against Jacobians, pairs and values at every node, on four domains."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, points, program_of
from normscope.operators.program import Program
from normscope.testing.upper_bound import UpperBoundCheck, check_upper_bound

Function = Callable[[Tensor], Tensor]
#: A function on a batch, the shape of one sample, and its constant on all inputs where it is known.
Case = tuple[Function, tuple[int, ...], float | None]


def model_of(function: Function) -> nn.Module:
    """Return a function as a float64 module; one number per sample becomes a vector of one entry."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = function(x)
        return y.unsqueeze(1) if y.ndim == 1 else y

    return Lambda(forward, p=nn.Parameter(torch.ones(1))).double().eval()


def program(function: Function, *shape: int) -> Program:
    """Return the program of a function at a batch of one."""
    return program_of(model_of(function), points(2, *shape))


def refuted(function: Function, *shape: int, data: Tensor | None = None, ascent: int = 10) -> UpperBoundCheck:
    """Try to refute the bounds of a function; nothing may succeed."""
    checked = check_upper_bound(model_of(function), [points(3, *shape) if data is None else data], ascent=ascent)
    assert checked.violations == []
    return checked


def linear(case: Case) -> None:
    """A linear operation is understood, its bound is attained, and it is the norm known in closed form."""
    function, shape, norm = case
    checked = refuted(function, *shape)
    upper = math.exp(checked.upper["everywhere"])
    assert checked.opaque == []
    assert math.exp(checked.attained.get("everywhere", -math.inf)) == pytest.approx(upper, rel=1e-6)
    if norm is not None:
        assert upper == pytest.approx(norm, rel=1e-9)


def nonlinear(case: Case, *, close: float = 0.0) -> None:
    """A nonlinear operation has the constant known in closed form, and values within ``close`` of it are attained."""
    function, shape, constant = case
    checked = refuted(function, *shape, ascent=25 if close else 10)
    upper = math.exp(checked.upper["everywhere"]) if checked.upper["everywhere"] < 700 else math.inf
    if constant is not None:
        assert upper == pytest.approx(constant, rel=1e-9)
    if close:
        assert math.exp(checked.attained["everywhere"]) >= close * upper


def without_constant(function: Function, *shape: int, on_range: bool = True, data: Tensor | None = None) -> None:
    """An operation that is not Lipschitz on all inputs; on the range of the data it may be."""
    checked = refuted(function, *shape, data=data)
    assert checked.upper["everywhere"] == math.inf
    assert (checked.upper["range"] < math.inf) is on_range
