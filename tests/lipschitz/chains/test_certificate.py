"""Certificates of regions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from normscope.lipschitz.chains.certificate import certify_form, planned_steps
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain


def _weights(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(sizes)
    return [torch.randn(b, a, generator=generator, dtype=torch.float64) * math.sqrt(2 / a) for a, b in pairs]


def _log(weights: list[torch.Tensor], seconds: float = 1.0) -> float:
    found = certify_form(chain(weights), seconds=seconds)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("seed", range(4))
def test_it_lies_between_the_worst_pattern_and_the_product(seed: int) -> None:
    """All patterns of a small network, and the product of norms."""
    weights = _weights(4, 5, 5, 3, seed=seed)
    worst = 0.0
    for corner in itertools.product((0.0, 1.0), repeat=10):
        first, second = (torch.diag(torch.tensor(part).double()) for part in (corner[:5], corner[5:]))
        worst = max(worst, float(torch.linalg.matrix_norm(weights[2] @ second @ weights[1] @ first @ weights[0], 2)))
    product = math.prod(float(torch.linalg.matrix_norm(w, 2)) for w in weights)
    found = math.exp(_log(weights))
    assert worst * (1 - 1e-12) <= found < 0.9 * product


def test_a_network_that_attains_its_product_gets_it() -> None:
    """Orthogonal layers of one sign: nothing is lost."""
    eye = torch.eye(4).double()
    assert _log([2 * eye, 3 * eye, eye]) == pytest.approx(math.log(6.0), abs=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_it_does_not_move_under_the_symmetries_of_the_network(seed: int) -> None:
    """ReLU rescalings of neurons over twelve orders of magnitude, and permutations."""
    weights = _weights(6, 10, 10, 4, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    factors = 10.0 ** (12 * torch.rand(10, generator=generator, dtype=torch.float64) - 6)
    order = torch.randperm(10, generator=generator)
    moved = [(factors[:, None] * weights[0])[order], (weights[1] / factors)[:, order], weights[2]]
    assert _log(moved) == pytest.approx(_log(weights), abs=1e-3)


def test_more_time_is_never_worse() -> None:
    """No time at all still gives the first multipliers."""
    weights = _weights(8, 30, 30, 30, 4)
    logs = [_log(weights, seconds) for seconds in (0.0, 0.1, 2.0)]
    assert logs[0] >= logs[1] - 1e-7
    assert logs[1] >= logs[2] - 1e-7
    assert logs[2] < logs[0]


def test_several_sources_get_constants_of_their_own() -> None:
    """``relu(a x) + b y``: the squares of both hold for every pair of vectors."""
    a, b = _weights(3, 3), _weights(2, 3, seed=1)
    eye = torch.eye(3).double()
    form = ChainForm(
        (3, 2),
        (ActivationUnit({0: MatrixWithError(a[0][None])}),),
        {1: MatrixWithError(b[0][None]), 2: MatrixWithError(eye[None])},
        (1.0, 0.1),
    )
    found = certify_form(form, seconds=1.0)
    assert found is not None
    x, y = math.exp(2 * found[0]), math.exp(2 * found[1])
    for corner in itertools.product((0.0, 1.0), repeat=3):
        whole = torch.cat([torch.diag(torch.tensor(corner).double()) @ a[0] / x**0.5, b[0] / y**0.5], 1)
        assert float(torch.linalg.matrix_norm(whole, 2)) <= 1 + 1e-9


def test_steps_follow_from_the_size() -> None:
    """A wide network gets fewer of them in the same time."""
    assert planned_steps(chain(_weights(64, 256, 256, 10)), 1.0) < planned_steps(chain(_weights(64, 64, 64, 10)), 1.0)
