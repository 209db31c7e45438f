"""Section 4.1 and Appendix C: networks without normalizers, as functions of their input."""

import itertools
import math

import torch

from normscope.lipschitz.theorem_9 import lemma_5
from normscope.operators.scalar.activations import slope
from normscope.papers.chains import certified, chain, padded_identity
from normscope.papers.claim import Claims, Measured, Outcome, Verdict, close, given, holds, refuted
from normscope.papers.measure import confirm, gaussian, jacobian_norm, norm, numbers, quotient
from normscope.papers.than2025.extremal.theorem_6_networks import remark_7, theorem_6

CLAIMS = Claims("than2025")
WIDTHS, FACTORS = (5, 3, 7, 2, 4), (2.0, 0.5, 3.0, 1.5)


def _product(norms: list[float]) -> float:
    """Return the printed product of spectral norms."""
    return lemma_5(certified(norms)).value


@CLAIMS.add("001-D4", "Definition 4", slope)
def _listed_activations() -> Outcome:
    """ReLU, leaky ReLU, tanh, sigmoid and softmax are 1-Lipschitz.

    Corrected: As stated; sigmoid has 1/4 and softmax 1/2.
    """
    measured: Measured = {f"slope of {name}": slope(name) for name in ("relu", "leaky_relu", "tanh", "sigmoid")}
    attained = jacobian_norm(lambda x: torch.softmax(x, 0), numbers(0, 0, -700))
    measured["softmax, attained by two equal classes"] = attained
    return holds(all(float(x) <= 1 for x in measured.values()), measured, "largest slopes")


@CLAIMS.add("001-D4x", "Definition 4, Appendix E", slope)
def _steep_activations() -> Outcome:
    """The theory is illustrated by EfficientNet-B3, so its activations are taken to be 1-Lipschitz.

    Corrected: EfficientNet uses SiLU (1.0998) and products with squeeze-and-excite gates, which are not globally
    Lipschitz. Every factor ||W_k|| needs the factor Lip(g_k) beside it; GELU, Mish, SELU and Hardswish exceed 1 too.
    """
    names = ("silu", "gelu", "mish", "selu", "hardswish")
    measured: Measured = {f"slope of {name}": slope(name) for name in names}
    measured["slope of gelu, tanh form"] = slope("gelu", {"approximate": "tanh"})
    x = torch.linspace(-6, 6, 200_001, dtype=torch.float64)
    with torch.enable_grad():
        point = x.requires_grad_()
        (grads,) = torch.autograd.grad(torch.nn.functional.silu(point).sum(), point)
    attained = float(grads.max())
    confirm("the slope of SiLU", slope("silu"), attained, 1e-8)
    measured["SiLU, attained"] = attained
    return refuted(attained > 1, measured, "the slope of the paper's own example exceeds 1")


@CLAIMS.add("001-L5", "Lemma 5", lemma_5)
def _lemma_5() -> Outcome:
    """A network without normalizers is Lipschitz with the product of the spectral norms of its weights.

    Corrected: With Lip(g_k) beside each ||W_k||; the printed product runs over k, its weights are W_k. Biases do not
    matter. Tight on the family (Theorem 6).
    """
    ratios = []
    for seed in range(20):
        weights = [gaussian(100 * seed + k, m, n) for k, (n, m) in enumerate(itertools.pairwise(WIDTHS))]
        network = chain(weights)
        attained = max(jacobian_norm(network, x) for x in gaussian(seed, 5, WIDTHS[0]))
        ratios.append(attained / _product([norm(w) for w in weights]))
    extreme = theorem_6(WIDTHS, FACTORS)
    tight = jacobian_norm(extreme.module, extreme.point)
    printed = _product([norm(w) for w in extreme.module.parameters()])
    measured = {"largest attained / printed, 20 networks": max(ratios), "attained / printed, a_k I_k": tight / printed}
    return holds(max(ratios) <= 1 and close(tight, printed), measured, "never exceeded, and attained")


