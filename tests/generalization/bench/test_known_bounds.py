"""Known bounds: the value of each on a draw that is known by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from normscope.generalization import clopper_pearson, g_paper, occam, than_phan_bound
from normscope.generalization.bench.problems import PROBLEMS
from normscope.generalization.bench.run import KNOWN_BOUNDS, KNOWN_FALSE


def test_bounds_of_a_draw() -> None:
    """From their formulas; what says nothing about a model says so."""
    draw = PROBLEMS["random labels"](np.random.default_rng(0))
    found = {name: c.bound(draw, 0.05) for name, c in KNOWN_BOUNDS.items()}
    assert found["held-out"] == clopper_pearson(int(draw.fresh.sum()), 1000, 0.05).value
    assert found["occam"] == occam(int(draw.losses.sum()), 20_000, 10, 0.05).value
    assert found["theorem-20-printed"] == pytest.approx(draw.train_error + g_paper(1.0, 20, 20, 20_000, 0.05).value)
    assert found["theorem-20"] < found["theorem-20-printed"]
    counts = draw.cells.counts.tolist()
    assert found["than-phan"] == pytest.approx(draw.train_error + than_phan_bound(counts, 0.01, 100.0, 0.04).value)
    assert all(math.isnan(found[name]) for name in ("golowich", "bartlett", "row-norms", "pac-bayes-kl"))


def test_the_false_ones() -> None:
    """Are below a risk of one where they are tried on what breaks them."""
    draw = PROBLEMS["partition after the data"](np.random.default_rng(0))
    assert all(KNOWN_BOUNDS[name].bound(draw, 0.05) < draw.risk for name in KNOWN_FALSE)


def test_held_out_distances() -> None:
    """Smaller than diameters give where there are unseen inputs, never more than those with their part of delta."""
    draw = PROBLEMS["oscillation"](np.random.default_rng(0))
    held, plain = (KNOWN_BOUNDS[name].bound(draw, 0.05) for name in ("theorem-20-held-out", "theorem-20"))
    assert draw.risk < held < plain
    assert held - draw.train_error < 0.5 * (plain - draw.train_error)
    memorizer = PROBLEMS["memorizer"](np.random.default_rng(0))
    assert KNOWN_BOUNDS["theorem-20-held-out"].bound(memorizer, 0.05) > memorizer.risk


def test_models_with_more_to_say() -> None:
    """A radius, a surrogate and a prior from half of the sample: above the risk, by their formulas."""
    disc, neighbour, thresholds = (
        PROBLEMS[name](np.random.default_rng(0)) for name in ("disc", "nearest neighbour", "thresholds")
    )
    assert np.linalg.norm(disc.inputs, axis=1).max() <= disc.radius
    assert KNOWN_BOUNDS["neyshabur"].bound(disc, 0.05) > KNOWN_BOUNDS["bartlett"].bound(disc, 0.05) * 1e-3 > 0
    assert math.isnan(KNOWN_BOUNDS["neyshabur"].bound(PROBLEMS["Gaussian mixture"](np.random.default_rng(0)), 0.05))
    assert neighbour.surrogate is not None
    errors, bits, apart, inputs = neighbour.surrogate
    parts = occam(errors, 20_000, bits, 0.025).value + clopper_pearson(apart, inputs, 0.025).value
    assert KNOWN_BOUNDS["surrogate"].bound(neighbour, 0.05) == pytest.approx(parts)
    assert neighbour.risk < parts
    assert thresholds.split is not None
    assert thresholds.posterior is not None
    assert thresholds.split[1] < thresholds.posterior[1]  # a prior that has seen half of the sample is closer
    assert thresholds.posterior[2] < KNOWN_BOUNDS["pac-bayes-split"].bound(thresholds, 0.05)
