"""Multipliers measured against what they must exceed."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.lipschitz.chains import relative_search
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError
from normscope.lipschitz.chains.elimination import eliminate
from normscope.lipschitz.chains.relative_search import RelativeObjective, descend
from normscope.lipschitz.chains.search import smoothed


def _form(blocks: int = 3, seed: int = 0, low: float = 0.0) -> ChainForm:
    """Return a residual form with complex blocks: unit 2 reads unit 1 and unit 0, the target reads unit 2."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> MatrixWithError:
        parts = torch.randn(2, blocks, rows, columns, generator=generator, dtype=torch.float64)
        return MatrixWithError(torch.complex(parts[0], parts[1]))

    units = (
        ActivationUnit({0: matrix(4, 3)}, low=low),
        ActivationUnit({1: matrix(5, 4)}, low=low),
        ActivationUnit({2: matrix(4, 5), 1: matrix(4, 4)}, low=low),
    )
    return ChainForm((3,), units, {3: matrix(2, 4)})


def _first(form: ChainForm) -> list[torch.Tensor]:
    return [torch.ones(unit.size, dtype=torch.float64) for unit in form.units]


@pytest.mark.turns(5)
@pytest.mark.parametrize("low", [0.0, -0.2])
def test_the_gradient_is_that_of_differences(low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along every coordinate, with eigenvectors that have converged."""
    monkeypatch.setattr(relative_search, "FIRST_TURNS", 3000)
    form = _form(low=low)
    generator = torch.Generator().manual_seed(1)
    found = RelativeObjective(form)
    x = found.first(_first(form))
    x = x + 0.3 * torch.randn(len(x), generator=generator, dtype=torch.float64)

    def value(point: torch.Tensor) -> float:
        fresh = RelativeObjective(form)
        at = fresh(point)
        assert at is not None
        smooth = smoothed(at.rest, fresh.balance(point), fresh.weights, 32.0)
        assert smooth is not None
        return smooth.smooth

    at = found(x)
    assert at is not None
    slope = found.gradient(x, at, 32.0)
    assert slope is not None
    steps = 1e-5 * torch.eye(len(x), dtype=torch.float64)
    differences = torch.tensor([(value(x + s) - value(x - s)) / 2e-5 for s in steps], dtype=torch.float64)
    assert torch.allclose(slope, differences, atol=1e-7 * float(slope.abs().max()), rtol=1e-5)


def test_every_shape_and_share_bounds_the_form() -> None:
    """The multipliers are those that elimination accepts, and give the same constant."""
    form = _form()
    found = RelativeObjective(form)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = found.first(_first(form))
        x = x + torch.randn(len(x), generator=generator, dtype=torch.float64)
        for _ in range(30):  # the power iteration goes on from where it was
            at = found(x)
        assert at is not None
        rest = eliminate(form, at.rest.multipliers)
        assert rest is not None
        balance = float(found.balance(x))
        top = math.sqrt(float(torch.linalg.eigvalsh(rest.sources).max()))
        assert at.log == pytest.approx(math.log(top * math.exp(-balance)) + balance, abs=1e-9)


def test_the_blocks_that_decide_are_enough() -> None:
    """What is found holds at all blocks, is listed best first, and is far better than the first multipliers."""
    form = _form(blocks=12)
    told: list[str] = []
    found = descend(form, _first(form), evaluations=4000, most_steps=200, progress=told.append)
    assert [c.log for c in found] == sorted(c.log for c in found)
    rest = eliminate(form, found[0].multipliers)
    assert rest is not None
    assert 0.5 * math.log(float(torch.linalg.eigvalsh(rest.sources).max())) == pytest.approx(found[0].log, abs=1e-6)
    first = next(c for c in found if c.steps == 0)
    assert found[0].log < first.log - 0.1
    assert "12 decide" in told[-1]
    assert not told[-1].endswith("12 of 12 decide")


def test_no_work_gives_the_first_multipliers() -> None:
    """One look at all blocks, no step."""
    form = _form()
    (only,) = descend(form, _first(form), evaluations=0, most_steps=10)
    assert only.steps == 0
