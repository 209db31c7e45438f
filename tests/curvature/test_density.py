"""The density of eigenvalues against a dense spectrum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from curved import classifier, labelled
from normscope.curvature.density import Density, spectral_density
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.linalg.thick_restart import Eigenpairs, eigenpairs


def test_known_zeros_and_pairs_bring_it_nearer_to_the_truth() -> None:
    with Problem(classifier(eps=1e-30), labelled(), dtype=torch.float64) as problem:
        products = Products(problem, "ggn")
        truth = torch.linalg.eigvalsh(products.dense()).numpy()
        start = problem.point()
        known = Directions(start, row_groups(problem, ["0.weight", "3.weight"]))
        pairs = eigenpairs(products, torch.ones_like(start), largest=4, tolerance=1e-8)
        used = pairs.products + 4 * 10
        better = spectral_density(products, start, steps=10, probes=4, directions=known, pairs=pairs)
        plain = spectral_density(products, start, steps=used // 4, probes=4)
    assert better.zeros == 13
    assert better.share(-1e-15, 1e-15)[0] >= 13 / problem.dimension
    assert better.distance(truth) < 0.5 * plain.distance(truth)
    places, masses = better.atoms()
    assert masses.sum() == pytest.approx(1.0)
    assert float(places @ masses) == pytest.approx(float(truth.mean()), rel=0.05)


def test_shares_and_quantiles_of_a_known_spectrum() -> None:
    d = torch.cat([-torch.ones(20), torch.zeros(30), torch.full((50,), 2.0)]).double()
    found = spectral_density(lambda v: d * v, d, steps=8, probes=40)
    share, error = found.share(-2.0, -0.5)
    assert abs(share - 0.2) < 4 * error + 1e-9
    assert found.quantile(0.1) == pytest.approx(-1.0)
    assert found.quantile(0.9) == pytest.approx(2.0)
    assert found.atoms()[1].sum() == pytest.approx(1.0)


def test_the_basis_of_a_search_is_used_up_to_what_it_knows() -> None:
    """Beside the converged pairs those that are near: the same products give less than half of the distance."""
    generator = torch.Generator().manual_seed(0)
    places = torch.cat([torch.zeros(300), torch.logspace(-4, 1, 200)]).double()
    start = torch.randn(500, generator=generator, dtype=torch.float64)
    pairs = eigenpairs(lambda v: places * v, start, largest=3, tolerance=1e-8, keep_basis=True)

    def runs(given: Eigenpairs) -> list[Density]:
        return [
            spectral_density(lambda v: places * v, start, steps=20, probes=3, pairs=given, seed=seed)
            for seed in range(9)
        ]

    def distance(found: list[Density]) -> float:
        return float(np.median([each.distance(places.numpy()) for each in found]))

    near, converged = runs(pairs), runs(replace(pairs, basis=None, matrix=None))
    assert len(converged[0].pairs) == 3
    assert len(near[0].pairs) > 10
    gaps = np.abs(near[0].pairs[:, None] - places.numpy()).min(1)
    assert bool((gaps <= 0.1 * np.abs(near[0].pairs)).all())
    assert distance(near) < 0.5 * distance(converged)
    assert near[0].atoms()[1].sum() == pytest.approx(1.0)
