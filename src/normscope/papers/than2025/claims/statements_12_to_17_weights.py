"""Section 4.3 and Appendices B, C: networks and losses as functions of the weights, gradients and smoothness."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.value import Kind, Value
from normscope.lipschitz.loss.constants import corollary_14, corollary_14_printed
from normscope.lipschitz.loss.regression import l1
from normscope.lipschitz.theorem_9 import theorem_9
from normscope.lipschitz.weights.pointwise import dense_weight_norm
from normscope.lipschitz.weights.theorem_12 import theorem_12, unnormalized_product
from normscope.operators.normalizers.batch_norm import batch_norm_batch_at, batch_norm_running
from normscope.operators.normalizers.layer_norm import (
    layer_norm_at,
    layer_norm_global,
    layer_norm_on_floor,
    layer_norm_range,
)
from normscope.papers.claim import Claims, Measured, Outcome, assumes, close, holds, refuted
from normscope.papers.measure import Function, confirm, confirm_bound, gradient, jacobian_norm, norm, quotient
from normscope.papers.small_networks import certified, chain, layer_norm, layer_norm_at_zero, normalized, of_weight
from normscope.papers.tensors import EPS, gaussian, identity, numbers, ones
from normscope.papers.than2025.extremal import gradients, l1_loss, theorem_13, theorem_13_printed
from normscope.papers.than2025.extremal.theorem_13_networks import parts, total_input
from normscope.papers.than2025.extremal.theorem_15_networks import theorem_15

CLAIMS = Claims("than2025")


def _normalized(weights: list[Tensor]) -> Function:
    return chain(weights, layer_norm)


def _rest(weights: list[Tensor], i: int) -> Function:
    """Return the LayerNorm network as a function of the total input ``y_i`` of layer i (from zero)."""
    return lambda y: _normalized(weights[i + 1 :])(torch.relu(layer_norm(y)))


@CLAIMS.add("001-T12a", "Theorem 12 (6)", dense_weight_norm, theorem_12, layer_norm_range)
def _theorem_12_weights() -> Outcome:
    """The constant in W_i is at most A_{i-1} times that in the total input y_i, A the largest ||h_{i-1}(x)||.

    Corrected: Needs a bounded domain: A_0 is infinite on R^n, and with frozen BatchNorm so is every A_i; after
    LayerNorm A_i <= sqrt(n_i). At a point it is an equality: ||dh/dW_i|| = ||J from y_i to h|| ||h_{i-1}(x)||.
    """
    weights = [gaussian(1200 + k, 6, 6) for k in range(4)]
    x, least = gaussian(1210, 6), math.inf
    for i in range(4):
        h = _normalized(weights[:i])(x)
        measured_norm = jacobian_norm(of_weight(_normalized, weights, i, x), weights[i])
        local = dense_weight_norm(jacobian_norm(_rest(weights, i), weights[i] @ h), h)
        confirm(f"equality at a point, layer {i + 1}", local, measured_norm)
        least = min(least, measured_norm)
        if i:
            confirm_bound("the range of LayerNorm", layer_norm_range(ones(6), None).radius, float(h.norm()))
    frozen = chain(weights[:2], lambda y, _: y / 2)
    sizes = [float(frozen(t * x).norm()) for t in (1.0, 1e3, 1e6)]
    measured = {
        "least ||dh/dW_i||, LayerNorm, 4 layers": least,
        "||h_2|| at x, frozen BatchNorm": sizes[0],
        "at 1e3 x": sizes[1],
        "at 1e6 x": sizes[2],
        "||h_2|| at 1e6 x, LayerNorm": float(_normalized(weights[:2])(1e6 * x).norm()),
    }
    grows = close(sizes[2] / sizes[1], 1e3, 1e-6)
    return assumes(grows and least > 0, measured, "A_{i-1} is infinite on R^n")


@CLAIMS.add("001-T12b", "Theorem 12 (7)", theorem_12, layer_norm_at)
def _theorem_12_totals() -> Outcome:
    """The constant in y_i is at most b_{i+1} = ||W_{i+1}|| ... ||W_K|| times that of the normalizers i to K.

    Corrected: As stated, with Lip(g_k) for k >= i; the two cases are one with b_{K+1} = 1.
    """
    ratios = []
    for seed in range(10):
        weights = [gaussian(1300 + 10 * seed + k, 6, 6) for k in range(4)]
        h, totals = gaussian(seed, 6), []
        for weight in weights:
            totals.append(weight @ h)
            h = torch.relu(layer_norm(totals[-1]))
        for i in range(4):
            local = [layer_norm_at(y, ones(6), EPS) for y in totals[i:]]
            after = certified([norm(w) for w in weights[i + 1 :]])
            printed = theorem_12(Value.of(1.0, Kind.CERTIFIED), after, certified(local)).value  # A = 1: of y_i
            ratios.append(jacobian_norm(_rest(weights, i), totals[i]) / printed)
    tight = layer_norm_at_zero(5, 2) * EPS
    measured = {"largest attained / bound, local, 40 cases": max(ratios), "attained / bound, W = I at 0": tight}
    return holds(max(ratios) <= 1 + 1e-9 and close(tight, 1.0), measured, "never exceeded, and attained")


@CLAIMS.add("001-T12c", "Theorem 12, for training with BatchNorm", batch_norm_batch_at)
def _training() -> Outcome:
    """The theorem is used for the loss during training with BatchNorm.

    Corrected: Then the statistics must not move with W_i. With batch statistics (eps = 0) the loss is scale-invariant:
    its gradient at c W is that at W divided by c, unbounded near W = 0.
    """
    x, target, weight = gaussian(1400, 32, 5), gaussian(1401, 32, 4), gaussian(1402, 4, 5)

    def loss(w: Tensor) -> Tensor:
        return ((torch.relu(normalized("batch", x @ w.mT)) - target) ** 2).mean()

    sizes = {c: float(gradient(loss, c * weight).norm()) for c in (1.0, 0.1, 1e-3)}
    measured = {f"gradient norm at c W, c = {c:g}": s for c, s in sizes.items()}
    inverse = all(close(s * c, sizes[1.0], 1e-6) for c, s in sizes.items())
    return assumes(inverse, measured, "in training the gradient grows as 1/c")


@CLAIMS.add("001-T13(8)", "Theorem 13 (8)", theorem_13, theorem_13_printed)
def _theorem_13_weights() -> Outcome:
    """Some ReLU network has, in W_i, the constant a_{i+1} ... a_K ||h_{i-1}(x) truncated to n_{i+1}, ..., n_K||.

    Corrected: a_{i+1} ... a_K ||h_{i-1}(x)||: the truncation acts on the rows of W_i, not on h_{i-1}. Attained where a
    row t <= min(n_i, ..., n_K) of W_i is active; the proof errs in (59).
    """
    extreme = theorem_13([3, 2, 1], [1.0, 5.0], 1, numbers(0, 0, 1))
    weights = [w.detach() for w in extreme.module.parameters()]
    function = of_weight(chain, weights, 0, extreme.point)
    true = jacobian_norm(function, weights[0])
    confirm("a ||h||", extreme.constant.value, true)
    pairs = max(quotient(function, weights[0] + gaussian(s, 2, 3), weights[0]) for s in range(200))
    confirm_bound("a ||h||, over pairs", extreme.constant.value, pairs)
    signed = theorem_13([3, 2, 1], [1.0, 5.0], 1, numbers(1, -2, 2))
    inside = [w.detach() for w in signed.module.parameters()]
    at = jacobian_norm(of_weight(chain, inside, 0, signed.point), inside[0])
    confirm("a ||h||, h = (1, -2, 2)", signed.constant.value, at)
    printed = theorem_13_printed(parts([3, 2, 1], [1.0, 5.0], 1, numbers(0, 0, 1), torch.float64)).value
    measured = {"true": true, "printed": printed, "largest quotient of 200 pairs": pairs}
    return holds(close(printed, true), measured, "h = (0, 0, 1), widths 3, 2, 1, a = 5")


@CLAIMS.add("001-T13(9)", "Theorem 13 (9)", total_input)
def _theorem_13_totals() -> Outcome:
    """Of that network the constant in y_i is a_{i+1} ... a_K.

    Corrected: As stated, over all y_i; over those some x reaches it is an upper bound.
    """
    widths, scales, x = (3, 4, 3, 6, 2), (1.0, 2.0, 0.5, 3.0), ones(3)
    weights = [w.detach() for w in theorem_13(widths, scales, 1, x).module.parameters()]

    def rest(y: Tensor) -> Tensor:
        return chain(weights[1:])(torch.relu(y))

    attained = jacobian_norm(rest, ones(4))
    points = gaussian(1500, 200, 4)
    pairs = max(quotient(rest, a, b) for a, b in zip(points[:100], points[100:], strict=True))
    printed = total_input(parts(widths, scales, 1, x, torch.float64))[0].value
    measured = {"printed": printed, "attained": attained, "largest quotient of 100 pairs": pairs}
    return holds(close(attained, printed) and pairs <= printed, measured, "attained and never exceeded")


@CLAIMS.add("001-C14=", "Corollary 14 (11)", corollary_14, corollary_14_printed, l1_loss)
def _corollary_14_equality() -> Outcome:
    """For the l1 loss the constant of the loss in W_i is that of the network in W_i.

    Corrected: The l1 loss adds sqrt(r), r = min(n_i, ..., n_K): sqrt(r) a_{i+1} ... a_K ||h_{i-1}(x)|| here, and at
    most sqrt(n_K) ||h, W_i|| in general.
    """
    extreme = l1_loss([3, 4, 5, 6], [1.0, 2.0, 3.0], 1, numbers(1, 2, 2))  # an input of norm 3
    weights = [w.detach() for w in extreme.module.parameters()]
    network = of_weight(chain, weights, 0, extreme.point)
    of_network = jacobian_norm(network, weights[0])
    target = torch.full((6,), -1.0, dtype=torch.float64)
    true = float(gradient(lambda w: (network(w) - target).abs().sum(), weights[0]).norm())
    stated = Value.of(of_network, Kind.CERTIFIED)
    confirm("sqrt(r) times the network's", extreme.constant.value, true)
    confirm_bound("sqrt(n) times the network's", corollary_14(stated, l1(6, reduction="sum")).value, true)
    printed = corollary_14_printed(stated).value
    measured = {"true, widths 3-4-5-6, a = 2, 3, ||x|| = 3": true, "printed": printed}
    return holds(close(printed, true), measured, "the l1 norm is sqrt(n)-Lipschitz in the l2 norm")


@CLAIMS.add("001-C14(10)", "Corollary 14 (10)", corollary_14, theorem_9)
def _corollary_14_bound() -> Outcome:
    """With normalizers the loss is O(b_{i+1}) times the constants of normalizers i to K Lipschitz in W_i.

    Corrected: The O hides sqrt(n_K) ||h_{i-1}(x)||, which no constant bounds unless the domain is bounded: sqrt(n_K)
    ||h_{i-1}(x)|| b_{i+1} prod_{k >= i} ||NO_k||.
    """
    weights = [gaussian(1600 + k, 4, 4) for k in range(3)]
    x = gaussian(1610, 4)

    def network(parts: list[Tensor]) -> Function:
        return chain(parts, lambda y, _: y / 2)

    def size(t: float) -> float:
        function = of_weight(network, weights, 0, t * x)
        found = float(gradient(lambda w: function(w).abs().sum(), weights[0]).norm())
        limit = corollary_14(Value.of(jacobian_norm(function, weights[0]), Kind.CERTIFIED), l1(4, reduction="sum"))
        confirm_bound("with sqrt(n_K)", limit.value, found)
        return found

    sizes = {t: size(t) for t in (1.0, 1e2, 1e4)}
    measured = {f"gradient norm in W_1 at t x, t = {t:g}": found for t, found in sizes.items()}
    return assumes(close(sizes[1e4], 1e4 * sizes[1.0], 1e-6), measured, "the constant in O grows with ||x||")


def _scalar_loss(
    weights: list[Tensor], factors: list[Tensor], c: float, data: Tensor, outer: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the mean loss of Theorem 15 as a function of the weight W_i, the layers after it being ``a_k I_k``."""

    def loss(w: Tensor) -> Tensor:
        hidden = chain([w, *factors])(chain(weights)(data))
        return outer(c * hidden.sum(-1)).mean()

    return loss


