"""One channel group: each way to its bounds against the dense norm."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from normscope.linalg import convolution_block
from normscope.linalg.convolution_block import (
    ConvolutionBlock,
    block_norm,
    certificate_log,
    dense_bounds,
    least_norm,
    relaxation,
    with_noise,
)
from normscope.linalg.convolution_geometry import convolution_axes
from normscope.linalg.convolution_on_torus import torus_bound
from normscope.operators.linear_map import LinearMap


def block(channels: int, size: int, mode: str = "zeros", stride: int = 1, seed: int = 0) -> ConvolutionBlock:
    """Return a random square group with 3 x 3 taps and padding one."""
    weight = torch.randn(channels, channels, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ConvolutionBlock(weight, convolution_axes([size] * 2, [3, 3], [stride] * 2, [1, 1], [1, 1]), mode)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("stride", [1, 2])
def test_relaxations_are_above_the_dense_norm(mode: str, stride: int) -> None:
    """Every torus of every padding mode bounds the map; circular ones whose stride divides are exact."""
    for size in (6, 7):
        part = block(2, size, mode, stride)
        truth = float(torch.linalg.matrix_norm(part.map().matrix(), 2))
        relaxed = relaxation(part.weight, part.axes, 1, mode)
        bounds = [math.sqrt(float(torus_bound(relaxed.form, t))) * math.exp(relaxed.log_factor) for t in relaxed.tori]
        assert min(bounds) >= truth * (1 - 1e-12)
        if mode == "circular" and size % stride == 0:
            assert min(bounds) == pytest.approx(truth, rel=1e-9)


def test_absolute_norm_and_apply_error() -> None:
    """The absolute norm bounds the map of absolute weights; the error of float32 rounding stays in proportion."""
    for mode in ("zeros", "reflect"):
        part = block(3, 6, mode)
        absolute = ConvolutionBlock(part.weight.abs(), part.axes, mode)
        assert part.absolute_norm >= float(torch.linalg.matrix_norm(absolute.map().matrix(), 2))
        x = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        x /= torch.linalg.vector_norm(x)
        error = torch.linalg.vector_norm(part.map().apply(x) - part.map(torch.float32).apply(x.float()).double())
        # Float32 has 2^29 times the unit roundoff; inputs and weights are rounded as well as products.
        assert float(error) <= part.apply_error * 2.0**29
        assert part.apply_error < 1e-12 * part.absolute_norm


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
@pytest.mark.parametrize("channels", [3, 34])
def test_large_blocks_agree_with_the_dense_certificate(
    mode: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the dense ways closed, torus and Lanczos still contain the dense value and reach the tolerance."""
    part = block(channels, 20 if channels < 10 else 6, mode)
    exact = dense_bounds(part, 0)
    assert exact.width < 1e-8
    monkeypatch.setattr(convolution_block, "ALWAYS_DENSE_UP_TO", 0)
    monkeypatch.setattr(convolution_block, "DENSE_UP_TO", 0)
    monkeypatch.setattr(convolution_block, "BANDED_UP_TO", 0)
    usual = block_norm(part, tolerance=1e-3, delta=1e-9, seed=0)
    assert usual.probable_width <= convolution_block.PROBABLE_WIDTH
    monkeypatch.setattr(convolution_block, "PROBABLE_WIDTH", 1e-3)
    narrow = block_norm(part, tolerance=1e-3, delta=1e-9, seed=0)
    for bounds in (usual, narrow):
        assert bounds.log_lower <= exact.log_upper
        assert bounds.log_upper >= exact.log_lower
        assert bounds.log_probable >= exact.log_lower
    assert narrow.probable_width <= 1e-3


