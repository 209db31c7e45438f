"""Concatenation and splitting."""

from __future__ import annotations

import math

import pytest
import torch

from operators.refute import Case, linear, program

JOINED: dict[str, Case] = {
    "cat": (lambda x: torch.cat([x, 2 * x], 1), (3,), math.sqrt(5)),
    "cat of unequal parts": (lambda x: torch.cat([x, x[:, :1], 3 * x[:, :2]], 1), (3,), math.sqrt(11)),
    "cat with a constant": (lambda x: torch.cat([x, torch.ones(x.shape[0], 2).double()], 1), (3,), 1.0),
    "cat along another axis": (lambda x: torch.cat([x, -x], 2), (2, 3), math.sqrt(2)),
    "stack": (lambda x: torch.stack([x, x, x], 1), (3,), math.sqrt(3)),
    "stack at the end": (lambda x: torch.stack([x, 2 * x], -1), (3,), math.sqrt(5)),
    "hstack": (lambda x: torch.hstack([x, x]), (3,), math.sqrt(2)),
    "dstack": (lambda x: torch.dstack([x, x]), (2, 3), math.sqrt(2)),
    "split": (lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1), (4,), 1.0),
    "chunk": (lambda x: x.chunk(2, 1)[0] + x.chunk(2, 1)[1], (4,), math.sqrt(2)),
    "unbind": (lambda x: x.unbind(1)[2], (4, 2), 1.0),
    "tensor split": (lambda x: x.tensor_split(3, 1)[0], (5,), 1.0),
    "split and joined again": (lambda x: torch.stack(x.unbind(1), 1), (4, 2), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_parts_side_by_side(name: str) -> None:
    """Parts of one input add in squares, pieces have norm one."""
    linear(JOINED[name])


def test_a_constant_part_keeps_its_value_in_the_range() -> None:
    """What is put beside the input is known exactly, to the last bit of float64."""
    third = torch.full((1, 1), 1 / 3, dtype=torch.float64)
    found = program(lambda x: torch.cat([x, third.expand(x.shape[0], 1)], 1), 2)
    ((_, expr),) = found.outputs
    assert expr.op is not None
    assert expr.op.bias is not None
    assert float(expr.op.bias.flatten()[-1]) == 1 / 3
