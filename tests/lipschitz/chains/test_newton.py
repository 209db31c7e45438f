"""Multipliers by an interior-point method: the optimum where a grid knows it, never above a long search, and proved."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from networks import points, spectral_norm
from normscope.lipschitz.chains import newton as module
from normscope.lipschitz.chains.certificate import certify_form
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain
from normscope.lipschitz.chains.elimination import eliminate
from normscope.lipschitz.chains.newton import newton
from normscope.lipschitz.chains.scaled_chain import scaled_chain
from normscope.lipschitz.chains.search import search


def _constant(form: ChainForm, multipliers: list[Tensor]) -> float:
    """Return the constant that multipliers give a form of one source, by elimination."""
    rest = eliminate(form, multipliers)
    return math.inf if rest is None else math.sqrt(float(torch.linalg.eigvalsh(rest.sources).max()))


def _residual(seed: int) -> ChainForm:
    """Two sources, a unit that reads both, one that reads the first unit and a source, all in the target."""
    blocks = [MatrixWithError(points(1, 4, n, seed=seed + n)) for n in (2, 3, 4)]
    first = ActivationUnit({0: blocks[0], 1: blocks[1]}, 0.1, 1.0)
    second = ActivationUnit({1: blocks[1], 2: blocks[2]})
    target = {
        0: MatrixWithError(points(1, 2, 2, seed=seed)),
        2: MatrixWithError(points(1, 2, 4, seed=seed + 1)),
        3: MatrixWithError(points(1, 2, 4, seed=9)),
    }
    return ChainForm((2, 3), (first, second), target, (1.0, 0.3))


@pytest.mark.turns(6)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slopes", [(0.0, 1.0), (0.2, 1.0), (-0.1, 1.1)])
def test_no_multipliers_of_a_grid_are_better(seed: int, slopes: tuple[float, float]) -> None:
    form = chain([points(2, 3, seed=seed), points(2, 2, seed=seed + 9)], slopes)
    found = newton(form, [10 * torch.ones(2, dtype=torch.float64)])
    assert found is not None
    value = math.exp(found.log)
    assert _constant(form, found.multipliers) == pytest.approx(value, rel=1e-3)
    grid = torch.logspace(-2, 2, 60, dtype=torch.float64)
    best = min(_constant(form, [torch.stack(pair)]) for pair in itertools.product(grid, grid))
    assert value <= best * (1 + 1e-4)
    assert value >= 0.9 * best


@pytest.mark.parametrize("seed", range(4))
def test_a_long_search_is_not_better_and_no_pattern_exceeds_the_proof(seed: int) -> None:
    weights = [points(6, 4, seed=seed), points(5, 6, seed=seed + 1), points(3, 5, seed=seed + 2)]
    first = scaled_chain(chain(weights))
    found = newton(first.form, first.multipliers)
    long = search(first.form, first.multipliers, steps=2000)
    assert found is not None
    assert long is not None
    assert found.log <= long.log + 1e-4
    assert found.steps < 40
    (log,) = certify_form(chain(weights), seconds=1.0)
    assert log == pytest.approx(found.log + first.log_units[0], abs=1e-4)
    for k in range(200):
        one, two = ((points(n, seed=10 * k + n) > 0).double() for n in (6, 5))
        assert spectral_norm(weights[2] * two @ weights[1] * one @ weights[0]) <= math.exp(log)


@pytest.mark.parametrize("seed", range(3))
def test_several_sources_and_skips(seed: int) -> None:
    form = _residual(seed)
    first = scaled_chain(form)
    found, long = newton(first.form, first.multipliers), search(first.form, first.multipliers, steps=2000)
    assert found is not None
    assert long is not None
    assert found.log <= long.log + 1e-4
    assert certify_form(form, seconds=1.0) is not None


def test_scaled_neurons_change_nothing() -> None:
    weights = [points(6, 4), points(5, 6, seed=1), points(3, 5, seed=2)]
    scale = torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100 + 1e-3
    other = [scale[:, None] * weights[0], weights[1] / scale, weights[2]]
    (a,), (b,) = (certify_form(chain(w), seconds=1.0) for w in (weights, other))
    assert a == pytest.approx(b, abs=1e-4)


def test_what_is_large_or_not_bounded_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    form = chain([torch.eye(2), 3 * torch.eye(2)])
    assert newton(form, [torch.ones(2, dtype=torch.float64)]) is None  # too small: 2 - 9 is negative
    good = [torch.full((2,), 9.0, dtype=torch.float64)]
    assert newton(form.converted(torch.complex128), good) is None
    assert newton(form, good) is not None
    monkeypatch.setattr(module, "LARGEST", 3)
    assert newton(form, good) is None
