"""Group normalization: every group is a layer normalization of its own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.normalizers.group_norm import (
    group_norm_at,
    group_norm_each,
    group_norm_global,
    group_norm_on_ball,
    group_norm_on_floor,
    group_norm_printed,
    group_norm_range,
    group_scale_norms,
)
from normscope.operators.normalizers.layer_norm import printed_is_bound
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from operators.normalizers.truth import jacobian_norm, kinds, scales, seeds, stabilizers, vectors

#: Samples, channels, positions, groups.
LAYOUTS = [
    (1, 12, 1, 4),
    (2, 4, 1, 2),
    (1, 6, 1, 2),
    (2, 4, 3, 2),
    (1, 4, 2, 4),
    (1, 3, 1, 3),
    (1, 2, 2, 1),
    (2, 6, 2, 3),
]
layouts = st.sampled_from(LAYOUTS)
Layout = tuple[int, int, int, int]


def group_norm(x: Tensor, groups: int, gamma: Tensor, eps: float) -> Tensor:
    """Return group normalization from its definition."""
    y = x.reshape(x.shape[0], groups, -1)
    y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + eps).sqrt()
    return gamma.reshape(-1, *[1] * (x.ndim - 2)) * y.reshape(x.shape)


def inputs(layout: Layout, seed: int, spread: float = 1.0) -> Tensor:
    """Return a random input of a layout."""
    samples, channels, positions, _ = layout
    return vectors(samples * channels * positions, seed, spread).reshape(samples, channels, positions)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(layouts, kinds, seeds, stabilizers)
def test_at_a_point_equals_automatic_differentiation(layout: Layout, kind: str, seed: int, eps: float) -> None:
    """The closed form agrees with the dense Jacobian of the whole input."""
    x, gamma, groups = inputs(layout, seed), scales(layout[1], seed, kind), layout[3]
    size = layout[1] // groups * layout[2]
    if size == 1 and eps == 0:
        return
    truth = jacobian_norm(lambda z: group_norm(z, groups, gamma, eps), x)
    bound = group_norm_at(x, groups, gamma, eps)
    scale = (
        float(gamma.abs().max()) / math.sqrt(float(x.reshape(x.shape[0], groups, -1).var(-1, correction=0).min()) + eps)
        if size > 1
        else 0.0
    )
    assert bound == pytest.approx(truth, rel=1e-10, abs=1e-10 * scale)
    assert bound == float(group_norm_each(x, groups, gamma, eps).max())


def test_the_module_agrees() -> None:
    """PyTorch's GroupNorm has this Jacobian."""
    layer = torch.nn.GroupNorm(2, 4).double()
    layer.weight.data.copy_(vectors(4, 1))
    x = vectors(2 * 4 * 3, 2).reshape(2, 4, 3)
    assert group_norm_at(x, 2, layer.weight, layer.eps) == pytest.approx(jacobian_norm(layer, x), rel=1e-10)


def test_lemma_three_is_a_sum_where_the_constant_is_a_maximum() -> None:
    """Four groups of three at a constant input: 316.2 against the printed 1264.9."""
    constant = group_norm_at(torch.ones(1, 12), 4, None, 1e-5)
    printed = group_norm_printed(torch.zeros(4), 1e-5)
    assert constant == pytest.approx(316.2278, abs=5e-5)
    assert constant == pytest.approx(group_norm_global(torch.ones(12), 4, 1e-5), rel=1e-12)
    assert printed == pytest.approx(1264.9, abs=0.05)
    assert printed_is_bound(printed, constant)
    assert not printed_is_bound(printed, group_norm_global(torch.full((12,), 9.0), 4, 1e-5))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(layouts, kinds, seeds, st.sampled_from((0.0, 1e-3, 0.1)))