def _theorem_15_gradients(weight: Tensor, data: Tensor, layer: int = 2) -> tuple[Tensor, Tensor]:
    """Return the gradient (12) in the first or second layer and that of autograd, for tanh and the square loss."""
    width, target = len(weight), torch.full((len(data),), 0.5, dtype=torch.float64)
    first = [5] if layer == 2 else []
    widths, scales = [4, *first, width, 3, 6], [*(1.5 for _ in first), 1.0, 2.0, 3.0]
    found = theorem_15(
        widths, scales, weight, data, target, _square, layer=layer, output=0.3, activation=torch.nn.Tanh()
    )
    before = [1.5 * identity(n, 4) for n in first]
    after = [2 * identity(3, width), 3 * identity(6, 3)]
    loss = _scalar_loss(before, after, 0.3, data, lambda u: _square(torch.tanh(u), target))
    return found.gradient, gradient(loss, weight)


def _square(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target) ** 2


@CLAIMS.add("001-T15", "Theorem 15", theorem_15)
def _theorem_15() -> Outcome:
    """Some network has the gradient (12) in row t of W_i for t <= min(n_{i+1}, ..., n_K), and zero otherwise.

    Corrected: As stated where no W_it h_{i-1}(x) is zero; rows t run to min(n_i, ..., n_K).
    """
    measured: Measured = {}
    errors = []
    for layer, width in ((1, 4), (2, 4), (2, 2)):
        weight = 0.3 * gaussian(1702, width, 3 + layer)
        formula, true = _theorem_15_gradients(weight, gaussian(1701, 8, 4), layer)
        errors.append(float((formula - true).abs().max()))
        measured[f"largest error, i = {layer}, n_i = {width}"] = errors[-1]
        measured[f"largest entry, i = {layer}, n_i = {width}"] = float(true.abs().max())
    return holds(max(errors) < 1e-12, measured, "(12) against autograd, tanh and square loss")


