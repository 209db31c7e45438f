"""Section 4.3 and Appendices B and C: networks as functions of their weights."""

import math

import torch
from torch import Tensor

from normscope.core.value import Kind, Value
from normscope.lipschitz.weights.pointwise import dense_weight_norm
from normscope.lipschitz.weights.theorem_12 import theorem_12
from normscope.operators.normalizers.batch_norm import batch_norm_batch_at
from normscope.operators.normalizers.layer_norm import layer_norm_at, layer_norm_range
from normscope.papers.chains import EPS, certified, chain, layer_norm, of_weight, padded_identity, standardized
from normscope.papers.claim import Claims, Outcome, close, equality, given, holds
from normscope.papers.measure import (
    Function,
    confirm,
    confirm_bound,
    gaussian,
    gradient,
    jacobian_norm,
    norm,
    numbers,
    quotient,
)
from normscope.papers.than2025.extremal.theorem_13_networks import parts, theorem_13, theorem_13_printed, total_input

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
            confirm_bound("the range of LayerNorm", layer_norm_range(torch.ones(6), None).radius, float(h.norm()))
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
    return given(grows and least > 0, measured, "A_{i-1} is infinite on R^n")


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
            local = [layer_norm_at(y, torch.ones(6), EPS) for y in totals[i:]]
            after = certified([norm(w) for w in weights[i + 1 :]])
            printed = theorem_12(Value.of(1.0, Kind.CERTIFIED), after, certified(local)).value  # A = 1: of y_i
            ratios.append(jacobian_norm(_rest(weights, i), totals[i]) / printed)
    linear = chain([padded_identity(5, 5)] * 2, layer_norm, lambda y: y)
    tight = jacobian_norm(lambda y: linear(y), torch.zeros(5, dtype=torch.float64)) * EPS
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
        return ((torch.relu(standardized(x @ w.mT)) - target) ** 2).mean()

    sizes = {c: float(gradient(loss, c * weight).norm()) for c in (1.0, 0.1, 1e-3)}
    measured = {f"gradient norm at c W, c = {c:g}": s for c, s in sizes.items()}
    inverse = all(close(s * c, sizes[1.0], 1e-6) for c, s in sizes.items())
    return given(inverse, measured, "in training the gradient grows as 1/c")


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
    return Outcome(equality(printed, true), measured, "h = (0, 0, 1), widths 3, 2, 1, a = 5")


@CLAIMS.add("001-T13(9)", "Theorem 13 (9)", total_input)
def _theorem_13_totals() -> Outcome:
    """Of that network the constant in y_i is a_{i+1} ... a_K.

    Corrected: As stated, over all y_i; over those some x reaches it is an upper bound.
    """
    widths, scales, x = (3, 4, 3, 6, 2), (1.0, 2.0, 0.5, 3.0), torch.ones(3, dtype=torch.float64)
    weights = [w.detach() for w in theorem_13(widths, scales, 1, x).module.parameters()]

    def rest(y: Tensor) -> Tensor:
        return chain(weights[1:])(torch.relu(y))

    attained = jacobian_norm(rest, torch.ones(4, dtype=torch.float64))
    points = gaussian(1500, 200, 4)
    pairs = max(quotient(rest, a, b) for a, b in zip(points[:100], points[100:], strict=True))
    printed = total_input(parts(widths, scales, 1, x, torch.float64))[0].value
    measured = {"printed": printed, "attained": attained, "largest quotient of 100 pairs": pairs}
    return holds(close(attained, printed) and pairs <= printed, measured, "attained and never exceeded")
