"""Lanczos bounds against spectra known exactly; failure probabilities by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from normscope.linalg.lanczos import (
    attained_norm,
    krylov_certificate,
    lanczos_norm,
    lanczos_relative_gap,
    operator_norm,
)
from normscope.operators.linear_map import LinearMap

DIMENSION = 400


def diagonal_map(singular_values: torch.Tensor) -> LinearMap:
    """Return a diagonal map: its norm is its largest entry, exactly."""
    d = singular_values.to(torch.float64)
    return LinearMap(lambda x: d * x, lambda y: d * y, tuple(d.shape), tuple(d.shape))


def hard_spectrum() -> torch.Tensor:
    """Return singular values whose squares crowd like the arcsine law below an isolated largest one.

    Chebyshev polynomials, the extremal ones of the a-priori theorem, are nearly orthogonal for it.
    """
    angles = torch.linspace(0.0, math.pi, DIMENSION - 1, dtype=torch.float64)
    return torch.cat([(0.97 * (1 + angles.cos()) / 2).sqrt(), torch.ones(1, dtype=torch.float64)])


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (40, 40), (1, 9), (9, 1)])
def test_exhausted_krylov_space_gives_the_norm(shape: tuple[int, int]) -> None:
    """Run to the end, the attained value is the norm to rounding and never above it."""
    A = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = float(torch.linalg.matrix_norm(A, 2))
    run = lanczos_norm(LinearMap.from_matrix(A), tolerance=1e-15, delta=1e-9)
    assert run.lower <= truth * (1 + 1e-15)
    assert run.lower == pytest.approx(truth, rel=1e-10)
    assert truth * (1 - 1e-14) <= run.probable <= truth * (1 + 1e-9)


@pytest.mark.turns(3)
@pytest.mark.parametrize("delta", [0.5, 0.1])
@pytest.mark.parametrize("steps", [6, 12])
def test_failures_of_both_certificates_stay_below_delta(delta: float, steps: int) -> None:
    """Over random starts, upper bounds fail at most as often as they may: the only case where they are not proofs."""
    trials = 300
    singular = hard_spectrum()
    failures = {"krylov": 0, "a priori": 0}
    for seed in range(trials):
        run = lanczos_norm(diagonal_map(singular), tolerance=0.0, delta=delta, max_steps=steps, seed=seed)
        assert run.steps == steps
        failures["krylov"] += run.probable < 1.0
        gap = lanczos_relative_gap(DIMENSION, steps, delta)
        failures["a priori"] += gap < 1.0 and run.ritz**2 / (1.0 - gap) < 1.0
    allowed = delta * trials + 3.0 * math.sqrt(trials * delta * (1 - delta))
    assert failures["krylov"] <= allowed
    assert failures["a priori"] <= allowed


@pytest.mark.turns(5)
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_the_failure_probability_of_the_krylov_certificate_is_used_up(delta: float) -> None:
    """One step before the end in four dimensions it fails exactly when the start misses the top vector.

    |<v_1, q>| < t has probability (2/pi) (t sqrt(1-t^2) + asin t) on the sphere of R^4, with
    t = delta sqrt(pi/6): 0.453 for delta = 0.5 and 0.092 for delta = 0.1, just below what is allowed.
    """
    trials = 2000
    singular = torch.tensor([1.0, 0.9, 0.8, 0.7])
    runs = [
        lanczos_norm(diagonal_map(singular), tolerance=0.0, delta=delta, max_steps=3, seed=s) for s in range(trials)
    ]
    t = delta * math.sqrt(math.pi / 6)
    expected = 2 / math.pi * (t * math.sqrt(1 - t * t) + math.asin(t))
    failed = sum(run.probable < 1.0 for run in runs) / trials
    assert expected < delta
    assert failed == pytest.approx(expected, abs=4 * math.sqrt(expected / trials))


def test_krylov_certificate_solves_its_equation() -> None:
    """At the bound, the sum of squared orthonormal polynomials equals 2 (N-1) / (pi delta^2), by eigenvectors of T."""
    generator = np.random.default_rng(0)
    k, dimension, delta = 7, 100, 1e-3
    diagonal, coupling = 1 + generator.random(k), 0.2 + generator.random(k)
    upper = krylov_certificate(diagonal, coupling, dimension, delta)
    # The orthonormal polynomials at x are the solution of (x - T) p = b_k p_k e_k with p_0 = 1.
    T = np.diag(diagonal) + np.diag(coupling[:-1], 1) + np.diag(coupling[:-1], -1)
    shape = np.linalg.solve(upper * np.eye(k) - T, np.eye(k)[:, -1])
    p = shape / shape[0]
    last = 1.0 / (shape[0] * coupling[-1])
    total = float(p @ p + last * last)
    assert total == pytest.approx(2 * (dimension - 1) / (math.pi * delta**2), rel=1e-6)
    assert upper > np.linalg.eigvalsh(T)[-1]


def test_a_priori_theorem_is_inverted_correctly() -> None:
    """Steps and gap are each other's inverse, and the probability formula holds at the solution."""
    for dimension, gap, delta in [(1000, 0.01, 1e-9), (10**6, 0.002, 1e-6)]:
        k = math.ceil((math.log(1.648 * math.sqrt(dimension) / delta) / math.sqrt(gap) + 1.0) / 2.0)
        assert lanczos_relative_gap(dimension, k, delta) <= gap < lanczos_relative_gap(dimension, k - 1, delta)
    e = lanczos_relative_gap(500, 60, 1e-4)
    assert 1.648 * math.sqrt(500) * math.exp(-math.sqrt(e) * 119) == pytest.approx(1e-4, rel=1e-9)
    with pytest.raises(ValueError, match="delta"):
        lanczos_relative_gap(500, 60, 0.0)