@CLAIMS.add("001-T15k", "Theorem 15, the indicator", theorem_15)
def _theorem_15_kink() -> Outcome:
    """The indicator in (12) is 1 where W_it h_{i-1}(x) >= 0.

    Corrected: 1 where it is > 0. Where it is zero and h_{i-1}(x) is not, the loss is not differentiable; what is
    printed there is one of its one-sided derivatives, and not the one autograd takes.
    """
    data, weight = gaussian(1701, 8, 4).abs(), 0.3 * gaussian(1702, 4, 5)
    weight[0] = 0.0
    strict, true = _theorem_15_gradients(weight, data)
    weight[0] = 1e-300  # active at every (positive) sample, as the printed indicator takes a row of zeros to be
    printed, _ = _theorem_15_gradients(weight, data)
    errors = [float((found - true).abs().max()) for found in (strict, printed)]
    measured = {"error with > 0, row of zeros": errors[0], "error with >= 0, as printed": errors[1]}
    return refuted(errors[0] < 1e-12 < errors[1], measured, "autograd's gradient of a row of zeros is zero")


@CLAIMS.add("001-R16", "Remark 16, large gradients", theorem_15, gradients)
def _remark_16() -> Outcome:
    """The gradient in W_i is of the order a_{i+1} ... a_K at least: it explodes with depth.

    Corrected: Needs the derivative of f o g at u(x), which depends on the a_k itself, bounded below: true for the
    logistic loss at a wrong label; for tanh with square loss the gradient vanishes instead, for the identity with
    square loss it grows as the square.
    """
    data = gaussian(1801, 6, 4).abs()
    weight = gaussian(1802, 4, 4).abs()
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh, square": lambda u: (torch.tanh(u) - 0.5) ** 2,
        "identity, square": lambda u: (u + 1) ** 2,
        "logistic, wrong label": F.softplus,
    }
    measured = {}
    for (name, outer), a in itertools.product(losses.items(), (1.0, 10.0, 100.0)):
        loss = _scalar_loss([], [a * identity(4)], 0.2, data, outer)
        measured[f"{name}, A = {a:g}"] = float(gradient(loss, weight).norm())
    vanishes = measured["tanh, square, A = 100"] < 1e-6 * measured["tanh, square, A = 1"]
    grows = close(measured["logistic, wrong label, A = 100"] / measured["logistic, wrong label, A = 10"], 10.0, 0.05)
    return assumes(vanishes and grows, measured, "it depends on the loss and on g")


