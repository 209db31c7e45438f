"""Theorem 20 repaired: true where the gap is known, refused where the partition saw the data, vacuous when it is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.generalization import corollary_21, corollary_22, g_paper, grid, partition_bound, theorem_20_printed


def _uniform(m: int, seed: int) -> Tensor:
    return torch.rand(m, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_holds_for_a_known_loss() -> None:
    """``f(x) = |sin(20 x)|`` on [0, 1] is 20-Lipschitz with a known mean; every of 300 data sets obeys the bound."""
    mean = float(torch.linspace(0, 1, 2_000_001, dtype=torch.float64).mul(20).sin().abs().mean())
    parts, failures = grid([0.0], [1.0], [100]), 0
    for seed in range(300):
        x = _uniform(400, seed)
        bound = partition_bound(parts, x, 20.0, largest=1.0, delta=0.1)
        gap = abs(float((20 * x).sin().abs().mean()) - mean)
        failures += gap > bound.gap.value
        assert bound.gap.value <= bound.printed.value
    assert failures <= 30


def test_holds_for_a_model_that_memorizes() -> None:
    """Uniform in the model: a loss that is zero at the samples and one elsewhere, with its true (huge) constants."""
    x = _uniform(50, 0)
    width = 1e-3  # the loss rises from zero to one within this distance of a sample
    bound = partition_bound(grid([0.0], [1.0], [20]), x, 1 / width, largest=1.0, delta=0.05)
    gap = 1.0 - 50 * width  # at least
    assert gap <= bound.gap.value
    assert bound.vacuous


def test_parts_of_the_bound() -> None:
    """The local term by hand, the smaller of two terms with half of delta, printed beside it."""
    x = torch.tensor([[0.1], [0.2], [0.8]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    bound = partition_bound(
        grid([0.0], [1.0], [2]), x, [1.0, 50.0, 50.0, 4.0], largest=2.0, delta=0.1, labels=y, classes=2
    )
    assert bound.local.value == pytest.approx((2 * 1.0 + 1 * 4.0) / 3 * 0.5, rel=1e-9)
    assert (bound.occupied, bound.cells, bound.samples) == (2, 4, 3)
    least = min(bound.tight.value, bound.total_variation.value)
    assert bound.gap.value == pytest.approx(bound.local.value + least, rel=1e-9)
    assert (bound.gap.kind, bound.gap.delta, bound.tight.delta) == (Kind.PROBABILISTIC, 0.1, 0.05)
    assert bound.printed.kind is Kind.PRINTED
    assert bound.vacuous
    assert bound.printed.value >= bound.largest
    printed = theorem_20_printed(bound.local, g_paper(2.0, 2, 4, 3, 0.1))
    assert printed.value == pytest.approx(bound.printed.value)


def test_a_partition_built_from_the_data_would_fail() -> None:
    """Cells of radius 1e-6 around the samples: the printed bound is far below the true gap, so it must be refused."""
    m, tau = 1000, 1e-6
    x = _uniform(m, 3)
    gap = 1.0 - 2 * tau * m  # the loss is one off the intervals, zero on them: its constant is zero on both cells
    printed = theorem_20_printed(Value.of(0.0, Kind.CERTIFIED), g_paper(1.0, 1, 2, m, 0.05))
    assert printed.value < 0.2 < gap
    from normscope.generalization import Partition

    near = Partition("two cells", 2, torch.ones(1), lambda z: (torch.cdist(z, x).min(1)[0] > tau).long(), centres=x)
    with pytest.raises(InputError, match="chosen before seeing the data"):
        partition_bound(near, x, 0.0, largest=1.0, delta=0.05)


def test_wrong_arguments() -> None:
    """An unbounded loss, constants of the wrong number or sign."""
    x, parts = _uniform(10, 0), grid([0.0], [1.0], [2])
    with pytest.raises(InputError, match="bounded loss"):
        partition_bound(parts, x, 1.0, largest=math.inf, delta=0.1)
    for constants in ([1.0], [1.0, -1.0], -1.0):
        with pytest.raises(InputError, match="Expected one constant for all"):
            partition_bound(parts, x, constants, largest=1.0, delta=0.1)


def test_parts() -> None:
    """By hand, printed whatever went in, and huge products stay finite logarithms."""
    g = g_paper(1.0, 10, 100, 50_000, 0.05)
    parts = [Value.of(x, Kind.CERTIFIED) for x in (0.5, 300.0, 4.0)]
    found = corollary_22(*parts, g)
    assert found.value == pytest.approx(0.5 * 300 * 4 + g.value)
    assert found.kind is Kind.PRINTED
    huge = corollary_22(parts[0], Value(2000.0, Kind.PRINTED), parts[2], g)
    assert huge.log == pytest.approx(2000 + math.log(2))


def test_corollary_21_is_theorem_20_printed() -> None:
    """The same number, never a bound."""
    found = corollary_21(Value.of(0.4, Kind.PROBABILISTIC, assumptions=("x",)))
    assert found.value == pytest.approx(0.4)
    assert found.kind is Kind.PRINTED
    assert found.assumptions == ("x",)