@pytest.mark.parametrize("seed", range(30))
def test_the_a_priori_theorem_fails_only_where_the_start_misses_the_top_vector(seed: int) -> None:
    """Its proof: with e the error of the Ritz value, <v_1, q>^2 cosh^2((2k-1) artanh sqrt(e)) <= 1, always."""
    generator = torch.Generator().manual_seed(seed)
    for weight in (1.0, 1e-2, 1e-5):
        spread = torch.rand(60, generator=generator, dtype=torch.float64) ** 3
        eigenvalues = hard_spectrum()[::7].square() if seed % 2 else torch.cat([0.9 * spread, torch.ones(1).double()])
        start = torch.randn(len(eigenvalues), generator=generator, dtype=torch.float64)
        start[eigenvalues.argmax()] *= weight
        start /= torch.linalg.vector_norm(start)
        for k in (1, 2, 4, 8):
            run = lanczos_norm(diagonal_map(eigenvalues.sqrt()), tolerance=0.0, max_steps=k, start=start)
            error = 1.0 - run.ritz**2 / float(eigenvalues.max())
            if error > 1e-12:
                missed = float(start[eigenvalues.argmax()]) ** 2
                assert missed * math.cosh((2 * k - 1) * math.atanh(math.sqrt(error))) ** 2 <= 1.0 + 1e-9


def test_tolerance_is_reached_and_the_krylov_certificate_beats_the_theorem() -> None:
    """On a spectrum with a gap the a-posteriori bound reaches 0.1 % long before the a-priori one."""
    singular = torch.cat([torch.linspace(0, 0.9, 5000), torch.ones(1)])
    run = lanczos_norm(diagonal_map(singular), tolerance=1e-3, delta=1e-9)
    assert run.probable / run.lower - 1 <= 1e-3
    assert run.probable >= 1.0
    assert lanczos_relative_gap(5001, 3 * run.steps, 1e-9) > 2e-3


def test_invariant_subspaces_stop_the_run() -> None:
    """A map with two distinct singular values is exhausted after two steps, the zero map after one.

    What rounding could hide behind the last coupling stays in the bound: it is near the norm, not at it.
    """
    two = lanczos_norm(diagonal_map(torch.tensor([2.0] * 30 + [1.0] * 30)), delta=1e-9)
    assert two.exhausted
    assert two.steps == 2
    assert 2.0 <= two.probable <= 2.0 * (1 + 1e-3)
    zero = lanczos_norm(diagonal_map(torch.zeros(10)), delta=1e-9)
    assert (zero.lower, zero.probable, zero.exhausted) == (0.0, 0.0, True)


