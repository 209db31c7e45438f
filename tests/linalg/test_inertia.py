"""Inertia: counts and bounds against singular values, and no certificate below the norm."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, svds
from tests.linalg.test_convolution_on_torus import CASES, EVERY, embedded

from normscope.linalg import convolution_block
from normscope.linalg.convolution import convolution_norm
from normscope.linalg.convolution_geometry import convolution_axes, zero_padded_map
from normscope.linalg.convolution_on_torus import torus_map
from normscope.linalg.inertia import (
    count_above,
    inertia_bound,
    negative_directions,
    remainder,
    smallest_eigenvalue,
    symbol_error,
)


@EVERY
def test_bound_close_above_the_norm_and_none_below(case: tuple) -> None:
    found, matrix = embedded(case)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    # A kernel larger than its map leaves a torus far too large: directions are found only further up.
    wide = any(k > n for n, k in zip(case[0], case[1], strict=True))
    for above in (2e-2, 1e-1) if wide else (2e-3, 1e-2, 1e-1):
        bound = inertia_bound(found, norm * (1.0 + above))
        assert norm <= bound <= norm * (1.0 + above) * (1.0 + 3e-4)
    for below in (1e-6, 1e-3, 1e-1):
        assert inertia_bound(found, norm * (1.0 - 3e-4 - below)) == math.inf


@pytest.mark.turns(2)
def test_it_is_needed_and_enough_on_a_small_map() -> None:
    found, matrix = embedded(([7, 7], [3, 3], [1, 1], [1, 1], 24, 24))
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    torus = float(torch.linalg.matrix_norm(torus_map(found.form, found.torus).matrix(), 2))
    assert torus > 1.02 * norm
    assert norm <= inertia_bound(found, 1.005 * norm) <= 1.0055 * norm


@EVERY
def test_count_is_that_of_the_torus(case: tuple) -> None:
    found, _ = embedded(case)
    values = torch.linalg.svdvals(torus_map(found.form, found.torus).matrix())
    for level in (0.8, 0.95, 1.1):
        excess = count_above(found, level * float(values[0]), 0)
        if excess is not None:  # a level so low that all eigenvectors of a frequency are above it may be refused
            assert excess.level >= level * float(values[0])
            assert excess.count == int((values > excess.level).sum())


def test_directions_do_what_they_promise() -> None:
    found, matrix = embedded(([6, 5], [3, 3], [1, 1], [1, 1], 8, 8))
    level = 1.01 * float(torch.linalg.matrix_norm(matrix, 2))
    excess = count_above(found, level, 0)
    assert excess is not None
    assert excess.count > 0
    directions = negative_directions(excess, 200)
    assert directions is not None
    assert directions[0].shape[-1] == excess.count
    left = remainder(excess, *directions)
    assert 0.0 <= left < 1e-6 * level
    # Too few of them, the same one twice, or directions of no use prove nothing.
    fewer = [d[..., 1:] for d in directions]
    assert remainder(excess, *fewer) == math.inf
    twice = [torch.cat([d[..., :1], d[..., :-1]], -1) for d in directions]
    assert remainder(excess, *twice) == math.inf
    generator = torch.Generator().manual_seed(0)
    useless = [torch.randn(d.shape, generator=generator, dtype=d.dtype) for d in directions]
    assert remainder(excess, *useless) == math.inf
    # Directions that do not leave the window are charged for it: with the window everywhere nothing small remains.
    everywhere = tuple(tuple(np.ones_like(axis) for axis in window) for window in found.rows)
    open_ = replace(excess, embedding=replace(found, rows=everywhere, columns=everywhere))
    assert remainder(open_, *directions) > 1e-3 * level


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(2, 7), st.integers(2, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 10_000),
    st.floats(-0.02, 0.05),
)
def test_no_false_certificate(size, kernel, stride, inputs, outputs, seed, offset) -> None:
    kernel = tuple(min(k, n) for k, n in zip(kernel, size, strict=True))
    padding = [k // 2 for k in kernel]
    found, matrix = embedded((list(size), list(kernel), list(stride), padding, inputs, outputs), seed)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    bound = inertia_bound(found, norm * (1.0 + offset), seed=seed)
    assert bound >= norm * (1.0 - 1e-13)


@pytest.mark.parametrize("exponent", [-800, -300, -60, 60, 300, 800])
def test_scale_does_not_matter(exponent: int) -> None:
    """The same digits at every scale; beyond what squares can hold there is no bound, and no error."""
    found, matrix = embedded(([5, 5], [3, 3], [1, 1], [1, 1], 8, 8))
    level = 1.005 * float(torch.linalg.matrix_norm(matrix, 2))
    scaled = inertia_bound(found.scaled(2.0**exponent), level * 2.0**exponent)
    assert scaled == inertia_bound(found, level) * 2.0**exponent
    assert inertia_bound(found.scaled(2.0**1000), 2.0**1000 * level) == math.inf
    for useless in (0.0, -1.0, math.inf, math.nan):
        assert inertia_bound(found, useless) == math.inf


def test_a_group_that_is_nearly_dead_disturbs_nobody() -> None:
    """Groups are bounded at the scale of the largest: one far below it keeps its own, or none."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(288, 144, 3, 3, generator=generator, dtype=torch.float64)
    alone = convolution_norm(weight[:144], [7, 7], padding=1)
    weight[144:] *= 1e-21
    both = convolution_norm(weight, [7, 7], padding=1, groups=2)
    assert both.log_upper == pytest.approx(alone.log_upper, abs=1e-4)
    assert both.log_lower == pytest.approx(alone.log_lower, abs=1e-9)


def test_smallest_eigenvalue_and_symbol_error() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    matrix = factor @ factor.mT + 0.1 * torch.eye(6)
    truth = float(torch.linalg.eigvalsh(matrix)[0])
    assert 0.4 * truth < smallest_eigenvalue(matrix) <= truth
    assert smallest_eigenvalue(matrix - 2.0 * truth * torch.eye(6)) == -math.inf
    found, _ = embedded(CASES[0])
    assert 0.0 < symbol_error(found) < 1e-12 * math.sqrt(float(found.form.absolute_sum))


@pytest.mark.turns(2)
@pytest.mark.parametrize("channels", [(160, 160), (144, 192)])
def test_convolutions_on_small_maps_are_certified(channels: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_block, "CYLINDER_UP_TO", 0)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(*channels, 3, 3, generator=generator, dtype=torch.float64)
    bounds = convolution_norm(weight, [7, 7], padding=1)
    assert bounds.method == "inertia"
    assert bounds.delta == 0.0
    assert bounds.width <= 9e-3
    conv = zero_padded_map(weight, convolution_axes([7, 7], [3, 3], [1, 1], [1, 1], [1, 1]))
    operator = LinearOperator(
        (conv.range_dimension, conv.domain_dimension),
        matvec=lambda x: conv.apply(torch.from_numpy(x).reshape(conv.domain_shape)).flatten().numpy(),
        rmatvec=lambda y: conv.adjoint(torch.from_numpy(y).reshape(conv.range_shape)).flatten().numpy(),
        dtype=np.float64,
    )
    (truth,) = svds(operator, k=1, return_singular_vectors=False, random_state=0)
    assert bounds.lower <= truth * (1.0 + 1e-9)
    assert truth <= bounds.upper