@pytest.mark.turns(2)
def test_wide_blocks_are_bounded_by_cylinders_and_closer_than_by_tori(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 34 channels on 12 places: the cylinder contains the dense value and leaves less room than the torus."""
    part = block(34, 12)
    exact = dense_bounds(part, 0)
    for name in ("ALWAYS_DENSE_UP_TO", "DENSE_UP_TO", "BANDED_UP_TO"):
        monkeypatch.setattr(convolution_block, name, 0)
    monkeypatch.setattr(convolution_block, "inertia_bound", lambda *_, **__: math.inf)
    found = []
    for most in (math.inf, 0):
        monkeypatch.setattr(convolution_block, "CYLINDER_UP_TO", most)
        found.append(block_norm(part, tolerance=1e-3, delta=1e-9, seed=0))
        assert found[-1].log_lower <= exact.log_upper
        assert found[-1].log_upper >= exact.log_lower
    cylinder, torus = found
    assert (cylinder.method, torus.method) == ("cylinder", "torus+lanczos")
    assert cylinder.delta == 0.0
    assert cylinder.width <= 0.6 * torus.width <= convolution_block.CYLINDER_WIDTH


def test_the_order_of_work_does_not_change_the_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torus first or Lanczos first: both intervals contain the dense value."""
    part = block(4, 18)
    exact = dense_bounds(part, 0)
    monkeypatch.setattr(convolution_block, "ALWAYS_DENSE_UP_TO", 0)
    monkeypatch.setattr(convolution_block, "PROBABLE_WIDTH", 1e-3)
    for excess, dense in [(0.0, 0), (100.0, 0), (0.0, 5000), (100.0, 5000)]:
        monkeypatch.setattr(convolution_block, "TYPICAL_TORUS_EXCESS", excess)
        monkeypatch.setattr(convolution_block, "DENSE_UP_TO", dense)
        monkeypatch.setattr(convolution_block, "BANDED_UP_TO", 0)
        bounds = block_norm(part, tolerance=1e-3, delta=1e-9, seed=0)
        assert bounds.log_lower <= exact.log_upper
        assert bounds.log_probable >= exact.log_lower
        assert bounds.probable_width <= 1e-3


@pytest.mark.parametrize("excess", [0.0, 100.0])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_banded_certificate_is_as_good_as_the_dense_one(
    excess: float, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a small map the banded factorisation, on either side, contains the dense value and is narrow."""
    part = block(5, 15, stride=stride)
    exact = dense_bounds(part, 0)
    monkeypatch.setattr(convolution_block, "ALWAYS_DENSE_UP_TO", 0)
    monkeypatch.setattr(convolution_block, "DENSE_UP_TO", 0)
    monkeypatch.setattr(convolution_block, "TYPICAL_TORUS_EXCESS", excess)
    bounds = block_norm(part, tolerance=1e-6, delta=1e-9, seed=0)
    assert bounds.method == "banded cholesky"
    assert bounds.width <= 1e-6
    assert bounds.log_lower <= exact.log_upper
    assert bounds.log_upper >= exact.log_lower


def test_entry_errors_widen_both_sides() -> None:
    """Weights known to a relative 1e-6 only cannot have a norm known to 1e-9."""
    weight = block(3, 6).weight
    axes = block(3, 6).axes
    sharp = block_norm(ConvolutionBlock(weight, axes, "zeros"), tolerance=1e-3, delta=1e-9, seed=0)
    blurred = block_norm(ConvolutionBlock(weight, axes, "zeros", entry_error=1e-6), tolerance=1e-3, delta=1e-9, seed=0)
    for sign in (-1.0, 1.0):
        moved = block_norm(
            ConvolutionBlock(weight * (1 + sign * 1e-6), axes, "zeros"), tolerance=1e-3, delta=1e-9, seed=0
        )
        assert blurred.log_lower <= moved.log_upper
        assert blurred.log_upper >= moved.log_lower
    assert blurred.width > sharp.width + 1e-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return seeded Gaussian numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_least_wins_and_its_estimate_is_from_below() -> None:
    """Of maps with norms apart, tall and wide, the winner is the least one."""
    matrices = [random(20, 30, seed=i) * scale for i, scale in enumerate((3.0, 1.0, 2.0))]
    norms = [float(torch.linalg.matrix_norm(A, 2)) for A in matrices]
    estimate, winner = least_norm(((LinearMap.from_matrix(A), torch.ones(20)) for A in matrices), max_steps=20)
    assert winner == 1
    assert 0.99 * min(norms) <= estimate <= min(norms) * (1 + 1e-12)


def test_the_first_small_enough_ends_the_contest() -> None:
    """Later maps are not even made."""
    made = []

    def contestants() -> object:
        for scale in (1.0, 0.5, 0.1):
            made.append(scale)
            yield LinearMap.from_matrix(random(8, 8) * scale), torch.ones(8)

    _, winner = least_norm(contestants(), enough=0.6 * float(torch.linalg.matrix_norm(random(8, 8), 2)))  # type: ignore[arg-type]
    assert (winner, made) == (1, [1.0, 0.5])


def test_starts_are_laid_in_and_cut() -> None:
    """A start of another size is fitted: the estimate is that of the map all the same."""
    A = random(12, 12)
    norm = float(torch.linalg.matrix_norm(A, 2))
    for length in (5, 12, 20):
        estimate, _ = least_norm([(LinearMap.from_matrix(A), torch.ones(length))], max_steps=12)
        assert estimate == pytest.approx(norm, rel=1e-6)


def test_noise_is_half_as_long_and_repeatable() -> None:
    """The same seed gives the same noise, of about half the length of the vector."""
    unit = torch.zeros(4000, dtype=torch.float64)
    unit[0] = 1.0
    noisy = with_noise(unit, 3)
    assert torch.equal(noisy, with_noise(unit, 3))
    assert float((noisy - unit).norm()) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("norm", [1e-300, 1e-9, 1.0, 1e9, 1e300])
@pytest.mark.parametrize("log_factor", [0.0, 3.0])
def test_the_logarithm_of_a_certificate_is_rounded_up(norm: float, log_factor: float) -> None:
    """Against a logarithm of 50 digits, whatever its sign."""
    with mpmath.workdps(50):
        exact = mpmath.log(mpmath.mpf(norm)) + log_factor
        found = mpmath.mpf(certificate_log(norm, log_factor))
        assert exact < found <= exact + 1e-14 * (1 + abs(exact))
