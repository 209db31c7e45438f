"""The first half of the slides: errors of a trained model, and bounds of others."""

import itertools
import math

import torch

from normscope.generalization.decomposition import Decomposition, decompose
from normscope.generalization.pac_bayes import pac_bayes_bound, pac_bayes_printed
from normscope.generalization.printed_bounds import weight_norm_rates
from normscope.generalization.vc import vc_bound, vc_bound_printed, vc_dimension_linear
from normscope.papers.claim import Claims, Outcome, Verdict, close, holds, refuted
from normscope.papers.measure import confirm, gaussian

CLAIMS = Claims("than2025slides")


def _errors(seed: int) -> Decomposition:
    """Return the errors of a trained model in a family of twelve, whose losses are drawn at random."""
    population, sample = gaussian(seed, 2, 12).abs()
    chosen = seed % 12
    return decompose(
        truth=0.0,
        best=float(population.min()),
        trained=float(population[chosen]),
        trained_on_data=float(sample[chosen]),
        minimizer_on_data=float(sample.min()),
        largest_deviation=float((population - sample).abs().max()),
    )


@CLAIMS.add("002-est", "Errors of a trained model", decompose)
def _estimation_error() -> Outcome:
    """|F(P, h_o) - F(P, h*)| <= |F(D, h_o) - F(D, h_o*)| + 2 sup_h |F(P, h) - F(D, h)|.

    Corrected: As stated: add and subtract, and F(D, h_o*) <= F(D, h*).
    """
    least = math.inf
    for seed in range(500):
        parts = _errors(seed)
        least = min(least, (parts.bound or 0.0) - abs(parts.estimation))
    return holds(least >= -1e-12, {"least right side minus left side, 500 cases": least}, "never below")


@CLAIMS.add("002-dec", "Errors of a trained model, note", decompose)
def _decomposition() -> Outcome:
    """The excess risk is the estimation error plus the approximation error."""
    errors = [abs(p.estimation + p.approximation - p.total) for p in map(_errors, range(100))]
    return holds(max(errors) < 1e-12, {"largest difference of both sides, 100 cases": max(errors)}, "an identity")


@CLAIMS.add("002-sum", "Errors of a trained model, in summary", decompose)
def _summary() -> Outcome:
    """The error is the optimization error plus the generalization error plus the approximation error.

    Corrected: A fourth part is missing, F(D, h_o*) - F(P, h*): it is what the factor 2 of 002-est pays for.
    """
    parts = _errors(3)
    missing = parts.slides_total - parts.total
    confirm("the missing part", -parts.selection, missing)
    measured = {"error": parts.total, "sum of the three parts": parts.slides_total, "missing part": parts.selection}
    return refuted(not close(missing, 0.0), measured, "the three parts do not add up to the error")


@CLAIMS.add("002-VC", "Generalization: VC dimension", vc_dimension_linear)
def _vc_dimension() -> Outcome:
    """Linear models in n dimensions have VC dimension n + 1; ReLU networks with W weights at least W log W.

    Corrected: The first holds. The second is of Bartlett et al. (2019), with the depth in it, and is not checked.
    """
    n = 4
    points = torch.cat([torch.zeros(1, n), torch.eye(n)]).double()
    lifted = torch.cat([points, torch.ones(n + 1, 1).double()], 1)
    shattered = 0
    for signs in itertools.product((-1.0, 1.0), repeat=n + 1):
        solution = torch.linalg.solve(lifted, torch.tensor(signs, dtype=torch.float64))
        shattered += int(bool((torch.sign(lifted @ solution) == torch.tensor(signs)).all()))
    more = torch.cat([lifted, gaussian(5, 1, n + 1).abs() + 0.1])
    dependent = int(torch.linalg.matrix_rank(more)) < len(more)
    dimension = vc_dimension_linear(n)
    measured = {"labelings of 5 points reached, of 32": shattered, "6 points are dependent": dependent}
    return holds(
        shattered == 2**dimension and dependent and dimension == n + 1, measured, "affine functions in four dimensions"
    )


@CLAIMS.add("002-VCb", "Generalization: VC dimension, the bound", vc_bound_printed, vc_bound)
def _vc_bound() -> Outcome:
    """The gap is at most sqrt((2/m) VC log(2em/VC) + (1/m) log(2/delta)); this is vacuous for networks with more
    weights than samples.

    Corrected: As stated, for the 0-1 loss and m >= VC: it is above the bound of Vapnik, which is taken from him.
    """
    cases = [(d, m, delta) for d in (1, 10, 100) for m in (100, 1000, 10**6) for delta in (0.001, 0.05, 0.5)]
    ratios = [vc_bound_printed(*case).value / vc_bound(*case).value for case in cases]
    vacuous = vc_bound_printed(50_000, 50_000, 0.05).value
    measured = {"least printed / cited, 27 cases": min(ratios), "VC = m = 50000": vacuous}
    return holds(min(ratios) >= 1 and vacuous > 1, measured, "never below the cited bound, and above 1 for VC = m")


@CLAIMS.add("002-PB", "PAC-Bayes", pac_bayes_printed, pac_bayes_bound)
def _pac_bayes() -> Outcome:
    """The mean gap over a posterior is at most sqrt((KL + log(m/delta))/(2m - 1)) (McAllester).

    Corrected: As stated, for a prior chosen before the data: above the bound of Maurer for m >= 8, taken from him.
    """
    cases = [(kl, m, delta) for kl in (0.0, 10.0, 1e4) for m in (8, 1000, 10**6) for delta in (0.001, 0.5)]
    ratios = [pac_bayes_printed(*case).value / pac_bayes_bound(*case).value for case in cases]
    return holds(min(ratios) >= 1, {"least printed / cited, 18 cases": min(ratios)}, "never below the cited bound")


def _cited(what: str) -> Outcome:
    return Outcome(Verdict.NOT_CHECKABLE, {}, f"a statement about other papers: {what}")


@CLAIMS.add("002-norm", "Generalization: weight norm", weight_norm_rates)
def _weight_norms() -> Outcome:
    """Bartlett et al. bound the gap by prod ||W_k||_2 / sqrt(m).

    Corrected: Incomplete: the margin and (sum (||W_k||_{2,1}/||W_k||)^(2/3))^(3/2) are missing.
    """
    return _cited("Bartlett et al. 2017, Neyshabur et al. 2018, Golowich et al. 2020")


@CLAIMS.add("002-tab", "PAC-Bayes, table")
def _table() -> Outcome:
    """Non-vacuous bounds of several papers for MNIST, CIFAR-10 and ImageNet."""
    return _cited("Dziugaite and Roy, Zhou et al., Lotfi et al., Biggs and Guedj")


@CLAIMS.add("002-app", "Approximation and optimization errors")
def _approximation() -> Outcome:
    """Universal approximation, and global minima found by gradient descent for wide networks."""
    return _cited("Cybenko, Hornik, Zhou, Lin and Jegelka, Poggio et al., Du et al., Allen-Zhu et al., Nguyen")
