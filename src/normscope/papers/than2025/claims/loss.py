"""Section 4.3: the loss as a function of the weights, its gradients and its smoothness."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.value import Kind, Value
from normscope.lipschitz.loss.constants import corollary_14, corollary_14_printed
from normscope.lipschitz.loss.regression import l1
from normscope.lipschitz.theorem_9 import theorem_9
from normscope.lipschitz.weights.theorem_12 import unnormalized_product
from normscope.operators.normalizers.batch_norm import batch_norm_running
from normscope.operators.normalizers.layer_norm import layer_norm_global, layer_norm_on_floor
from normscope.papers.chains import chain, layer_norm, of_weight, padded_identity, standardized
from normscope.papers.claim import Claims, Measured, Outcome, close, equality, given, holds, refuted
from normscope.papers.measure import Function, confirm, confirm_bound, gaussian, gradient, jacobian_norm, numbers
from normscope.papers.than2025.extremal.theorem_13_networks import gradients, l1_loss
from normscope.papers.than2025.extremal.theorem_15_networks import theorem_15

CLAIMS = Claims("than2025")


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
    return Outcome(equality(printed, true), measured, "the l1 norm is sqrt(n)-Lipschitz in the l2 norm")


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

    measured: Measured = {}
    sizes = []
    for t in (1.0, 1e2, 1e4):
        function = of_weight(network, weights, 0, t * x)
        size = float(gradient(lambda w, f=function: f(w).abs().sum(), weights[0]).norm())  # type: ignore[misc]
        limit = corollary_14(Value.of(jacobian_norm(function, weights[0]), Kind.CERTIFIED), l1(4, reduction="sum"))
        confirm_bound("with sqrt(n_K)", limit.value, size)
        measured[f"gradient norm in W_1 at t x, t = {t:g}"] = size
        sizes.append(size)
    return given(close(sizes[2], 1e4 * sizes[0], 1e-6), measured, "the constant in O grows with ||x||")


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
    before = [1.5 * padded_identity(n, 4) for n in first]
    after = [2 * padded_identity(3, width), 3 * padded_identity(6, 3)]
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
    measured: Measured = {}
    sizes: dict[str, list[float]] = {}
    for name, outer in losses.items():
        for a in (1.0, 10.0, 100.0):
            loss = _scalar_loss([], [a * padded_identity(4, 4)], 0.2, data, outer)
            size = float(gradient(loss, weight).norm())
            measured[f"{name}, A = {a:g}"] = size
            sizes.setdefault(name, []).append(size)
    vanishes = sizes["tanh, square"][2] < 1e-6 * sizes["tanh, square"][0]
    grows = close(sizes["logistic, wrong label"][2] / sizes["logistic, wrong label"][1], 10.0, 0.05)
    return given(vanishes and grows, measured, "it depends on the loss and on g")


@CLAIMS.add("001-R16v", "Remark 16, small gradients", theorem_15, gradients)
def _vanishing() -> Outcome:
    """If all a_k < 1, gradients decay exponentially as they go back through the layers.

    Corrected: As stated, for losses whose derivative is bounded, and with a_k <= 1 - c.
    """
    data, weight = gaussian(1803, 6, 4).abs(), gaussian(1804, 4, 4).abs()
    sizes = {}
    for depth in (1, 5, 10, 20):
        loss = _scalar_loss([], [0.5 * padded_identity(4, 4)] * depth, 0.2, data, F.softplus)
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
    return given(sizes[1e-2] > 30 * sizes[1.0], measured, "small weights make them large")


@CLAIMS.add("001-R17", "Remark 17, without normalizers", unnormalized_product, gradients)
def _remark_17() -> Outcome:
    """The loss is O(s_{i+1} ... s_K)-Lipschitz in W_i, so deeper layers are easier.

    Corrected: prod_{j != i} s_j ||x|| for every i, of the same order for all layers: ||h_{i-1}|| carries the factors
    below. Theorem 15 says that large gradients exist, not that there are no larger ones.
    """
    depth, x = 6, torch.ones(4, dtype=torch.float64)
    weights = [2 * padded_identity(4, 4)] * depth
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
            return standardized(y)

        def loss(w: Tensor) -> Tensor:
            return ((chain([w, *(c * v for v in weights[1:])], normalize)(data) - target) ** 2).mean()

        found = float(gradient(loss, c * weights[0]).norm())
        return found, math.prod(batch_norm_running(None, var, 0.0) for var in variances)

    (one, factor), (ten, smaller) = size(1.0), size(10.0)
    measured = {"gradient norm in W_1": one, "weights times 10": ten, "prod 1/sigma": factor, "times 10": smaller}
    scale = close(factor / smaller, 1e4, 1e-6) and close(one / ten, 10.0, 1e-6)
    return given(scale, measured, "the product fell by 1e4, the gradient by 10")
