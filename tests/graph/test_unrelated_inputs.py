"""Inputs unlike an example."""

from __future__ import annotations

import torch

from normscope.graph.unrelated_inputs import unrelated


def _rows(size: int) -> list[torch.Tensor]:
    """Return the probes of one floating input of a batch size, sample by sample."""
    example = torch.arange(1.0, 1.0 + 6 * size).reshape(size, 6)
    return [row for (batch,) in unrelated([example]) for row in batch]


def test_every_kind_is_there_whatever_the_size_of_the_batch() -> None:
    """Signs, scales, constants, spikes, another order."""
    for size in (1, 2, 5, 40):
        rows = _rows(size)
        largest = max(float(row.abs().max()) for row in rows)
        assert largest >= 1e5
        assert any(float(row.abs().max()) <= 1e-2 * 6 * size and float(row.abs().max()) > 0 for row in rows)
        assert any(bool((row < 0).all()) for row in rows)
        assert any(bool((row == row[0]).all()) and float(row[0]) != 0 for row in rows)
        assert any(not bool(row.any()) for row in rows)
        assert any(int((row != 0).sum()) == 1 for row in rows)
        assert any(bool((row.diff() < 0).any()) and float(row.min()) >= 1 and float(row.max()) < 1e3 for row in rows)


def test_shapes_types_and_the_example_stay() -> None:
    """Integers are only put into another order; nothing is written to the example; the draw is the same each time."""
    example = [torch.randn(3, 4), torch.arange(6).reshape(3, 2), torch.tensor(2.0), torch.ones(3, 1, dtype=torch.bool)]
    copies = [t.clone() for t in example]
    once, twice = list(unrelated(example)), list(unrelated(example))
    assert all(torch.equal(a, b) for a, b in zip(example, copies, strict=True))
    for batch, again in zip(once, twice, strict=True):
        for new, other, old in zip(batch, again, example, strict=True):
            assert torch.equal(new, other)
            assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert [sorted(row) for row in batch[1].tolist()] == example[1].tolist()


def test_tokens_alone_are_reordered_and_repeated() -> None:
    """Four probes of what integers allow, each sample from its own entries."""
    example = torch.arange(10).reshape(2, 5)
    rows = [row.tolist() for (batch,) in unrelated([example]) for row in batch]
    assert len(rows) == 4
    assert all(set(row) <= set(example[i % 2].tolist()) for i, row in enumerate(rows))
    assert sorted(rows[0]) == [0, 1, 2, 3, 4] != rows[0]
    assert sorted(rows[1]) == [5, 6, 7, 8, 9] != rows[1]
    assert rows[2:] == [[4, 3, 2, 1, 0], [5, 5, 5, 5, 5]]


def test_nothing_is_no_harm() -> None:
    """An input without entries stays as it is."""
    assert all(batch[0].shape == (2, 0) for batch in unrelated([torch.zeros(2, 0)]))