def test_floors_per_group_hold_for_all_pairs_and_are_attained(layout: Layout, kind: str, seed: int, eps: float) -> None:
    """Pairs that keep every group's floor stay below; the antipodal pair of the worst group reaches the constant."""
    _, channels, positions, groups = layout
    size = channels // groups * positions
    if size == 1:
        assert group_norm_on_floor(torch.ones(channels), groups, 0.1, 0.0, positions) == 0.0
        return
    gamma, floors = scales(channels, seed, kind), vectors(groups, seed + 1).abs() + 0.1
    bound = group_norm_on_floor(gamma, groups, eps, floors, positions)
    y = vectors(2 * 50 * groups * size, seed).reshape(2, 50, groups, size)
    y = y - y.mean(-1, keepdim=True)
    y = (
        y
        / y.square().mean(-1, keepdim=True).sqrt()
        * floors[:, None]
        * (1 + vectors(100, seed).abs().reshape(2, 50, 1, 1))
    )
    y[1, :20] = -y[0, :20]
    a, b = y.reshape(2, 50, channels, positions)
    difference = (group_norm(a, groups, gamma, eps) - group_norm(b, groups, gamma, eps)).flatten(1).norm(dim=1)
    assert (difference <= bound * (a - b).flatten(1).norm(dim=1) * (1 + 1e-12) + 1e-13).all()
    norms = torch.tensor(group_scale_norms(gamma, groups, positions)).double()
    worst = int((norms / (floors**2 + eps).sqrt()).argmax())
    spread = gamma[:, None].expand(channels, positions).reshape(groups, size)[worst]
    P = torch.eye(size, dtype=torch.float64) - 1.0 / size
    x = y[0, 0].clone()
    x[worst] = torch.linalg.svd(spread[:, None] * P).Vh[0] * math.sqrt(size) * floors[worst]
    other = x.clone()
    other[worst] *= -1
    a, b = (v.reshape(1, channels, positions) for v in (x, other))
    quotient = (group_norm(a, groups, gamma, eps) - group_norm(b, groups, gamma, eps)).norm() / (a - b).norm()
    assert float(quotient) == pytest.approx(bound, rel=1e-10, abs=1e-300)


@pytest.mark.turns(5)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(layouts, kinds, seeds, st.sampled_from((0.0, 0.2, 5.0)))
def test_ball_is_never_exceeded(layout: Layout, kind: str, seed: int, radius: float) -> None:
    """Jacobians at points of the ball stay below the bound; a huge ball has the global constant."""
    x, gamma, groups, eps = inputs(layout, seed), scales(layout[1], seed, kind), layout[3], 1e-3
    bound = group_norm_on_ball(x, radius, groups, gamma, eps)
    for k in range(8):
        step = inputs(layout, seed + k + 1)
        step = step / step.norm() * radius * (1 - 1e-15)
        assert group_norm_at(x + step, groups, gamma, eps) <= bound * (1 + 1e-9)
    everything = group_norm_on_ball(x, 1e6, groups, gamma, eps)
    assert everything == pytest.approx(group_norm_global(gamma, groups, eps, layout[2]), rel=1e-12, abs=1e-300)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(layouts, kinds, seeds)
def test_range_holds(layout: Layout, kind: str, seed: int) -> None:
    """Outputs of one sample stay within the stated radius and box."""
    _, channels, positions, groups = layout
    gamma, beta = scales(channels, seed, kind), vectors(channels, seed)
    spread = group_norm_range(gamma, beta, groups, positions)
    for k in range(5):
        y = group_norm(inputs((1, *layout[1:]), seed + k, 1e3), groups, gamma, 1e-12) + beta[:, None]
        assert float(y.norm()) <= spread.radius * (1 + 1e-12)
        assert (y[0] >= spread.low[:, None] - 1e-9).all()
        assert (y[0] <= spread.high[:, None] + 1e-9).all()


def test_scale_norms_of_groups() -> None:
    """With two or more positions every scale is repeated and the largest counts; with one, the secular value."""
    gamma = torch.tensor([3.0, 2.0, 1.0, -5.0])
    assert group_scale_norms(gamma, 2, 7) == [3.0, 5.0]
    single = group_scale_norms(gamma, 2, 1)
    assert single == [centered_scale_norm(gamma[:2]), centered_scale_norm(gamma[2:])]
    repeated = centered_scale_norm(gamma[:2].repeat_interleave(2))
    assert repeated == pytest.approx(3.0, rel=1e-14)


def test_no_stabilizer() -> None:
    """Without a stabilizer the map is not Lipschitz; above a floor it is."""
    assert group_norm_global(torch.ones(4), 2, 0.0) == math.inf
    assert group_norm_global(torch.ones(4), 4, 0.0) == math.inf
    assert group_norm_on_floor(torch.ones(4), 2, 0.0, 0.5) == pytest.approx(2.0)


def test_errors() -> None:
    """Channels that do not divide, and wrong sizes, are refused."""
    with pytest.raises(InputError, match="divided"):
        group_norm_global(torch.ones(5), 2, 1e-5)
    with pytest.raises(InputError, match="divisible"):
        group_norm_at(torch.ones(1, 5), 2, None, 1e-5)
    with pytest.raises(InputError, match="one entry per channel"):
        group_norm_at(torch.ones(1, 4), 2, torch.ones(3), 1e-5)
    with pytest.raises(InputError, match="position"):
        group_norm_global(torch.ones(4), 2, 1e-5, 0)