@pytest.mark.parametrize("reorthogonalise", [True, False])
def test_small_spaces_are_exhausted_exactly(reorthogonalise: bool) -> None:
    """As many steps as dimensions with orthogonality lost would prove nothing: small runs keep it whatever is asked."""
    for seed in range(10):
        A = torch.randn(35, 35, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
        truth = float(torch.linalg.matrix_norm(A, 2))
        run = lanczos_norm(
            LinearMap.from_matrix(A), tolerance=1e-14, delta=1e-9, seed=seed, reorthogonalise=reorthogonalise
        )
        assert run.probable >= truth * (1 - 1e-13)
        assert run.lower <= truth * (1 + 1e-13)


def test_lost_orthogonality_is_paid_for() -> None:
    """In a large space without reorthogonalisation the run agrees with the orthogonal one, and both bound the norm."""
    singular = torch.cat([torch.linspace(0, 0.98, 5000), torch.tensor([0.99, 1.0])])
    kept, lost = (
        lanczos_norm(diagonal_map(singular), tolerance=0.0, delta=1e-9, max_steps=200, reorthogonalise=keep)
        for keep in (True, False)
    )
    # The largest value has long converged: without orthogonality copies of it appear, and the run goes on.
    assert lost.steps > kept.steps
    for run in (kept, lost):
        assert run.lower <= 1.0 <= run.probable <= 1.0 + 1e-6


def test_overlap_raises_the_bound() -> None:
    """A basis of norm two may put four times as much weight on the top vector: the bound grows accordingly."""
    diagonal, coupling = np.array([1.0, 1.2, 0.9]), np.array([0.4, 0.3, 0.5])
    tight = krylov_certificate(diagonal, coupling, 100, 1e-3)
    assert krylov_certificate(diagonal, coupling, 100, 1e-3, overlap=4.0) == pytest.approx(
        krylov_certificate(diagonal, coupling, 100, 0.5e-3), rel=1e-9
    )
    assert krylov_certificate(diagonal, coupling, 100, 1e-3, overlap=4.0) > tight


def test_float32_runs_in_large_spaces_do_not_stop_early() -> None:
    """The breakdown test knows rounding, not dimension: a large space is no reason to think it exhausted."""
    singular = torch.cat([torch.linspace(0, 0.98, 200_000), torch.ones(1)])
    wide = singular.to(torch.float32)
    A = LinearMap(lambda x: wide * x, lambda y: wide * y, (200_001,), (200_001,), dtype=torch.float32)
    run = lanczos_norm(A, tolerance=1e-3, max_steps=60, reorthogonalise=False)
    assert not run.exhausted
    assert run.ritz == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("exponent", [-900, -530, -400, -150, 150, 300, 500, 900])
def test_powers_of_two_change_nothing(exponent: int) -> None:
    """Squares and fourth powers leave the float range long before the norm does: every digit stays, the scale aside."""
    A = torch.randn(30, 40, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    factor = 2.0**exponent
    plain = lanczos_norm(LinearMap.from_matrix(A), delta=1e-9, max_steps=12)
    scaled = lanczos_norm(LinearMap.from_matrix(A * factor), delta=1e-9, max_steps=12)
    assert (scaled.lower, scaled.probable, scaled.ritz) == (
        plain.lower * factor,
        plain.probable * factor,
        plain.ritz * factor,
    )
    assert torch.equal(scaled.vector, plain.vector)
    aimed = lanczos_norm(LinearMap.from_matrix(A * factor), tolerance=0.0, target=0.9 * plain.lower * factor)
    assert aimed.steps == lanczos_norm(LinearMap.from_matrix(A), tolerance=0.0, target=0.9 * plain.lower).steps


def test_norms_at_the_ends_of_the_float_range() -> None:
    """Attained values are never infinite, and never above the norm where numbers lose their digits."""
    for dtype, exponent in ((torch.float32, 60), (torch.float32, -70), (torch.float64, 1021), (torch.float64, -1060)):
        d = torch.tensor([1.0, 0.5, 0.25], dtype=dtype) * 2.0**exponent
        run = lanczos_norm(LinearMap.from_matrix(torch.diag(d)), delta=1e-9)
        assert run.lower <= float(d[0])
        if dtype == torch.float64:
            assert run.probable >= float(d[0])
        if exponent > -1000:
            assert run.lower == pytest.approx(float(d[0]), rel=1e-5)


def test_start_and_target() -> None:
    """A good start needs few steps; a target stops the run; a chosen start proves nothing from above."""
    A = diagonal_map(hard_spectrum())
    start = torch.zeros(DIMENSION, dtype=torch.float64)
    start[-1] = 1.0
    assert lanczos_norm(A, start=start).lower == pytest.approx(1.0, abs=1e-11)
    assert lanczos_norm(A, tolerance=0.0, target=0.9).steps < lanczos_norm(A, tolerance=0.0, target=0.9999).steps
    with pytest.raises(ValueError, match="random start"):
        lanczos_norm(A, start=start, delta=0.1)


def test_attained_values_are_never_above_the_norm() -> None:
    """Even at the exact singular vector the rounding margin keeps the quotient below."""
    for n in (1, 10, 1000):
        A = LinearMap.from_matrix(torch.ones(n, n, dtype=torch.float64) / n)
        vector = torch.full((n,), 0.1, dtype=torch.float64)
        assert 1 - 1e-9 < attained_norm(A, vector) <= 1.0
    assert attained_norm(A, torch.zeros(1000, dtype=torch.float64)) == 0.0


def test_seeds_repeat_and_global_randomness_is_untouched() -> None:
    """The same seed gives the same bits; the global generator does not move."""
    state = torch.get_rng_state()
    A = diagonal_map(hard_spectrum())
    first, second = (lanczos_norm(A, delta=1e-6, max_steps=20, seed=3) for _ in range(2))
    assert first.lower == second.lower
    assert first.probable == second.probable
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("tall", [False, True])
def test_attained_and_probable_surround_the_dense_norm(tall: bool) -> None:
    """Convolution, pooling and a projection in one map."""
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(6, 3, 3, 3, generator=generator, dtype=torch.float64)
    matrix = torch.randn(500 if tall else 7, 6 * 16, generator=generator, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return matrix @ functional.avg_pool2d(functional.conv2d(x[None], kernel, padding=1), 2).flatten()

    A = LinearMap.from_function(function, (3, 8, 8))
    truth = float(
        torch.linalg.matrix_norm(torch.stack([A.apply(e.reshape(3, 8, 8)) for e in torch.eye(192).double()]), 2)
    )
    bounds = operator_norm(A, tolerance=1e-3)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth <= bounds.probable * (1 + 1e-12)
    assert bounds.probable_width <= 1e-3
    assert bounds.upper == math.inf


def test_large_maps_get_a_probable_bound_and_no_certificate() -> None:
    """The discrete gradient of a long signal has norm 2 cos(pi/(2n))."""
    n = 3_000
    A = LinearMap.from_function(lambda x: x[1:] - x[:-1], (n,))
    bounds = operator_norm(A, tolerance=2e-2)
    assert bounds.lower <= 2 * math.cos(math.pi / (2 * n)) <= bounds.probable
    assert bounds.upper == math.inf
    assert bounds.probable_width <= 2e-2
    assert bounds.delta == 1e-9


def test_zero_maps() -> None:
    """The zero map is found to be zero, with probability, and an empty one surely is."""
    zero = operator_norm(LinearMap.from_function(lambda x: 0 * x, (4000,)))
    assert (zero.lower, zero.probable, zero.upper) == (0.0, 0.0, math.inf)
    assert zero.delta > 0.0
    assert operator_norm(LinearMap.from_function(lambda x: x, (0,))).upper == 0.0


def test_subnormal_maps_are_enclosed() -> None:
    """No attained value is known of them, but a probable bound is."""
    bounds = operator_norm(diagonal_map(torch.full((50,), 1e-310, dtype=torch.float64)))
    assert bounds.lower <= 1e-310 <= bounds.probable <= 1.02e-310
    assert bounds.upper == math.inf
