"""Ellipsoids of remainders: no (x, w) of the set lies outside, tuned or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from networks import points
from normscope.lipschitz.local.ellipsoid import Ellipsoid, padded_columns


def _grown(
    seed: int, blocks: tuple[int, ...] = (3, 2), error: float = 0.0
) -> tuple[Ellipsoid, list[tuple[Tensor, Tensor, Tensor]]]:
    body, made = Ellipsoid(4), []
    for k, size in enumerate(blocks):
        raw = points(size, 4 + len(body), seed=seed + k)
        generator = torch.Generator().manual_seed(seed + k)
        centre = torch.rand(size, generator=generator, dtype=torch.float64) - 0.5
        radius = torch.rand(size, generator=generator, dtype=torch.float64) / 3 + 0.01
        body.grow(raw, centre, radius, error)
        made.append((raw, centre, radius))
    return body, made


def _sample(made: list[tuple[Tensor, Tensor, Tensor]], seed: int) -> Tensor:
    """Return one (x, e) of the set: the input on the sphere, remainders at random places of their sectors."""
    x = points(4, seed=seed)
    v = x / x.norm()
    generator = torch.Generator().manual_seed(seed)
    for raw, centre, radius in made:
        q = raw @ v
        signs = torch.randint(0, 2, (len(q),), generator=generator) * 2.0 - 1.0
        v = torch.cat([v, (centre + signs * radius) * q])
    return v


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rounds", [0, 6])
def test_no_sample_leaves_its_range(seed: int, rounds: int) -> None:
    body, made = _grown(10 * seed)
    raw = points(7, 9, seed=seed)
    radii = body.tuned(body.centred(raw), rounds)
    samples = torch.stack([_sample(made, s) for s in range(400)])
    reached = (samples @ raw.T).abs().amax(0)
    assert bool((reached <= radii).all())
    assert bool((radii <= 6 * reached).all())


def test_tuning_only_helps() -> None:
    body, _ = _grown(3)
    rows = body.centred(points(7, 9, seed=5))
    assert bool((body.tuned(rows, 6) <= body.radii(rows) * (1 + 1e-9)).all())


@pytest.mark.parametrize("seed", range(6))
def test_remainders_alone_stay_in_their_range(seed: int) -> None:
    """Rows that are zero along the input have the ranges that all rows have, by way of the Gram matrix."""
    body, made = _grown(10 * seed, blocks=(3, 2, 4))
    over = points(7, 9, seed=seed)
    found, raw = body.reached(over), torch.cat([torch.zeros(7, 4, dtype=torch.float64), over], 1)
    samples = torch.stack([_sample(made, s) for s in range(400)])
    assert bool(((samples @ raw.T).abs().amax(0) <= found).all())
    expected = body.radii(body.centred(raw))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)


def test_units_whose_rows_were_asked_for_are_added_as_if_they_were_not() -> None:
    raw, middle, half = points(3, 9, seed=4), points(3, seed=5) / 9, torch.full((3,), 0.2, dtype=torch.float64)
    bodies = [_grown(2)[0] for _ in range(2)]
    chosen = torch.tensor([True, False, True])
    given = bodies[0].centred(raw).kept(chosen)
    bodies[0].tuned(bodies[0].centred(raw), 0)
    for body, known in zip(bodies, (given, None), strict=True):
        body.grow(raw[chosen], middle[chosen], half[chosen], 0.0, known)
    for name in ("rows", "gram", "factor", "t"):
        torch.testing.assert_close(getattr(bodies[0], name), getattr(bodies[1], name), rtol=1e-12, atol=1e-14)


def test_without_units_it_is_the_norm_of_the_row() -> None:
    rows, body = points(5, 4), Ellipsoid(4)
    radii = body.radii(body.centred(rows))
    torch.testing.assert_close(radii, rows.norm(dim=1), rtol=1e-6, atol=0.0)
    assert bool((radii >= rows.norm(dim=1)).all())


def test_an_error_of_the_rows_widens_the_ranges_and_uses_up_the_room() -> None:
    body, _ = _grown(1)
    rows = body.centred(points(2, 9))
    assert bool((body.radii(replace(rows, error=1e-3)) > body.radii(rows) + 1e-3).all())
    assert body.room_needed() < 1e-3
    assert _grown(1, error=1.0)[0].room_needed() > 1.0


def test_rows_are_filled_with_zeros() -> None:
    assert padded_columns(torch.ones(2, 3), 5).sum() == 6.0
