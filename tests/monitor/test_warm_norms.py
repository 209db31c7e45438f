"""Norms that follow moving weights."""

from __future__ import annotations

import torch

from normscope.monitor.warm_norms import WarmNorms, followed_norm
from normscope.operators.linear_map import LinearMap


def _matrix(seed: int, rows: int = 40, columns: int = 60) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_the_first_value_is_the_norm_from_below() -> None:
    for seed in range(5):
        A = _matrix(seed)
        truth = float(torch.linalg.matrix_norm(A.double(), 2))
        norm, vector = followed_norm(lambda dtype, A=A: LinearMap.from_matrix(A.to(dtype)))
        assert norm <= truth
        assert norm > 0.995 * truth
        assert vector.numel() == 40  # the smaller side


def test_a_few_steps_keep_up_with_moving_weights() -> None:
    norms, A = WarmNorms(), _matrix(0)
    for step in range(30):
        A = A + 0.02 * _matrix(100 + step)
        truth = float(torch.linalg.matrix_norm(A.double(), 2))
        norm = norms.measure("w", lambda dtype, A=A: LinearMap.from_matrix(A.to(dtype)))
        assert norm <= truth
        assert norm > 0.99 * truth


def test_a_new_leading_direction_is_found_again() -> None:
    """It is orthogonal to the old one, where a power iteration without noise would stay."""
    norms = WarmNorms()
    first, second = torch.diag(torch.tensor([2.0, 1.0, 0.5])), torch.diag(torch.tensor([1.0, 3.0, 0.5]))
    assert norms.measure("w", lambda dtype: LinearMap.from_matrix(first.to(dtype))) > 1.999
    assert norms.measure("w", lambda dtype: LinearMap.from_matrix(second.to(dtype))) > 2.99


def test_zero_and_changed_shapes() -> None:
    norms = WarmNorms()
    assert norms.measure("w", lambda dtype: LinearMap.from_matrix(torch.zeros(3, 3, dtype=dtype))) == 0.0
    assert norms.measure("w", lambda dtype: LinearMap.from_matrix(2 * torch.eye(5, dtype=dtype))) > 1.999


def test_cold_norms_depend_on_the_map_alone_and_are_near_the_truth() -> None:
    """Whatever was measured before; also where the largest singular values are close together."""
    for seed in range(3):
        A = _matrix(seed, 300, 400)
        truth = float(torch.linalg.matrix_norm(A.double(), 2))
        used, fresh = WarmNorms(remember=False), WarmNorms(remember=False)
        for B in (_matrix(10, 300, 400), _matrix(11, 300, 400)):
            used.measure("w", lambda dtype, B=B: LinearMap.from_matrix(B.to(dtype)))
        found = [norms.measure("w", lambda dtype, A=A: LinearMap.from_matrix(A.to(dtype))) for norms in (used, fresh)]
        assert found[0] == found[1]
        assert 0.9999 * truth < found[0] <= truth


def test_a_map_that_moved_far_is_caught_up_with_at_once() -> None:
    """Between two looks early in training hardly anything stays: the norm is right all the same."""
    generator = torch.Generator().manual_seed(0)
    norms = WarmNorms()
    for _ in range(4):
        weight = torch.randn(300, 200, generator=generator)
        weight += 3.0 * torch.outer(*(torch.randn(n, generator=generator) for n in (300, 200))) / 10
        found = norms.measure("w", lambda d, w=weight: LinearMap.from_matrix(w.to(d)))
        truth = float(torch.linalg.matrix_norm(weight.double(), 2))
        assert 0.997 * truth <= found <= truth * (1.0 + 1e-12)
