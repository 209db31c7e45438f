"""Section 4.2 and Appendix B: networks with normalizers, as functions of their input."""

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.lipschitz.theorem_9 import corollary_10, corollary_11, lemma_5, theorem_9
from normscope.operators.normalizers.batch_norm import batch_norm_printed, batch_norm_running, batch_norm_scale
from normscope.operators.normalizers.group_norm import group_norm_global
from normscope.operators.normalizers.layer_norm import layer_norm_global, layer_norm_on_floor
from normscope.papers.chains import EPS, certified, chain, layer_norm
from normscope.papers.claim import Claims, Measured, Outcome, Verdict, bound, close, given, holds, refuted
from normscope.papers.measure import Function, confirm, confirm_bound, gaussian, jacobian_norm, norm
from normscope.papers.than2025.extremal.theorem_6_networks import layer_norm_blow_up

CLAIMS = Claims("than2025")


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
    return given(change < 1e-10, measured, "the bounds s_i restrict no BatchNorm network")


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
        limit = theorem_9(norms, certified([group_norm_global(torch.ones(6), 2, EPS)] * 3)).value
        largest = max(largest, *(jacobian_norm(groups, x) / limit for x in points))
        layers = theorem_9(norms, certified([layer_norm_global(torch.ones(6), EPS)] * 3)).value
        largest = max(largest, *(jacobian_norm(chain(weights, layer_norm), x) / layers for x in points))
        statistics = _statistics(weights, gaussian(500 + seed, 64, 6))
        factors = [batch_norm_running(None, var, 0.0) for _, var in statistics]
        batches = theorem_9(norms, certified(factors)).value
        folds = [
            norm(batch_norm_scale(None, var, 0.0)[:, None] * w) for w, (_, var) in zip(weights, statistics, strict=True)
        ]
        folded = theorem_9(certified(folds), []).value
        for x in points:
            attained = jacobian_norm(_frozen(weights, statistics), x)
            confirm_bound("the folded product", folded, attained)
            largest = max(largest, attained / batches)
        folded_ratio = max(folded_ratio, folded / batches)
    tight = jacobian_norm(chain([torch.eye(4).double()] * 3, layer_norm, lambda x: x), torch.zeros(4).double())
    limit = theorem_9(certified([1.0] * 3), certified([layer_norm_global(torch.ones(4), EPS)] * 3)).value
    measured = {
        "largest attained / bound, 36 networks": largest,
        "folded / printed, BatchNorm, at most": folded_ratio,
        "attained / bound, W = I at 0, LayerNorm": tight / limit,
    }
    return holds(largest <= 1 and close(tight, limit), measured, "never exceeded, and attained by W = I")


@CLAIMS.add("001-C10.1", "Corollary 10, 1", corollary_10, batch_norm_running, batch_norm_printed)
def _corollary_10_1() -> Outcome:
    """With BatchNorm the constant is at most P_w times the product of the l2 norms of 1/sigma_k.

    Corrected: With the largest entry in place of the l2 norm; tighter still with folded weights. The printed form is
    too large by up to n^(K/2).
    """
    n, depth, var = 64, 10, 9.0
    variances = torch.full((n,), var, dtype=torch.float64)
    weights = [torch.eye(n, dtype=torch.float64)] * depth
    true = jacobian_norm(chain(weights, lambda y, _: y / variances.sqrt()), torch.ones(n, dtype=torch.float64))
    ours = theorem_9(certified([1.0] * depth), certified([batch_norm_running(None, variances, 0.0)] * depth)).value
    confirm("with the largest entry", ours, true)
    printed = corollary_10(certified([1.0] * depth), certified([batch_norm_printed(variances, 0.0)] * depth))[0].value
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
    one = torch.ones(1, 1, dtype=torch.float64)
    true = jacobian_norm(chain([one] * depth, lambda y, _: y / 3), torch.ones(1, dtype=torch.float64))
    factors = certified([batch_norm_printed(var, 0.0)] * depth)
    attained = corollary_10(certified([1.0] * depth), factors)[1].value
    unequal = certified([batch_norm_printed(var * k, 0.0) for k in range(1, depth + 1)])
    first, second = (v.value for v in corollary_10(certified([1.0] * depth), unequal))
    measured = {
        "true, width 1": true,
        "printed, width 1": attained,
        "form 1, unequal": first,
        "form 2, unequal": second,
    }
    return holds(close(true, attained) and second >= first, measured, "attained for width 1, above form 1 otherwise")


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
        factors = certified([layer_norm_global(torch.ones(n), EPS)] * depth)
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
        equal = [a * torch.eye(n, dtype=torch.float64)] * 5
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
