"""Sections 4.1, 4.2 and Appendices B, C: networks as functions of their input, without normalizers and with them."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.lipschitz.theorem_9 import corollary_10, corollary_11, lemma_5, theorem_9
from normscope.operators.normalizers.batch_norm import batch_norm_printed, batch_norm_running, batch_norm_scale
from normscope.operators.normalizers.group_norm import group_norm_global
from normscope.operators.normalizers.layer_norm import layer_norm_global, layer_norm_on_floor
from normscope.operators.scalar.activations import slope
from normscope.papers.claim import (
    Claims,
    Measured,
    Outcome,
    Verdict,
    assumes,
    bound,
    close,
    holds,
    refuted,
    unsupported,
)
from normscope.papers.measure import Function, confirm, confirm_bound, gradient, jacobian_norm, norm, quotient
from normscope.papers.small_networks import certified, chain, layer_norm, layer_norm_at_zero
from normscope.papers.tensors import EPS, gaussian, identity, numbers, ones
from normscope.papers.than2025.extremal.theorem_6_networks import layer_norm_blow_up, remark_7, theorem_6

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
    attained = float(gradient(lambda z: F.silu(z).sum(), x).max())
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
    nearby = jacobian_norm(chain(moved), ones(WIDTHS[0]))
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
    one = identity(5)
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
    return assumes(stays and constant > 100 and small < 0.01, measured, "s_k > 1 alone is not enough")


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
    because = "no proof is given, and the constant alone decides nothing"
    return unsupported(changed == 0 and there > 1e5 * here, measured, because)


def _statistics(weights: list[Tensor], data: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return mean and variance before each BatchNorm (eps = 0) of a ReLU network on data."""
    found, x = [], data
    for weight in weights:
        total = x @ weight.mT
        mean, var = total.mean(0), total.var(0, unbiased=False)
        found.append((mean, var))
        x = torch.relu((total - mean) / var.sqrt())
    return found


def _frozen(weights: list[Tensor], statistics: list[tuple[Tensor, Tensor]]) -> Function:
    """Return the network with BatchNorm frozen at statistics (eps = 0)."""
    return chain(weights, lambda y, k: (y - statistics[k][0]) / statistics[k][1].sqrt())


@CLAIMS.add("001-D8", "Definition 8", batch_norm_scale)
def _definition_8() -> Outcome:
    """A normalized network is h_i = g_i(NO_i(W_i h_{i-1})), with the same bounds s_i on the weights.

    Corrected: A definition. With BatchNorm the bounds s_i say nothing: W_i and c W_i are the same network, so the
    family with any s_i > 0 is that with all weights (eps = 0).
    """
    weights = [gaussian(80 + k, 6, 6) for k in range(3)]
    small = [1e-3 * w for w in weights]
    data = gaussian(83, 64, 6)
    outputs = [_frozen(w, _statistics(w, data))(data) for w in (weights, small)]
    change = float((outputs[0] - outputs[1]).abs().max())
    measured = {"product of norms": norm(weights[0]) ** 3, "outputs differ by, weights times 1e-3": change}
    return assumes(change < 1e-10, measured, "the bounds s_i restrict no BatchNorm network")


@CLAIMS.add("001-T9", "Theorem 9", theorem_9, batch_norm_scale)
def _theorem_9() -> Outcome:
    """A normalized network is Lipschitz with the product of ||W_k|| and of the constants of its normalizers.

    Corrected: As stated (with Lip(g_k)); for LayerNorm, GroupNorm, InstanceNorm and RMSNorm on all inputs the factors
    are 1/sqrt(eps). For BatchNorm with frozen statistics prod ||diag(gamma_k/s_k) W_k|| is tighter.
    """
    largest, folded_ratio = 0.0, 0.0
    for seed in range(12):
        weights = [gaussian(1000 + 10 * seed + k, 6, 6) / 2 for k in range(3)]
        norms = certified([norm(w) for w in weights])
        points = gaussian(seed, 4, 6)
        groups = chain(weights, lambda y, k: F.group_norm(y.reshape(-1, 6), 2, eps=EPS).reshape(y.shape))
        limit = theorem_9(norms, certified([group_norm_global(ones(6), 2, EPS)] * 3)).value
        largest = max(largest, *(jacobian_norm(groups, x) / limit for x in points))
        layers = theorem_9(norms, certified([layer_norm_global(ones(6), EPS)] * 3)).value
        largest = max(largest, *(jacobian_norm(chain(weights, layer_norm), x) / layers for x in points))
        statistics = _statistics(weights, gaussian(500 + seed, 64, 6))
        factors = [batch_norm_running(None, var, 0.0) for _, var in statistics]
        batches = theorem_9(norms, certified(factors)).value
        scales = [batch_norm_scale(None, var, 0.0)[:, None] for _, var in statistics]
        folds = [norm(scale * w) for scale, w in zip(scales, weights, strict=True)]
        folded = theorem_9(certified(folds), []).value
        for x in points:
            attained = jacobian_norm(_frozen(weights, statistics), x)
            confirm_bound("the folded product", folded, attained)
            largest = max(largest, attained / batches)
        folded_ratio = max(folded_ratio, folded / batches)
    tight = layer_norm_at_zero(4, 3)
    limit = theorem_9(certified([1.0] * 3), certified([layer_norm_global(ones(4), EPS)] * 3)).value
    measured = {
        "largest attained / bound, 36 networks": largest,
        "folded / printed, BatchNorm, at most": folded_ratio,
        "attained / bound, W = I at 0, LayerNorm": tight / limit,
    }
    return holds(largest <= 1 and close(tight, limit), measured, "never exceeded, and attained by W = I")


