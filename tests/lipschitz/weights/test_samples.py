"""One pass over samples: what the uses meet, with room for rounding, one by one and stacked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from networks import seeded
from normscope.lipschitz.weights import samples
from normscope.lipschitz.weights.samples import meet, stacked_norm


def _inputs(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 4, generator=generator, dtype=torch.float64) for _ in range(count)]


def test_norms_have_room_for_rounding(found: Any) -> None:
    """The norm of what a layer meets, and of the input, from above and to 1e-9."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    (x,) = _inputs(1)
    captured, weights = found(model, x)
    sample = meet(captured, weights, [x])
    index = next(i for i, u in enumerate(weights.uses) if weights.leaves[u.leaf].name == "2.weight")
    truth = float(model[:2](x).detach().norm())
    assert truth <= sample.met[index].norm <= truth * (1 + 1e-9)
    assert float(x.norm()) <= sample.input_norm <= float(x.norm()) * (1 + 1e-9)


@pytest.mark.parametrize("most", [2**24, 0])
def test_stacked_samples_are_one_matrix(most: int, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``||H||_2`` of the batch, or the root of the sum of squares where it is too large."""
    monkeypatch.setattr(samples, "LARGEST_STACK", most)
    data = _inputs(6)
    captured, weights = found(seeded(nn.Linear(4, 3)), data[0])
    met = [meet(captured, weights, [x]).met[0] for x in data]
    whole = float(torch.linalg.matrix_norm(torch.cat(data), ord=2))
    squares = math.sqrt(sum(float(x.square().sum()) for x in data))
    expected = whole if most else squares
    assert max(m.norm for m in met) < whole < squares
    assert abs(stacked_norm(met) - expected) < 1e-9
