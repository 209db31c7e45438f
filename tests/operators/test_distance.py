"""Distances between rows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from operators.refute import Case, nonlinear

CENTRES = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

DISTANCES: dict[str, Case] = {
    "to fixed centres": (lambda x: torch.cdist(x, CENTRES), (4, 3), math.sqrt(5)),
    "of other orders": (lambda x: torch.cdist(x, CENTRES, p=1.0), (4, 3), math.sqrt(15)),
    "largest differences": (lambda x: torch.cdist(CENTRES[None], x, p=math.inf), (4, 3), math.sqrt(5)),
    "between tokens": (lambda x: torch.cdist(x, x), (4, 3), None),
    "beside each other": (lambda x: F.pairwise_distance(x, CENTRES[0]), (3,), 1.0),
    "to each other": (lambda x: F.pairwise_distance(x[:, 0], 2.0 * x[:, 1]), (2, 3), math.sqrt(5)),
    "of all pairs": (lambda x: torch.stack([F.pdist(row) for row in x]), (4, 3), 2.0),
    "a kernel": (lambda x: torch.exp(-torch.cdist(x, CENTRES)), (4, 3), math.sqrt(5)),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances(name: str) -> None:
    """Each moves at most as far as its two ends; nothing refutes what is said of all of them."""
    nonlinear(DISTANCES[name])