@CLAIMS.add("001-T6", "Theorem 6", theorem_6, lemma_5)
def _theorem_6() -> Outcome:
    """For all a_k <= s_k there is a ReLU network in the family whose constant is the product of the a_k.

    Corrected: As stated, for all widths >= 1: W_k = a_k I_k. The networks with a constant above any c below the largest
    are an open set: of positive measure, not only uncountably many.
    """
    extreme, target = theorem_6(WIDTHS, FACTORS), math.prod(FACTORS)
    weights = [w.detach() for w in extreme.module.parameters()]
    attained = jacobian_norm(extreme.module, extreme.point)
    confirm("the constant of the construction", extreme.constant.value, attained)
    points = gaussian(6, 300, WIDTHS[0])
    pairs = max(quotient(extreme.module, a, b) for a, b in itertools.pairwise(points))
    upper = _product([norm(w) for w in weights])
    moved = [w + 0.01 * gaussian(60 + k, *w.shape) for k, w in enumerate(weights)]
    nearby = jacobian_norm(chain(moved), torch.ones(WIDTHS[0], dtype=torch.float64))
    measured = {
        "product of the a_k": target,
        "attained": attained,
        "largest quotient of 299 pairs": pairs,
        "upper bound": upper,
        "attained by weights nearby": nearby,
    }
    exact = close(attained, target) and close(upper, target) and pairs <= target * (1 + 1e-12)
    return holds(exact, measured, "attained and never exceeded")


@CLAIMS.add("001-R7", "Remark 7, large and small", remark_7, lemma_5)
def _exponential() -> Outcome:
    """If all s_k > 1 (or all a_k < 1), constants grow (or decay) exponentially with depth.

    Corrected: Needs s_k >= 1 + c (or a_k <= 1 - c) for one c > 0. Different (a_k) with equal products give the same
    function, ReLU being positively homogeneous: uncountably many weights are not uncountably many functions.
    """
    slow = [1 + 2.0**-k for k in range(1, 60)]
    bounded, half = _product(slow), _product(slow[:30])
    constant = _product([1.1] * 59)
    small = _product([0.9] * 59)
    x = gaussian(7, 5)
    one = padded_identity(5, 5)
    same = float((chain([4 * one, 0.5 * one])(x) - chain([one, 2 * one])(x)).abs().max())
    measured = {
        "product, s_k = 1 + 2^-k, 30 layers": half,
        "product, s_k = 1 + 2^-k, 59 layers": bounded,
        "product, s_k = 1.1, 59 layers": constant,
        "product, a_k = 0.9, 59 layers": small,
        "difference of two networks of equal product": same,
    }
    rates = remark_7(slow), remark_7([1.1] * 59)
    stays = close(half, bounded, 1e-8) and rates[0][0] < 1e-9 < rates[1][0]
    return given(stays and constant > 100 and small < 0.01, measured, "s_k > 1 alone is not enough")


@CLAIMS.add("001-R7t", "Remark 7, tightness", lemma_5, theorem_6)
def _tight() -> Outcome:
    """Lemma 5 is tight for the family: no smaller bound in terms of the norms alone is possible."""
    ratios = []
    for depth in (1, 3, 6):
        extreme = theorem_6([4] * (depth + 1), 1.5)
        attained = jacobian_norm(extreme.module, extreme.point)
        ratios.append(attained / _product([norm(w) for w in extreme.module.parameters()]))
    measured = {f"attained / bound, depth {d}": r for d, r in zip((1, 3, 6), ratios, strict=True)}
    return holds(all(close(r, 1.0) for r in ratios), measured, "attained at every depth")


@CLAIMS.add("001-R7o", "Remark 7, overfitting and underfitting", lemma_5)
def _overfitting() -> Outcome:
    """A large Lipschitz constant makes a network overfit, a very small one makes it underfit.

    Corrected: The constant of a classifier is not scale-free: multiplying the last layer changes it at will and no
    decision. At most margin over constant says something.
    """
    weights = [gaussian(70, 8, 5), gaussian(71, 3, 8)]
    large = [weights[0], 1e6 * weights[1]]
    x = gaussian(72, 200, 5)
    here = jacobian_norm(chain(weights), x[0])
    there = jacobian_norm(chain(large), x[0])
    changed = int((chain(weights)(x).argmax(1) != chain(large)(x).argmax(1)).sum())
    measured = {"constant at a point": here, "last layer times 1e6": there, "decisions that change, of 200": changed}
    if changed == 0 and there > 1e5 * here:
        return Outcome(Verdict.UNSUPPORTED, measured, "no proof is given, and the constant alone decides nothing")
    return Outcome(Verdict.HOLDS, measured, "the constant changed the decisions")
