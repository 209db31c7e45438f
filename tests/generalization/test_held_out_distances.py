"""The local term from held-out inputs: against a loop, and never below the truth more often than delta."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import held_out_local_term

TWO = torch.tensor([0, 0, 1])


def test_against_a_loop() -> None:
    """Two cells with samples and inputs, one without inputs, a part of the samples looked at."""
    source = torch.Generator().manual_seed(0)
    cell, other = torch.tensor([0, 0, 1, 2] * 5), torch.tensor([0, 1, 1, 1] * 5)
    counts, largest = torch.tensor([50, 30, 20]), torch.tensor([0.5, 0.2, 1.0], dtype=torch.float64)
    v = torch.rand(20, 20, generator=source, dtype=torch.float64) * largest[cell][:, None] / 4
    expected = 0.0
    for i in range(3):
        pairs = [float(v[a, b]) for a in range(20) for b in range(20) if cell[a] == i == other[b]]
        expected += int(counts[i]) / 100 * (sum(pairs) / len(pairs) if pairs else float(largest[i]))
    part = math.log(2 / 0.9) / 2
    inside = ((0.5 * 0.5) ** 2 / 5 + (0.3 * 0.2) ** 2 / 15, (0.5 * 0.5) ** 2 / 10 + (0.3 * 0.2) ** 2 / 5)
    expected += sum(math.sqrt(part * s) for s in inside)
    most = 0.5 * 0.5 + 0.3 * 0.2 + 0.2
    assert expected < most
    assert held_out_local_term(v, cell, other, counts, largest, 0.9).value == pytest.approx(expected, rel=1e-9)
    assert held_out_local_term(v[:, :0], cell, other[:0], counts, largest, 0.9).value == pytest.approx(most)


@pytest.mark.parametrize("looked", [30, 60])
def test_not_below_the_truth_more_often_than_allowed(looked: int) -> None:
    """Uniform inputs on [0, 1], loss with constant one, three cells: the true term is an integral."""
    delta, below, rounds = 0.2, 0, 200
    source = torch.Generator().manual_seed(3)
    for _ in range(rounds):
        x, u = (torch.rand(n, generator=source, dtype=torch.float64) for n in (60, 40))
        cells = [(t * 3).long().clamp_max(2) for t in (x, u)]
        low = cells[0] / 3
        inside = x - low  # E |X - s| for X uniform on a cell of width 1/3
        truth = float((1.5 * (inside.square() + (1 / 3 - inside).square())).mean())
        v = (x[:looked, None] - u[None, :]).abs().clamp_max(1 / 3)
        counts = torch.bincount(cells[0], minlength=3)
        found = held_out_local_term(v, cells[0][:looked], cells[1], counts, torch.full((3,), 1 / 3), delta).value
        assert found <= 1 / 3 + 1e-9
        below += found < truth
    assert below <= rounds * delta


def test_refused() -> None:
    """Wrong shapes, more than the largest, a delta that is none."""
    v, counts, largest = torch.zeros(3, 2), torch.tensor([2, 1]), torch.ones(2)
    for args in (
        (v.T, TWO, TWO[1:], counts, largest, 0.1),
        (v + 2, TWO, TWO[1:], counts, largest, 0.1),
        (v, TWO, TWO[1:], counts, largest[:1], 0.1),
        (v, TWO, TWO[1:], counts, largest, 1.5),
    ):
        with pytest.raises(InputError):
            held_out_local_term(*args)
