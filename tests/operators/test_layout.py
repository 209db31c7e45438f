"""Operations that move or copy entries."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from operators.refute import Case, linear, program, refuted

MOVED: dict[str, Case] = {
    "reshape": (lambda x: x.reshape(-1, 6, 2), (3, 4), 1.0),
    "flatten": (lambda x: x.flatten(1), (3, 4), 1.0),
    "unflatten": (lambda x: x.unflatten(1, (2, 3)), (6,), 1.0),
    "squeeze and unsqueeze": (lambda x: x.unsqueeze(1).squeeze(1), (3,), 1.0),
    "permute": (lambda x: x.permute(0, 3, 1, 2), (2, 3, 4), 1.0),
    "transpose": (lambda x: x.transpose(-1, -2), (2, 3), 1.0),
    "matrix transpose": (lambda x: x.mT, (2, 3), 1.0),
    "movedim": (lambda x: x.movedim(1, -1), (2, 3, 4), 1.0),
    "roll": (lambda x: x.roll(2, 1), (5,), 1.0),
    "flip": (lambda x: x.flip(1), (5,), 1.0),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (4, 2, 2), 1.0),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (1, 4, 4), 1.0),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), (4, 2, 2), 1.0),
    "rotated": (lambda x: torch.rot90(x, 1, (2, 3)), (1, 2, 3), 1.0),
    "expand": (lambda x: x[:, None].expand(-1, 3, -1), (4,), math.sqrt(3)),
    "repeat": (lambda x: x.repeat(1, 4), (3,), 2.0),
    "tile": (lambda x: x.tile(1, 2, 2), (2, 2), 2.0),
    "repeat interleave": (lambda x: x.repeat_interleave(2, 1), (3,), math.sqrt(2)),
    "clone and contiguous": (lambda x: x.clone().contiguous(), (3,), 1.0),
    "cast up": (lambda x: x.to(torch.float64), (3,), 1.0),
    "dropout in evaluation": (lambda x: F.dropout(x, 0.5, training=False), (3,), 1.0),
    "broadcast together": (lambda x: sum(torch.broadcast_tensors(x[:, :1], x)), (3,), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_entries_are_moved_and_copied(name: str) -> None:
    """Permutations have norm one, n copies the root of n."""
    linear(MOVED[name])


def test_a_cast_to_integers_is_a_step() -> None:
    """Known, and without a constant."""
    checked = refuted(lambda x: x.to(torch.int64).double() + x, 3)
    assert checked.upper["everywhere"] == math.inf
    (opaque,) = program(lambda x: x.to(torch.int64).double() + x, 3).opaque
    assert opaque.atom.known


def test_shapes_carry_nothing_of_the_values() -> None:
    """zeros_like, sizes and ranges are constants."""
    found = program(lambda x: torch.zeros_like(x) + x.shape[1] + torch.arange(3).double() * x.numel(), 3)
    assert found.outputs == []
    assert refuted(lambda x: torch.ones_like(x) + x, 3).upper["everywhere"] == pytest.approx(0.0, abs=1e-9)