@CLAIMS.add("001-R16v", "Remark 16, small gradients", theorem_15, gradients)
def _vanishing() -> Outcome:
    """If all a_k < 1, gradients decay exponentially as they go back through the layers.

    Corrected: As stated, for losses whose derivative is bounded, and with a_k <= 1 - c.
    """
    data, weight = gaussian(1803, 6, 4).abs(), gaussian(1804, 4, 4).abs()
    sizes = {}
    for depth in (1, 5, 10, 20):
        loss = _scalar_loss([], [0.5 * identity(4)] * depth, 0.2, data, F.softplus)
        sizes[depth] = float(gradient(loss, weight).norm())
    measured = {f"gradient norm, a = 0.5, {depth} layers above": size for depth, size in sizes.items()}
    return holds(close(sizes[20] / sizes[10] * 2.0**10, 1.0, 0.1), measured, "halved by every layer")


@CLAIMS.add("001-R16n", "Remark 16, control by normalization", layer_norm_global, layer_norm_on_floor)
def _control() -> Outcome:
    """By (10), normalizers keep the gradients within a stable range.

    Corrected: (10) bounds them by constants of the normalizers, 1/sqrt(eps) each on all inputs: gradients stay bounded
    only where the variances are bounded below. Before a normalizer they grow as 1/||W||.
    """
    data, target = gaussian(1805, 16, 6), gaussian(1806, 16, 6)
    weights = [gaussian(1807 + k, 6, 6) for k in range(3)]

    def size(scale: float) -> float:
        def loss(w: Tensor) -> Tensor:
            return ((chain([w, *(scale * v for v in weights[1:])], layer_norm)(data) - target) ** 2).mean()

        return float(gradient(loss, scale * weights[0]).norm())

    sizes = {scale: size(scale) for scale in (1.0, 1e-1, 1e-2)}
    measured = {f"gradient norm in W_1, weights times {scale:g}": found for scale, found in sizes.items()}
    return assumes(sizes[1e-2] > 30 * sizes[1.0], measured, "small weights make them large")


