"""Test whether a generalization bound fails more often than it claims, on many draws of every problem.

The bounds known by name are those of this package, some as printed in papers, and two that are false.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binomtest

from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.numbers import check_count, check_fraction
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.generalization.bench.problems import PROBLEMS, Draw, PartitionCells
from normscope.generalization.held_out import clopper_pearson, held_out_local_term
from normscope.generalization.margin_bounds import (
    ChainLayer,
    bartlett_bound,
    golowich_bound,
    neyshabur_bound,
    row_norm_bound,
)
from normscope.generalization.occam_bound import by_surrogate, occam
from normscope.generalization.pac_bayes import pac_bayes_bound, pac_bayes_kl, pac_bayes_lambda, pac_bayes_quadratic
from normscope.generalization.printed_bounds import than_phan_bound
from normscope.generalization.theorem_20 import g_paper, g_tight, g_total_variation
from normscope.generalization.vc import vc_gap

#: Probability that a valid bound is called broken, over all problems together.
LEVEL = 1e-3
#: Samples whose distances from unseen inputs are computed.
LOOKED = 500
#: A bound on the risk of the model of a draw; NaN where it does not apply.
Bound = Callable[[Draw, float], float]


@dataclass(frozen=True)
class NamedBound:
    """A bound with its name."""

    name: str  #: its name
    bound: Bound  #: the function that computes it
    randomized: bool = False  #: whether it bounds the risk of the randomized model of a draw


def _held_out(draw: Draw, delta: float) -> float:
    if not np.isin(draw.fresh, (0.0, 1.0)).all():
        return math.nan
    return clopper_pearson(int(draw.fresh.sum()), len(draw.fresh), delta).value


def _local(cells: PartitionCells) -> float:
    """Return ``sum_i (m_i/m) min(1, L_i D_i)`` over occupied cells: no loss in [0, 1] varies by more than one."""
    counts = cells.counts
    terms = np.minimum(1.0, cells.constants * np.where(cells.constants > 0, cells.diameters, 1.0))
    return float((counts * terms).sum() / counts.sum())


def _theorem_20(draw: Draw, delta: float) -> float:
    counts = draw.cells.counts
    tight = g_tight(1.0, int((counts > 0).sum()), len(counts), draw.samples, delta / 2).value
    variation = g_total_variation(1.0, len(counts), draw.samples, delta / 2).value
    return draw.train_error + _local(draw.cells) + min(tight, variation)


def _theorem_20_held_out(draw: Draw, delta: float) -> float:
    """With distances from unseen inputs, by a random part of the sample (the first: samples come in random order)."""
    counts = draw.cells.counts
    u, there = draw.unseen or (draw.inputs[:0], draw.cells.index[:0])
    some = draw.inputs[:LOOKED]
    here = draw.cells.index[:LOOKED]
    most = np.where(draw.cells.constants > 0, np.minimum(1.0, draw.cells.constants * draw.cells.diameters), 0.0)
    apart = np.linalg.norm(some[:, None, :] - u[None, :, :], axis=2)
    moves = np.minimum(draw.cells.constants[here][:, None] * apart, most[here][:, None])
    v, a, b, m, r = (torch.from_numpy(t) for t in (moves, here, there, counts, most))
    local = held_out_local_term(v, a, b, m, r, delta / 2).value
    return draw.train_error + local + g_total_variation(1.0, len(counts), draw.samples, delta / 2).value


def _printed(cells: PartitionCells, draw: Draw, delta: float) -> float:
    counts = cells.counts
    return (
        draw.train_error + _local(cells) + g_paper(1.0, int((counts > 0).sum()), len(counts), draw.samples, delta).value
    )


def _than_phan(draw: Draw, delta: float) -> float:
    return draw.train_error + than_phan_bound(draw.cells.counts.tolist(), delta / 5, 100.0, 4 * delta / 5).value


def _occam(draw: Draw, delta: float) -> float:
    if draw.bits == math.inf or not np.isin(draw.losses, (0.0, 1.0)).all():
        return math.nan
    return occam(int(draw.losses.sum()), draw.samples, draw.bits, delta).value


def _vc(draw: Draw, delta: float) -> float:
    if draw.dimension == math.inf:
        return math.nan
    return draw.train_error + vc_gap(draw.dimension, draw.samples, delta).value


def _margin(bound: Callable[..., Value], *, radius: bool = False) -> Bound:
    def of_draw(draw: Draw, delta: float) -> float:
        if draw.weights is None or (radius and draw.radius == math.inf):
            return math.nan
        layers = [ChainLayer.of(torch.tensor(np.stack([0 * draw.weights, draw.weights])))]
        size = draw.radius if radius else float(np.linalg.norm(draw.inputs))
        gammas = np.quantile(draw.margins[draw.margins > 0], (0.5, 0.9))
        return min(
            float((draw.margins <= g).mean()) + bound(layers, size, float(g), draw.samples, delta).value for g in gammas
        )

    return of_draw


def _pac_bayes(form: Callable[[float, float, int, float], Value]) -> Bound:
    def of_draw(draw: Draw, delta: float) -> float:
        if draw.posterior is None:
            return math.nan
        loss, divergence, _ = draw.posterior
        return form(loss, divergence, draw.samples, delta).value

    return of_draw


def _mcallester(loss: float, divergence: float, samples: int, delta: float) -> Value:
    return Value.of(loss, Kind.CERTIFIED) + pac_bayes_bound(divergence, samples, delta)


def _split(draw: Draw, delta: float) -> float:
    return math.nan if draw.split is None else pac_bayes_kl(*draw.split, delta).value


def _surrogate(draw: Draw, delta: float) -> float:
    if draw.surrogate is None:
        return math.nan
    errors, bits, apart, inputs = draw.surrogate
    return by_surrogate(occam(errors, draw.samples, bits, delta / 2), apart, inputs, delta / 2).value


_ALL = (
    NamedBound("held-out", _held_out),
    NamedBound("theorem-20", _theorem_20),
    NamedBound("theorem-20-held-out", _theorem_20_held_out),
    NamedBound("theorem-20-printed", lambda draw, delta: _printed(draw.cells, draw, delta)),
    NamedBound("theorem-20-data-partition", lambda draw, delta: _printed(draw.after, draw, delta)),
    NamedBound("than-phan", _than_phan),
    NamedBound("occam", _occam),
    NamedBound("surrogate", _surrogate),
    NamedBound("vc", _vc),
    NamedBound("golowich", _margin(golowich_bound)),
    NamedBound("row-norms", _margin(row_norm_bound)),
    NamedBound("bartlett", _margin(bartlett_bound)),
    NamedBound("neyshabur", _margin(neyshabur_bound, radius=True)),
    NamedBound("pac-bayes-mcallester", _pac_bayes(_mcallester), randomized=True),
    NamedBound("pac-bayes-kl", _pac_bayes(pac_bayes_kl), randomized=True),
    NamedBound("pac-bayes-quadratic", _pac_bayes(pac_bayes_quadratic), randomized=True),
    NamedBound("pac-bayes-lambda", _pac_bayes(pac_bayes_lambda), randomized=True),
    NamedBound("pac-bayes-split", _split, randomized=True),
)
#: Bounds by name.
KNOWN_BOUNDS = {c.name: c for c in _ALL}
#: Names of those known to be false.
KNOWN_FALSE = ("theorem-20-data-partition", "than-phan")


@dataclass(frozen=True)
class Trial:
    """A bound on one problem."""

    problem: str  #: its name
    draws: int  #: number of draws; 0 if the bound does not apply to such a model
    violations: int  #: draws in which the bound was below the true risk
    p_value: float  #: probability of at least this many violations if each happened with probability delta
    bound: float  #: its mean
    risk: float  #: the mean of the true risk
    broken: bool  #: whether the p-value is too small for a valid bound


@dataclass(frozen=True, repr=False)
class BenchResult(Saved, Shown):
    """A bound on all problems."""

    _kind = "bench"
    _derived = ("broken",)
    _layout = ("normscope.report.bounds", "bench_sections")
    _rows = "trials"

    name: str  #: of the bound
    delta: float  #: probability with which it may fail
    seed: int  #: of the draws
    trials: tuple[Trial, ...]  #: one for each problem

    @property
    def broken(self) -> bool:
        """Return whether the bound failed too often somewhere."""
        return any(t.broken for t in self.trials)


@statement("normscope", "Proposition GEN-19", holds="a valid bound is called broken with probability 1e-3")
def try_bound(
    bound: str | Bound,
    *,
    delta: float = 0.05,
    draws: int = 200,
    seed: int = 0,
    name: str = "",
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Test a bound on problems whose risk is known: compare its rate of violations with delta.

    Args:
        bound: a name of :data:`KNOWN_BOUNDS`, or a function of a :class:`Draw` and delta that returns an upper bound on
            ``draw.risk`` (NaN where it does not apply).
        delta: failure probability of the bound.
        draws: of each problem.
        seed: of the draws; the same seed gives the same result.
        name: of a function.
        progress: called with a line of text for each problem.

    Raises:
        InputError: if the bound is unknown, or does not return a number.

    >>> try_bound("held-out", draws=20).broken, try_bound("than-phan", draws=20).broken
    (False, True)
    """
    check_fraction(delta, "delta, a probability,")
    check_count(draws, "draws", least=1)
    if isinstance(bound, str):
        if bound not in KNOWN_BOUNDS:
            raise InputError(f"Unknown bound {bound!r}. Known bounds: {', '.join(KNOWN_BOUNDS)}; or FILE.py:function.")
        chosen = KNOWN_BOUNDS[bound]
    else:
        chosen = NamedBound(name or getattr(bound, "__name__", "bound"), bound)
    trials = []
    for number, problem in enumerate(PROBLEMS):
        if progress is not None:
            progress(f"trying {chosen.name}: {problem}")
        trials.append(_trial(chosen, problem, delta, draws, np.random.default_rng([seed, number])))
    return BenchResult(chosen.name, delta, seed, tuple(trials))


def _trial(chosen: NamedBound, problem: str, delta: float, draws: int, rng: np.random.Generator) -> Trial:
    bounds, risks = [], []
    for _ in range(draws):
        draw = PROBLEMS[problem](rng)
        value = chosen.bound(draw, delta)
        if not isinstance(value, int | float | np.floating):
            raise InputError(f"Expected {chosen.name} to return a number, got {type(value).__name__}.")
        if math.isnan(value):
            return Trial(problem, 0, 0, 1.0, math.nan, math.nan, broken=False)
        bounds.append(min(float(value), 1e308))
        risks.append(draw.posterior[2] if chosen.randomized and draw.posterior is not None else draw.risk)
    low = sum(b < r * (1 - 1e-12) for b, r in zip(bounds, risks, strict=True))
    p_value = float(binomtest(low, draws, delta, alternative="greater").pvalue)
    mean = float(np.mean(bounds))
    return Trial(problem, draws, low, p_value, mean, float(np.mean(risks)), broken=p_value < LEVEL / len(PROBLEMS))
