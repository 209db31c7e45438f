"""Tensors of the checks are in float64 and the same in every run."""

from __future__ import annotations

import torch

from normscope.papers.tensors import gaussian, identity, largest, numbers, ones, zeros


def test_all_are_in_float64() -> None:
    assert {t.dtype for t in (numbers(1), gaussian(0, 2), zeros(2), ones(2, 3), identity(2))} == {torch.float64}


def test_small_parts() -> None:
    assert identity(2, 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert largest(numbers(1, -3)) == 3.0


def test_the_global_generator_is_not_touched() -> None:
    state = torch.get_rng_state()
    assert torch.equal(gaussian(3, 4), gaussian(3, 4))
    assert torch.equal(torch.get_rng_state(), state)