def corollary_10_on_equal_variances() -> tuple[float, float]:
    """Return the constant of ten layers ``W = I`` of width 64 with BatchNorm at the variance 9, and the printed one."""
    n, depth, var = 64, 10, torch.full((64,), 9.0, dtype=torch.float64)
    norms = certified([1.0] * depth)
    true = jacobian_norm(chain([identity(n)] * depth, lambda y, _: y / var.sqrt()), ones(n))
    ours = theorem_9(norms, certified([batch_norm_running(None, var, 0.0)] * depth)).value
    confirm("with the largest entry", ours, true)
    return true, corollary_10(norms, certified([batch_norm_printed(var, 0.0)] * depth))[0].value


@CLAIMS.add("001-C10.1", "Corollary 10, 1", corollary_10, batch_norm_running, batch_norm_printed)
def _corollary_10_1() -> Outcome:
    """With BatchNorm the constant is at most P_w times the product of the l2 norms of 1/sigma_k.

    Corrected: With the largest entry in place of the l2 norm; tighter still with folded weights. The printed form is
    too large by up to n^(K/2).
    """
    true, printed = corollary_10_on_equal_variances()
    measured = {"true, n = 64, K = 10, sigma = 3": true, "printed": printed}
    return Outcome(bound(printed, true), measured, "sqrt(n) is lost at every layer", printed / true)


@CLAIMS.add("001-C10.2", "Corollary 10, 2", corollary_10, batch_norm_printed)
def _corollary_10_2() -> Outcome:
    """With sigma = min_k ||1/sigma_k||^-1 the constant is at most sigma^-K P_w.

    Corrected: As stated, exponent included; use sigma = min over layers and channels of sqrt(sigma^2 + eps)/|gamma|.
    What the paper calls variance there is a standard deviation.
    """
    depth = 7
    var = torch.tensor([9.0], dtype=torch.float64)
    one = ones(1, 1)
    true = jacobian_norm(chain([one] * depth, lambda y, _: y / 3), ones(1))
    factors = certified([batch_norm_printed(var, 0.0)] * depth)
    printed = corollary_10(certified([1.0] * depth), factors)[1].value
    unequal = certified([batch_norm_printed(var * k, 0.0) for k in range(1, depth + 1)])
    first, second = (v.value for v in corollary_10(certified([1.0] * depth), unequal))
    measured = {"true, width 1": true, "printed, width 1": printed, "form 1, unequal": first, "form 2, unequal": second}
    return holds(close(true, printed) and second >= first, measured, "attained for width 1, above form 1 otherwise")


@CLAIMS.add("001-C11", "Corollary 11", corollary_11, layer_norm_blow_up, layer_norm_global, layer_norm_on_floor)
def _corollary_11() -> Outcome:
    """With LayerNorm the constant is at most P_w times the product of 1/sigma_k.

    Corrected: As stated, but sigma_k is the least over all inputs, sqrt(eps): the bound is P_w eps^(-K/2), whatever the
    data. Attained with the identity as activation; with ReLU up to (1 - 1/n)^(K - 1/2). A statement about data needs
    the set {sigma_k >= s}.
    """
    n = 16
    measured: Measured = {}
    sound = True
    for depth in (1, 2, 3, 4):
        extreme, linear = (layer_norm_blow_up(n, depth, EPS, activation) for activation in ("relu", "identity"))
        attained = jacobian_norm(extreme.module, extreme.point)
        confirm(f"blow-up, K = {depth}", extreme.attained.value, attained, 1e-6)
        factors = certified([layer_norm_global(ones(n), EPS)] * depth)
        printed = corollary_11(certified([1.0] * depth), factors).value
        sound = sound and attained <= printed and close(jacobian_norm(linear.module, linear.point), printed)
        measured[f"attained, ReLU, K = {depth}"] = attained
    measured["printed, K = 4"] = printed
    return holds(sound, measured, "a bound, attained without ReLU; it is eps^(-K/2) for every network with P_w = 1")


