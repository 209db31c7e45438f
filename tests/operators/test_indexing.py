"""Slices, indices, padding, masks and scatters at fixed places."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from networks import points
from operators.refute import Case, linear, nonlinear, program, refuted

PLACES = torch.tensor([0, 2, 2])
MASK = torch.tensor([True, False, True, True])
FIXED: dict[str, Case] = {
    "slice": (lambda x: x[:, 1:3], (4,), 1.0),
    "slice with a step": (lambda x: x[:, ::2], (5,), 1.0),
    "select": (lambda x: x[:, :, 1], (3, 2), 1.0),
    "narrow": (lambda x: x.narrow(1, 1, 2), (4,), 1.0),
    "index with repeats": (lambda x: x[:, PLACES], (4,), math.sqrt(2)),
    "index select": (lambda x: x.index_select(1, PLACES), (4,), math.sqrt(2)),
    "gather": (lambda x: x.gather(1, PLACES.expand(x.shape[0], 3)), (4,), math.sqrt(2)),
    "unfold": (lambda x: x.unfold(1, 3, 1), (5,), math.sqrt(3)),
    "windows": (lambda x: F.unfold(x, 2), (1, 3, 3), 2.0),
    "folded windows": (lambda x: F.fold(x, (3, 3), 2), (4, 4), 2.0),
    "diagonal": (lambda x: x.diagonal(dim1=1, dim2=2), (3, 3), 1.0),
    "zero padding": (lambda x: F.pad(x, (1, 2)), (4,), 1.0),
    "cropping": (lambda x: F.pad(x, (-1, -1)), (4,), 1.0),
    "constant padding": (lambda x: F.pad(x, (1, 1), value=3.0), (4,), 1.0),
    "reflection": (lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 4), math.sqrt(2)),
    "replication": (lambda x: F.pad(x, (2, 0), mode="replicate"), (1, 4), math.sqrt(3)),
    "circular": (lambda x: F.pad(x, (1, 1), mode="circular"), (1, 4), math.sqrt(2)),
    "lower triangle": (lambda x: x.tril(), (3, 3), 1.0),
    "masked fill": (lambda x: x.masked_fill(MASK, 5.0), (4,), 1.0),
    "masked fill with minus infinity": (lambda x: x.masked_fill(MASK, -math.inf).clamp(min=-9.0), (4,), 1.0),
    "where": (lambda x: torch.where(MASK, x, 2 * x), (4,), 2.0),
    "where with a constant": (lambda x: torch.where(MASK, x, torch.zeros(4).double()), (4,), 1.0),
    "overwritten slice": (lambda x: torch.slice_scatter(x, 2 * x[:, :2], 1, 1, 3), (4,), None),
    "overwritten row": (lambda x: torch.select_scatter(x, 0 * x[:, 0], 1, 0), (4,), 1.0),
    "added at places": (lambda x: x.index_add(1, PLACES, x[:, :3]), (4,), None),
    "scattered sum": (
        lambda x: torch.zeros_like(x).scatter_add(1, PLACES.expand(x.shape[0], 3), x[:, :3]), (4,), math.sqrt(2)),
    "reduced to sums": (
        lambda x: x.scatter_reduce(1, PLACES.expand(x.shape[0], 3), 2.0 * x[:, :3], "sum"), (4,), None),
    "reduced to means": (
        lambda x: x.new_zeros(len(x), 3).scatter_reduce(1, PLACES.expand(x.shape[0], 3), x[:, :3], "mean",
                                                        include_self=False), (4,), 1.0),
    "reduced to means along an axis": (
        lambda x: x.new_ones(len(x), 4).index_reduce(1, PLACES, x[:, :3], "mean"), (4,), None),
}  # fmt: skip


@pytest.mark.turns(3)
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", FIXED)
def test_entries_at_fixed_places(name: str) -> None:
    """Copies count by how often an entry is taken, sums by how many meet."""
    linear(FIXED[name])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(1, x.argsort(1)),
        lambda x: x[:, :1] * (x > 0),
        lambda x: torch.where(x > 0, x + 1, x),
    ],
)
def test_places_that_move_with_the_input_have_no_constant(function: object) -> None:
    """Choices by comparison are discontinuous."""
    checked = refuted(function, 3)  # type: ignore[arg-type]
    assert checked.upper["everywhere"] == math.inf


def test_masks_keep_the_range() -> None:
    """A constant filled in belongs to the range; values at every node were checked against it."""
    checked = refuted(lambda x: x.masked_fill(MASK, 7.0).square(), 4, data=points(3, 4))
    assert math.exp(checked.upper["range"]) >= 2 * float(points(3, 4).abs().max())


def test_an_embedding_of_tokens_is_a_block() -> None:
    """Tokens are discrete: the network starts at what the embedding gives."""
    from torch import nn

    from networks import program_of, seeded

    found = program_of(seeded(nn.Embedding(5, 3)), torch.tensor([[0, 4], [1, 1]]))
    assert [b.kind for b in found.blocks] == ["embedding output"]
    assert program(lambda x: x, 3).blocks[0].kind == "input"


EXTREMES: dict[str, Case] = {
    "largest": (lambda x: x.new_zeros(len(x), 3).scatter_reduce(1, PLACES.expand(len(x), 3), x, "amax"), (3,), 1.0),
    "smallest of both": (
        lambda x: x[:, :3].scatter_reduce(1, PLACES.expand(len(x), 3), 3.0 * x[:, 3:], "amin"), (6,), None),
    "largest along an axis": (lambda x: x.index_reduce(1, PLACES, 2.0 * x.flip(1), "amax"), (3,), None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_at_fixed_places(name: str) -> None:
    """Each is the largest or smallest of entries of its own."""
    nonlinear(EXTREMES[name])


def test_products_at_places_have_no_rule() -> None:
    """They are listed."""
    found = program(lambda x: torch.ones_like(x).scatter_reduce(1, PLACES.expand(len(x), 3), x, "prod"), 3)
    assert found.opaque
