"""Random gates, attention and recurrence: every kind is drawn, and parts written by hand are what they are called."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fuzzing import random_gates
from fuzzing.draw import Draw, Shape
from fuzzing.drawing import Builder, built, keeps, names_of

CASES: dict[str, tuple[Builder, tuple[Shape, ...], int]] = {
    "gate": (random_gates.gate, ((3,), (2, 3), (2, 3, 2)), 11),
    "attention": (random_gates.attention, ((3, 4), (4, 3)), 14),
    "recurrent": (random_gates.recurrent, ((3, 2), (1, 3)), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_drawn_and_keeps_samples_apart(name: str) -> None:
    """A sample alone gives what it gives among others, but for queries that every sample shares."""
    builder, shapes, kinds = CASES[name]
    found = []
    for shape in shapes:
        for seed in range(60):
            module = built(builder, seed, shape)
            if module is None:
                continue
            x = Draw(seed + 1).tensor(3, *shape)
            y = keeps(module, x)
            if bool(y.isfinite().all()):
                with torch.no_grad():
                    assert torch.allclose(module(x[1:2]), y[1:2], rtol=1e-9, atol=1e-12), module
            found.append(module)
    assert len(names_of(found)) >= kinds, names_of(found)
    assert len(found) >= 0.95 * 60 * len(shapes)


def test_rotations_keep_lengths_and_know_distances_only() -> None:
    """A score of rotated vectors depends on how far apart their positions are, not on where they are."""
    q, k = (Draw(seed).tensor(4).expand(6, 4) for seed in (0, 1))
    rotated_q, rotated_k = random_gates._rotated(q), random_gates._rotated(k)
    assert torch.allclose(rotated_q.norm(dim=-1), q.norm(dim=-1), rtol=1e-12)
    scores = rotated_q @ rotated_k.T
    for offset in range(-5, 6):
        line = scores.diagonal(offset)
        assert torch.allclose(line, line[:1].expand_as(line), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(scores[0], scores[0, :1].expand(6))


def test_heads_are_slices_of_the_features() -> None:
    """Batch, head, token, feature."""
    x = Draw(0).tensor(2, 3, 4)
    heads = random_gates._heads(x, 2)
    assert heads.shape == (2, 2, 3, 2)
    assert torch.equal(heads[1, 1, 2], x[1, 2, 2:])


def test_grouped_queries_share_one_key_head() -> None:
    """Softmax by hand, head by head."""
    module = random_gates._grouped_queries(Draw(0), 3, 4)
    x = Draw(1).tensor(1, 3, 4)
    q, k, v = (x[0] @ getattr(module, name).mT for name in "qkv")
    parts = [torch.softmax(q[:, part] @ k.T / math.sqrt(2), -1) @ v for part in (slice(0, 2), slice(2, 4))]
    with torch.no_grad():
        assert torch.allclose(module(x)[0], torch.cat(parts, -1), rtol=1e-12)


def test_masks_come_in_every_form() -> None:
    """None, a choice of keys, a finite bias, and minus infinity."""
    masks = [random_gates._mask(Draw(seed), 4) for seed in range(60)]
    assert any(m is None for m in masks)
    given = [m for m in masks if m is not None]
    assert any(m.dtype == torch.bool for m in given)
    floating = [m for m in given if m.dtype == torch.float64]
    assert any(bool(m.isfinite().all()) for m in floating)
    assert any(bool((m == -math.inf).any()) for m in floating)


def test_cells_run_by_hand_are_layers() -> None:
    """Some builder steps a cell through time: it agrees with the layer of the same weights."""
    agreed = 0
    for seed in range(60):
        module = random_gates._cells(Draw(seed), (2, 3))
        if not isinstance(module.cell, nn.GRUCell) or "by_hand" not in module.function.__name__:
            continue
        layer = nn.GRU(3, 2, batch_first=True, dtype=torch.float64)
        state = {f"{name}_l0": value for name, value in module.cell.state_dict().items()}
        layer.load_state_dict(state)
        x = Draw(seed).tensor(2, 2, 3)
        with torch.no_grad():
            assert torch.allclose(module(x), layer(x)[0][:, -1], rtol=1e-9)
        agreed += 1
    assert agreed > 0