@CLAIMS.add("001-C11r", "Section 4.2, after Corollary 11", layer_norm_blow_up, layer_norm_global, layer_norm_on_floor)
def _layer_norm_reduces() -> Outcome:
    """So LayerNorm (and GroupNorm, InstanceNorm) reduces the Lipschitz constant of a network.

    Corrected: On all inputs it multiplies the constant of W = I by up to eps^(-K/2). On {sigma_k >= s} each layer has
    1/sqrt(s^2 + eps).
    """
    extreme = layer_norm_blow_up(16, 4, EPS)
    weights = [w.detach() for w in extreme.module.parameters()]
    plain = theorem_9(certified([norm(w) for w in weights]), []).value
    attained = jacobian_norm(extreme.module, extreme.point)
    typical = jacobian_norm(extreme.module, gaussian(11, 16))
    measured = {"constant without LayerNorm": plain, "attained with LayerNorm": attained, "at a Gaussian x": typical}
    return refuted(attained > plain, measured, "with LayerNorm the same weights have a larger constant")


@CLAIMS.add(
    "001-RED", "Section 4.2, potentially exponential reduction", batch_norm_scale, batch_norm_running, corollary_10
)
def _reduction() -> Outcome:
    """Normalizers reduce the constant exponentially; in ResNet18 the factor prod 1/sigma_k is about 1e-25.

    Corrected: prod 1/sigma_k changes with W_k -> c W_k while the network does not: only ||diag(gamma/s) W|| is a
    quantity of the network, and it is at least max_j |gamma_j| / sqrt(largest eigenvalue of the input covariance).
    """
    depth, n = 10, 8
    weights = [gaussian(900 + k, n, n) / n**0.5 for k in range(depth)]
    data = gaussian(899, 256, n)
    factors, outputs = [], []
    for scale in (1.0, 10.0):
        scaled = [scale * w for w in weights]
        statistics = _statistics(scaled, data)
        constants = certified([batch_norm_running(None, var, 0.0) for _, var in statistics])
        factors.append(theorem_9([], constants).log10)
        outputs.append(_frozen(scaled, statistics)(data))
        folded = norm(batch_norm_scale(None, statistics[0][1], 0.0)[:, None] * scaled[0])
        covariance = (data - data.mean(0)).mT @ (data - data.mean(0)) / len(data)
        confirm_bound("no folded layer contracts more", folded, float(torch.linalg.eigvalsh(covariance)[-1] ** -0.5))
    measured: Measured = {
        "log10 prod 1/sigma": factors[0],
        "log10 prod 1/sigma, weights times 10": factors[1],
        "outputs differ by": float((outputs[0] - outputs[1]).abs().max()),
    }
    larger = False
    for a in (0.1, 1.0, 10.0):
        equal = [a * identity(n)] * 5
        with_norm = jacobian_norm(_frozen(equal, _statistics(equal, data)), data[0].abs())
        measured[f"W = {a:g} I, 5 layers: with BatchNorm"] = with_norm
        measured[f"W = {a:g} I, 5 layers: without"] = a**5
        larger = larger or with_norm > a**5
    same = float(measured["outputs differ by"]) < 1e-9 and factors[0] - factors[1] > 9.9
    return refuted(same and larger, measured, "the factor measures the weights' scale, and for W = 0.1 I it increases")


def _needs_training(what: str) -> Outcome:
    return Outcome(Verdict.NOT_CHECKABLE, {}, f"{what} needs 100 epochs on CIFAR-10 and code the paper does not give")


@CLAIMS.add("001-F1", "Figure 1", lemma_5)
def _figure_1() -> Outcome:
    """In trained ResNet18 and a 10-layer ReLU network the norms of all weights exceed 1, their product reaches 1e50.

    Corrected: With BatchNorm the norms are no property of the network (see 001-RED).
    """
    return _needs_training("the figure")


@CLAIMS.add("001-F2", "Figure 2", batch_norm_scale)
def _figure_2() -> Outcome:
    """The variances before each layer grow during training, often far above 1.

    Corrected: With BatchNorm the variances scale with the weights, which grow under SGD because gradients are
    orthogonal to them; the product of variances is no property of the network.
    """
    return _needs_training("the figure")


@CLAIMS.add("001-F3", "Figure 3, Appendix E")
def _figure_3() -> Outcome:
    """EfficientNet-B3 shows the same growth of norms and variances.

    Corrected: Its SiLU and its gates are outside Definition 4 (see 001-D4x).
    """
    return _needs_training("the figure")
