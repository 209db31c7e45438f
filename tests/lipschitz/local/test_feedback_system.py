"""Systems closed by uncertain slopes: never below a sampled gain, and attained where one unit decides."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from networks import points, spectral_norm
from normscope.lipschitz.local import feedback_system
from normscope.lipschitz.local.feedback_system import FeedbackSystem, first_multipliers, gain, proved, search


def _system(
    seed: int, outputs: int = 3, inputs: int = 4, blocks: tuple[int, ...] = (2, 3), scale: float = 0.6
) -> FeedbackSystem:
    m = sum(blocks)
    ends = [0, *itertools.accumulate(blocks)]
    pairs = tuple(itertools.pairwise(ends))
    N = scale * points(m, m, seed=seed)
    for i, j in pairs:
        N[i:j, i:] = 0.0
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(m, generator=generator, dtype=torch.float64) - 0.5
    radius = torch.rand(m, generator=generator, dtype=torch.float64) / 2 + 0.05
    rest = (N, centre, radius, pairs)
    return FeedbackSystem(
        points(outputs, inputs, seed=seed + 1),
        points(outputs, m, seed=seed + 2),
        points(m, inputs, seed=seed + 3),
        *rest,
    )


def _closed(f: FeedbackSystem, slopes: Tensor) -> float:
    """Return the gain for fixed slopes, by a dense solve."""
    inner = torch.linalg.solve(torch.eye(len(slopes), dtype=torch.float64) - f.N * slopes, f.B)
    return spectral_norm(f.A + (f.G * slopes) @ inner)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("outputs", "inputs"), [(3, 4), (6, 2)])
def test_no_choice_of_slopes_exceeds_the_bound(seed: int, outputs: int, inputs: int) -> None:
    f = _system(seed, outputs, inputs)
    bound = gain(f).value
    corners = [f.centre + f.radius * torch.tensor(s) for s in itertools.product((-1.0, 1.0), repeat=5)]
    attained = max(_closed(f, s.to(torch.float64)) for s in corners)
    assert attained <= bound < 2 * attained


def test_one_unit_is_attained() -> None:
    f = _system(0, blocks=(1,))
    attained = max(_closed(f, f.centre + sign * f.radius) for sign in (-1, 1))
    assert attained <= gain(f, steps=400).value <= attained * 1.05


def test_without_units_it_is_the_norm_of_the_matrix() -> None:
    f = _system(0, blocks=())
    norm = spectral_norm(f.A)
    assert norm <= gain(f).value <= norm * (1 + 1e-7)


def test_a_matrix_of_zeros_has_gain_about_zero() -> None:
    f = _system(0, blocks=())
    zero = FeedbackSystem(0 * f.A, f.G, f.B, f.N, f.centre, f.radius, f.blocks, error=1e-12)
    assert 1e-12 <= gain(zero).value < 1e-10


def test_an_error_of_the_matrices_is_part_of_the_bound() -> None:
    f = _system(0)
    wrong = FeedbackSystem(f.A, f.G, f.B, f.N, f.centre, f.radius, f.blocks, error=1e-3)
    assert gain(wrong).value >= gain(f).value + 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_errors_of_blocks_count_where_they_are_made(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No system within the errors of its rows exceeds the bound, and precise rows make it smaller."""
    errors = (1e-4, 1e-12, 3e-3)
    plain = _system(seed)
    f = replace(plain, error=math.hypot(*errors), row_errors=errors)
    found, coarse = gain(f).value, gain(replace(f, row_errors=())).value
    assert gain(plain).value < found < coarse
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=5)), dtype=torch.float64)
    for k in range(20):
        moved = [points(3, 9, seed=k), points(2, 9, seed=k + 50), points(3, 9, seed=k + 99)]
        moved[1][:, 4:], moved[2][:, 6:] = 0.0, 0.0  # a block reads the units before it alone
        E = torch.cat([e * m / m.norm() for e, m in zip(errors, moved, strict=True)])
        other = replace(f, A=f.A + E[:3, :4], G=f.G + E[:3, 4:], B=f.B + E[3:, :4], N=f.N + E[3:, 4:])
        assert max(_closed(other, f.centre + s * f.radius) for s in signs) <= found


def test_a_bound_is_proved_close_to_where_the_proof_fails() -> None:
    f = _system(0)
    f = replace(f, error=3e-3)
    T, level = search(f, 40)
    value = proved(f, T, level)
    assert feedback_system._holds(f, T, value)
    assert not feedback_system._holds(f, T, value * (1 - 2 * feedback_system.FINE))


def test_solutions_in_single_precision_are_those_in_double() -> None:
    triangle, columns = torch.eye(7).double() + points(7, 7).tril(-1), points(7, 5, seed=1)
    found = feedback_system._solved(triangle.float(), columns.float().T.contiguous().T)
    torch.testing.assert_close(found.double(), feedback_system._solved(triangle, columns), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(triangle @ feedback_system._solved(triangle, columns), columns)


def test_small_systems_are_refined_and_never_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = [_system(seed, blocks=(4, 5, 6)) for seed in range(4)]
    found = [search(f, 10) for f in systems]
    monkeypatch.setattr(feedback_system, "REFINED", ())
    plain = [search(f, 10) for f in systems]
    pairs = [(a[1], b[1]) for a, b in zip(found, plain, strict=True)]
    assert all(a <= b for a, b in pairs)
    assert any(a < b * (1 - 1e-3) for a, b in pairs)


def test_first_multipliers_are_feasible_and_multipliers_too_small_prove_nothing() -> None:
    f = _system(1)
    T = first_multipliers(f)
    assert search(f, 1) is not None
    assert math.isinf(proved(f, 1e-9 * T, 1.0))


def test_the_transposed_system_has_the_same_gain() -> None:
    f = _system(2)
    slopes = f.centre + 0.3 * f.radius
    back = f.transposed()
    assert _closed(back, slopes.flip(0)) == pytest.approx(_closed(f, slopes), rel=1e-12)


def test_a_search_in_single_precision_proves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    system = _system(0)
    plain = gain(system).value
    monkeypatch.setattr(feedback_system, "SINGLE_FROM", 1)
    assert gain(system).value == pytest.approx(plain, rel=1e-3)
    monkeypatch.setattr(feedback_system, "SINGLE_SLACK", -0.5)  # half of it cannot be proved: it is computed in double
    assert gain(system).value == pytest.approx(plain, rel=1e-3)
    confirmed, results = (
        feedback_system._confirmed,
        iter([feedback_system.GainBound(math.inf)]),
    )  # what was found first bounds nothing: again
    monkeypatch.setattr(feedback_system, "_confirmed", lambda *given: next(results, confirmed(*given)))
    assert gain(system).value == plain