@CLAIMS.add("001-R17", "Remark 17, without normalizers", unnormalized_product, gradients)
def _remark_17() -> Outcome:
    """The loss is O(s_{i+1} ... s_K)-Lipschitz in W_i, so deeper layers are easier.

    Corrected: prod_{j != i} s_j ||x|| for every i, of the same order for all layers: ||h_{i-1}|| carries the factors
    below. Theorem 15 says that large gradients exist, not that there are no larger ones.
    """
    depth, x = 6, ones(4)
    weights = [2 * identity(4)] * depth
    sizes = [jacobian_norm(of_weight(chain, weights, i, x), weights[i]) / float(x.norm()) for i in range(depth)]
    one = Value.of(1.0, Kind.CERTIFIED)
    for i, (size, stated) in enumerate(zip(sizes, gradients([4] * (depth + 1), 2.0), strict=True)):
        confirm("the product of the other norms", unnormalized_product([one + one] * depth, i, one).value, size)
        confirm("the construction's gradient", stated.weight.value, size)
    measured: Measured = {f"||dh/dW_{i + 1}|| / ||x||": s for i, s in enumerate(sizes)}
    claimed = gradients([4] * (depth + 1), 2.0)[-1].total_input.value  # s_{i+1} ... s_K
    measured["s_{i+1} ... s_K for the last layer"] = claimed
    equal = sizes[-1] > 1.5 * claimed and close(sizes[-1], sizes[0])
    return refuted(equal, measured, "all layers of W_k = 2 I have the same constant")


@CLAIMS.add("001-R17n", "Remark 17, with normalizers", batch_norm_running, theorem_9)
def _remark_17_normalized() -> Outcome:
    """With normalizers it is O(s_{i+1} ... s_K prod_{k >= i} ||NO_k||), and the product is exponentially small.

    Corrected: For frozen statistics and bounded inputs. Multiplying all weights by c divides the product by c^(K-i+1)
    and the gradient of the training loss by c only: the factor measures the scale of the weights.
    """
    data, target = gaussian(1901, 64, 6), gaussian(1902, 64, 6)
    weights = [gaussian(1903 + k, 6, 6) for k in range(4)]

    def size(c: float) -> tuple[float, float]:
        variances: list[Tensor] = []

        def normalize(y: Tensor, _: int) -> Tensor:
            variances.append(y.detach().var(0, unbiased=False))
            return normalized("batch", y)

        def loss(w: Tensor) -> Tensor:
            return ((chain([w, *(c * v for v in weights[1:])], normalize)(data) - target) ** 2).mean()

        found = float(gradient(loss, c * weights[0]).norm())
        return found, math.prod(batch_norm_running(None, var, 0.0) for var in variances)

    (one, factor), (ten, smaller) = size(1.0), size(10.0)
    measured = {"gradient norm in W_1": one, "weights times 10": ten, "prod 1/sigma": factor, "times 10": smaller}
    scale = close(factor / smaller, 1e4, 1e-6) and close(one / ten, 10.0, 1e-6)
    return assumes(scale, measured, "the product fell by 1e4, the gradient by 10")
