"""The search for multipliers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain
from normscope.lipschitz.chains.scaled_chain import scaled_chain
from normscope.lipschitz.chains.search import SmoothedObjective, reduced, search


def _weights(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(sizes)
    return [torch.randn(b, a, generator=generator, dtype=torch.float64) / math.sqrt(a) for a, b in pairs]


def test_the_gradient_is_that_of_the_smoothed_constant() -> None:
    """Multipliers and the balance of two sources, against differences."""
    a, b, c, d = (
        MatrixWithError(w[None]) for w in (*_weights(3, 4), *_weights(2, 4, seed=1), *_weights(4, 3), *_weights(2, 3))
    )
    form = ChainForm((3, 2), (ActivationUnit({0: a, 1: b}),), {1: d, 2: c}, (1.0, 0.5))
    objective = SmoothedObjective(form)
    x = torch.tensor([1.0, 1.2, 0.8, 1.1, 0.3, -0.2]).double() + 1.0
    found = objective(x, 5.0)
    assert found is not None
    for i in range(len(x)):
        step = torch.zeros(len(x)).double()
        step[i] = 1e-6
        ahead, behind = objective(x + step, 5.0), objective(x - step, 5.0)
        assert ahead is not None
        assert behind is not None
        assert float(found[2][i]) == pytest.approx((ahead[1] - behind[1]) / 2e-6, rel=1e-3, abs=1e-6)


@pytest.mark.turns(2)
def test_it_reaches_the_best_multipliers_of_one_layer() -> None:
    """Against a grid over both multipliers of a unit of two entries."""
    weights = _weights(2, 2, 2, seed=3)
    form = chain(weights)
    first = scaled_chain(form)
    found = search(first.form, first.multipliers, steps=200)
    assert found is not None
    Q = weights[1].mT @ weights[1]
    best = math.inf
    for i in torch.linspace(-4, 4, 161).exp().tolist():
        for j in torch.linspace(-4, 4, 161).exp().tolist():
            L = torch.diag(torch.tensor([i, j]).double())
            if float(torch.linalg.eigvalsh(2 * L - Q)[0]) > 1e-9:
                whole = weights[0].mT @ L @ torch.linalg.inv(2 * L - Q) @ L @ weights[0]
                best = min(best, float(torch.linalg.eigvalsh(whole)[-1]) ** 0.5)
    assert math.exp(found.log + first.log_units[0]) == pytest.approx(best, rel=2e-3)


def test_more_steps_are_never_worse() -> None:
    """The best point met is returned."""
    first = scaled_chain(chain(_weights(5, 12, 12, 3)))
    logs = []
    for steps in (1, 10, 100):
        found = search(first.form, first.multipliers, steps=steps)
        assert found is not None
        logs.append(found.log)
    assert logs[0] >= logs[1] >= logs[2]
    assert logs[2] < logs[0] - 0.05


def test_a_wide_source_is_reduced_to_what_is_read_of_it() -> None:
    """The constant stays."""
    weights = _weights(40, 6, 3)
    whole, small = scaled_chain(chain(weights)), scaled_chain(reduced(chain(weights)))
    assert small.form.sources == (6,)
    assert small.square * math.exp(2 * small.log_units[0]) == pytest.approx(
        whole.square * math.exp(2 * whole.log_units[0]), rel=1e-9
    )


def test_it_ends_when_time_is_over() -> None:
    """After the first evaluation."""
    first = scaled_chain(chain(_weights(5, 12, 12, 3)))
    found = search(first.form, first.multipliers, steps=100, out_of_time=lambda: True)
    assert found is not None
    assert found.steps <= 3
