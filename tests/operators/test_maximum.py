"""Maximum, minimum, clamping and the smooth maximum of two tensors."""

from __future__ import annotations

import math

import pytest
import torch

from operators.refute import Case, nonlinear

CLAMPS: dict[str, Case] = {
    "maximum with a constant": (lambda x: torch.maximum(x, torch.zeros(3).double()), (3,), 1.0),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (4,), 1.0),
    "clamp per entry": (lambda x: x.clamp(max=torch.tensor([0.0, 1.0, 2.0, 3.0]).double()), (4,), 1.0),
}  # fmt: skip
OF_TWO: dict[str, Case] = {
    "maximum": (lambda x: torch.maximum(x, -2 * x.flip(1)), (3,), math.sqrt(5)),
    "minimum": (lambda x: torch.minimum(x, x.flip(1)), (3,), math.sqrt(2)),
    "logaddexp": (lambda x: torch.logaddexp(x, 2 * x), (4,), None),
    "clamp at a limit that depends on the input": (lambda x: x.clamp(min=-2 * x.flip(1)), (3,), math.sqrt(5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAMPS)
def test_constant_limits(name: str) -> None:
    """A constant limit does not count; between the limits the slope is attained."""
    nonlinear(CLAMPS[name], close=0.98)


@pytest.mark.parametrize("name", OF_TWO)
def test_two_arguments_add_in_squares(name: str) -> None:
    """The root of the sum of squares of both constants."""
    nonlinear(OF_TWO[name])
