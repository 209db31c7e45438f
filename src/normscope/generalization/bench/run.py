"""Test a bound on every problem many times, and whether it fails more often than it claims."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.numbers import check_count, check_fraction
from normscope.core.statement import statement
from normscope.generalization.bench.contestants import CONTESTANTS, Bound, Contestant
from normscope.generalization.bench.problems import PROBLEMS

#: Probability with which a bound that keeps its promise is called broken, over all problems together.
LEVEL = 1e-3


@dataclass(frozen=True)
class Trial:
    """A bound on one problem."""

    problem: str  #: its name
    draws: int  #: how often it was tried; none if the bound says nothing about such a model
    violations: int  #: draws in which it was below the true risk
    p_value: float  #: probability of so many violations or more if each happened with probability delta
    bound: float  #: its mean
    risk: float  #: the mean of the true risk
    broken: bool  #: whether that is too unlikely


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
        bound: a name of :data:`CONTESTANTS`, or a function of a :class:`Draw` and delta that returns an upper bound on
            ``draw.risk`` (NaN where it says nothing).
        delta: failure probability of the bound.
        draws: of each problem.
        seed: of the draws; the same seed gives the same result.
        name: of a function.
        progress: called with a line of text for each problem.

    Raises:
        InputError: if the bound is unknown, or returns something that is no number.

    >>> try_bound("held-out", draws=20).broken, try_bound("than-phan", draws=20).broken
    (False, True)
    """
    check_fraction(delta, "delta, a probability,")
    check_count(draws, "draws", least=1)
    if isinstance(bound, str):
        if bound not in CONTESTANTS:
            raise InputError(f"Unknown bound {bound!r}. Known bounds: {', '.join(CONTESTANTS)}; or FILE.py:function.")
        contestant = CONTESTANTS[bound]
    else:
        contestant = Contestant(name or getattr(bound, "__name__", "bound"), bound)
    trials = []
    for number, problem in enumerate(PROBLEMS):
        if progress is not None:
            progress(f"trying {contestant.name}: {problem}")
        trials.append(_trial(contestant, problem, delta, draws, np.random.default_rng([seed, number])))
    return BenchResult(contestant.name, delta, seed, tuple(trials))


def _trial(contestant: Contestant, problem: str, delta: float, draws: int, rng: np.random.Generator) -> Trial:
    """Try a bound on one problem."""
    bounds, risks = [], []
    for _ in range(draws):
        draw = PROBLEMS[problem](rng)
        value = contestant.bound(draw, delta)
        if not isinstance(value, int | float | np.floating):
            raise InputError(f"Expected {contestant.name} to return a number, got {type(value).__name__}.")
        if math.isnan(value):
            return Trial(problem, 0, 0, 1.0, math.nan, math.nan, broken=False)
        bounds.append(min(float(value), 1e308))
        risks.append(draw.posterior[2] if contestant.randomized and draw.posterior is not None else draw.risk)
    low = sum(b < r * (1 - 1e-12) for b, r in zip(bounds, risks, strict=True))
    p_value = float(binomtest(low, draws, delta, alternative="greater").pvalue)
    mean = float(np.mean(bounds))
    return Trial(problem, draws, low, p_value, mean, float(np.mean(risks)), broken=p_value < LEVEL / len(PROBLEMS))
