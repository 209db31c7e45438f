"""The constant of a division by a spread with its scale, against dense matrices."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.value import Kind
from normscope.operators.normalization import Spread
from normscope.operators.site import Site
from normscope.operators.spread_constants import scaled_constant, spread_constants

EPS = 0.25


def _site(spread: Spread, gamma: torch.Tensor | None) -> Site:
    return Site("n", "x", "m", "any", spread, gamma, eps=spread.eps, shape=spread.view)


def _truth(spread: Spread, gamma: torch.Tensor, floor: float) -> float:
    """Return the norm of ``diag(gamma) P / sqrt(s^2 + eps)`` as a dense matrix over one group."""
    n = spread.size
    projection = torch.eye(n).double() - (torch.full((n, n), 1.0 / n).double() if spread.centered else 0.0)
    return float(torch.linalg.matrix_norm(torch.diag(gamma) @ projection, 2)) / math.sqrt(floor**2 + EPS)


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("floor", [0.0, 1.5])
def test_one_group_with_a_scale_per_entry(centered: bool, floor: float) -> None:
    """The scale acts on what is left after centring."""
    spread = Spread((2, 5), (1,), EPS, centered)
    gamma = torch.tensor([3.0, -1.0, 0.5, 2.0, 1.0]).double()
    found = scaled_constant(_site(spread, gamma), spread, torch.tensor(floor).double())
    assert found == pytest.approx(_truth(spread, gamma, floor), rel=1e-12)


@pytest.mark.parametrize("centered", [True, False])
def test_groups_of_channels_with_a_scale_each(centered: bool) -> None:
    """Every group with its own scales and floor; the largest counts."""
    spread = Spread((1, 2, 4), (2,), EPS, centered, channel_axis=1)
    gamma = torch.tensor([3.0, 1.0, -4.0, 0.5]).double()  # two channels of two positions in each group
    floors = torch.tensor([[[0.0], [2.0]]]).double()
    found = scaled_constant(_site(spread, gamma), spread, floors)
    each = [_truth(spread, g.repeat_interleave(2), s) for g, s in ((gamma[:2], 0.0), (gamma[2:], 2.0))]
    assert found == pytest.approx(max(each), rel=1e-12)


def test_a_printed_number_is_compared_on_the_same_domain() -> None:
    """On all inputs, or above the floor where there is one."""
    spread = Spread((2, 5), (1,), EPS, True)
    constants = spread_constants("s", (lambda floor, eps: 1.0, "p"))
    everywhere = constants(_site(spread, None), None, "running")
    assert everywhere.on_floor is None
    assert everywhere.printed is not None
    assert (everywhere.printed.kind, everywhere.printed_is_bound) == (Kind.PRINTED, False)
    above = constants(_site(spread, None), torch.tensor([[3.0]]).double(), "running")
    assert above.on_floor is not None
    assert above.on_floor.value == pytest.approx(1 / math.sqrt(9 + EPS), rel=1e-12)
    assert above.printed_is_bound is True


def test_what_does_not_divide_by_a_spread_has_no_bound() -> None:
    """Rather than a wrong one."""
    found = spread_constants("s")(Site("n", "x", "m", "any"), None, "running")
    assert found.proved.log == math.inf
