"""Gradient flow against a flow with a closed form."""

from __future__ import annotations

import math

import torch

from normscope.geometry.flow import gradient_flow, gradient_of


def test_a_quadratic_flows_exponentially_and_parameters_are_kept() -> None:
    start = {"a": torch.tensor([1.0, 2.0], dtype=torch.float64), "b": torch.tensor([3.0], dtype=torch.float64)}
    rates = torch.tensor([1.0, 3.0], dtype=torch.float64)
    end = gradient_flow(lambda p: (rates * p["a"] ** 2).sum() / 2, start, 1.5, decay=0.5)
    true = start["a"] * torch.exp(-1.5 * (rates + 0.5))
    assert torch.allclose(end["a"], true, rtol=1e-9)
    assert math.isclose(float(end["b"]), 3.0 * math.exp(-0.75), rel_tol=1e-9)
    assert start["a"].tolist() == [1.0, 2.0]
    assert not start["a"].requires_grad


def test_gradients_work_where_they_are_switched_off() -> None:
    with torch.no_grad():
        assert gradient_of(lambda p: p["w"] ** 3, {"w": torch.tensor(2.0)})["w"] == 12.0
