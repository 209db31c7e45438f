"""Section 3 and Appendix A.1.1: what the normalizers compute, and their gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.geometry.derivatives import (
    batch_norm_backward,
    layer_norm_backward,
    standardization_core,
    standardized,
    weight_norm_gradients,
)
from normscope.geometry.flow import Point, gradient_of
from normscope.geometry.hessian import dense_hessian
from normscope.geometry.symmetry import batch_norm_orbit
from normscope.papers.claim import Claims, Outcome, close, holds, refuted
from normscope.papers.measure import confirm, gradient, jacobian
from normscope.papers.small_networks import change, hidden_layer, inner, square_loss
from normscope.papers.tensors import ZERO, gaussian, identity, largest

CLAIMS = Claims("akbar2025")


@CLAIMS.add("003-BN1", "Section 3.1", standardized)
def _unit_variance() -> Outcome:
    """The values BatchNorm normalizes have mean zero and variance one over the batch, with eps in the root.

    Corrected: The variance is sigma^2/(sigma^2 + eps): one only for eps = 0.
    """
    z, eps = gaussian(1, 32, 1), 0.1
    values = F.batch_norm(z, None, None, training=True, eps=eps)
    variance, spread = float(values.var(correction=0)), float(z.var(correction=0))
    confirm("the variance", spread / (spread + eps), variance)
    measured = {"eps": eps, "mean": float(values.mean()), "variance": variance}
    return refuted(not close(variance, 1.0), measured, "eps takes its share of the variance")


@CLAIMS.add("003-sgn", "Section 3.1", standardized)
def _sign() -> Outcome:
    """A negative factor on a neuron's pre-activations flips the sign of what BatchNorm normalizes; with gamma flipped
    too, the output is the same.
    """
    x = gaussian(2, 16, 3)
    point = hidden_layer(3)
    turned = point | {name: -point[name] for name in ("W", "b", "gamma")}
    z = x @ point["W"].mT
    flipped = largest(standardized(-3 * z, 0.0)[0] + standardized(z, 0.0)[0])
    same = change(point, turned, "batch", x)
    measured = {"|BN(-3z) + BN(z)|": flipped, "change of the output with gamma flipped": same}
    return holds(max(flipped, same) < ZERO, measured, "the standard deviation knows no sign")


@CLAIMS.add("003-bias", "Section 3.1", batch_norm_orbit)
def _bias() -> Outcome:
    """A bias in front of BatchNorm has no effect: the batch mean takes it away.

    Corrected: True for batch statistics and every eps; with running statistics a bias changed afterwards moves the
    output.
    """
    x = gaussian(4, 16, 3)
    point = hidden_layer(5)
    moved = change(point, point | {"b": point["b"] + 7.0 * gaussian(6, 4)}, "batch", x, eps=0.1)
    slope = largest(gradient_of(square_loss(x, gaussian(7, 16, 2), "batch", eps=0.1), point)["b"])
    measured = {"change of the output": moved, "gradient of the bias": slope}
    return holds(max(moved, slope) < ZERO, measured, "a constant over the batch is its mean")


@CLAIMS.add("003-Eq1", "Equation (1)", batch_norm_backward)
def _equation_1() -> Outcome:
    """With delta the gradient with respect to BatchNorm's output, dL/dz_n = (m delta_n - sum delta - z^_n sum delta
    z^)/(m sigma).

    Corrected: The factor gamma is missing: dL/dz_n = gamma/(m s) (m delta_n - sum delta - z^_n sum delta z^), exact for
    eps > 0 too with s = sqrt(sigma^2 + eps). The end of Appendix A.1.1 has it.
    """
    z, delta, gamma, eps = gaussian(8, 7), gaussian(9, 7), 2.3, 1e-3
    true = gradient(lambda x: (gamma * standardized(x, eps)[0] * delta).sum(), z)
    values, scale = standardized(z, eps)
    printed = (delta - delta.mean() - values * (delta * values).mean()) / scale
    ratio = true / printed
    confirm("the gradient", 0.0, largest(batch_norm_backward(delta, z, gamma, eps) - true))
    measured = {"gamma": gamma, "true/printed, least": float(ratio.min()), "true/printed, most": float(ratio.max())}
    return refuted(largest(ratio - 1) > ZERO, measured, "the printed gradient is too small by the factor gamma")


@CLAIMS.add("003-Eq1s", "Equation (1)", batch_norm_backward)
def _sums_to_zero() -> Outcome:
    """The gradient with respect to the pre-activations of a unit sums to zero over the batch."""
    z, delta = gaussian(10, 9, 3), gaussian(11, 9, 3)
    slopes = gradient(lambda x: (standardized(x, 1e-5)[0] * delta).sum(), z)
    measured = {"largest sum": largest(slopes.sum(0)), "largest entry": largest(slopes)}
    return holds(measured["largest sum"] < ZERO, measured, "a common shift of the batch changes nothing")


@CLAIMS.add("003-LNb", "Section 3.2 (layer norm)", layer_norm_backward)
def _layer_norm_gradient() -> Outcome:
    """LayerNorm's gradient is BatchNorm's with sums over the neurons: (d delta_i - sum_j delta_j - z^_j sum_j delta_j
    z^_j)/(d sigma).

    Corrected: dL/dz_i = (d gamma_i delta_i - sum_j gamma_j delta_j - z^_i sum_j gamma_j delta_j z^_j)/(d s): the index
    before the last sum is i, and gamma_j stands inside the sums.
    """
    z, delta, gamma, eps = gaussian(12, 6), gaussian(13, 6), 1.0 + 0.3 * gaussian(14, 6), 1e-3
    true = gradient(lambda x: (gamma * standardized(x, eps)[0] * delta).sum(), z)
    values, scale = standardized(z, eps)
    centred = delta - delta.mean()
    printed = (centred - (delta * values.square()).mean()) / scale  # z^_j under the sum over j
    index = (centred - values * (delta * values).mean()) / scale
    errors = {
        "error as printed": largest(printed - true),
        "error with z^_i": largest(index - true),
        "error with z^_i and gamma_i in front": largest(gamma * index - true),
    }
    corrected = largest(layer_norm_backward(delta, z, gamma, eps) - true)
    confirm("the gradient", 0.0, corrected)
    measured = errors | {"error, corrected": corrected}
    return refuted(min(errors.values()) > ZERO, measured, "no reading of the printed formula is the gradient")


@CLAIMS.add("003-LNbs", "Section 3.2 (layer norm)", layer_norm_backward)
def _layer_sums_to_zero() -> Outcome:
    """LayerNorm's gradient with respect to the pre-activations of a sample sums to zero over the neurons."""
    z, delta, gamma = gaussian(15, 5, 6), gaussian(16, 5, 6), gaussian(17, 6)
    slopes = gradient(lambda x: (F.layer_norm(x, (6,), gamma) * delta).sum(), z)
    measured = {"largest sum": largest(slopes.sum(1)), "largest entry": largest(slopes)}
    return holds(measured["largest sum"] < ZERO, measured, "a common shift of the layer changes nothing")


@CLAIMS.add("003-1/c", "Section 3.2", dense_hessian)
def _inverse_scale() -> Outcome:
    """If the weights in front of BatchNorm grow by a factor c, their gradient shrinks by 1/c, and the curvature by
    1/c^2.

    Corrected: Exact for eps = 0; for eps > 0 if eps grows by c^2 at the same time.
    """
    x, target, c = gaussian(18, 20, 3), gaussian(19, 20, 2), 3.0
    whole = hidden_layer(20)
    rest = {name: value for name, value in whole.items() if name not in ("W", "b")}

    def at(weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        def loss(p: Point) -> Tensor:
            return square_loss(x, target, "batch", eps=eps)(rest | dict(p))

        return gradient_of(loss, {"W": weight})["W"], dense_hessian(loss, {"W": weight})

    (slope, bend), (slope_c, bend_c) = at(whole["W"], 0.0), at(c * whole["W"], 0.0)
    stabilized, stabilized_c = at(whole["W"], 0.1), at(c * whole["W"], c**2 * 0.1)
    confirm("the gradient with eps scaled", 0.0, largest(c * stabilized_c[0] - stabilized[0]))
    measured = {
        "c": c,
        "gradient, error": largest(c * slope_c - slope),
        "Hessian, error": largest(c**2 * bend_c - bend),
        "gradient, error at eps = 0.1": largest(c * at(c * whole["W"], 0.1)[0] - stabilized[0]),
    }
    exact = max(measured["gradient, error"], measured["Hessian, error"]) < ZERO
    return holds(exact, measured, "the loss is a function of the direction")


@CLAIMS.add("003-WNd", "Section 3.2 (weight norm)", weight_norm_gradients)
def _weight_norm() -> Outcome:
    """For w = g v/||v||: dL/dv_k = dL/dw_k dw_k/dv_k, and (Section 4.3) dL/dg = <dL/dw, v/||v||>/||v||.

    Corrected: grad_v = (g/||v||)(I - v^v^^T) grad_w: every w_j depends on v_k; dL/dg = <grad_w, v>/||v||, without a
    second factor 1/||v||.
    """
    v, g, back = gaussian(21, 1, 4), torch.tensor([1.7], dtype=torch.float64), gaussian(22, 1, 4)
    to_v = gradient(lambda p: (g[:, None] * p / p.norm() * back).sum(), v)
    to_g = gradient(lambda p: (p[:, None] * v / v.norm() * back).sum(), g)
    ours = weight_norm_gradients(v, g, back)
    confirm("the gradient of v", 0.0, largest(ours[0] - to_v))
    confirm("the gradient of g", float(ours[1]), float(to_g))
    unit, length = v / v.norm(), float(v.norm())
    diagonal = back * float(g) / length * (1 - unit.square())
    printed_g = float((back * unit).sum()) / length
    measured = {"grad_v, error": largest(diagonal - to_v), "dL/dg, printed": printed_g, "dL/dg, true": float(to_g)}
    wrong = measured["grad_v, error"] > ZERO and not close(printed_g, float(to_g))
    return refuted(wrong, measured, "both miss a part of the derivative")


@CLAIMS.add("003-A11", "Appendix A.1.1", standardization_core)
def _jacobian() -> Outcome:
    """dz^_n/dz_k = delta_nk/sigma - 1/(m sigma) - (z_n - mu)(z_k - mu)/sigma^3.

    Corrected: The last term is divided by m: (delta_nk - 1/m - z^_n z^_k/m)/s. The final display of the appendix is
    right.
    """
    z, eps = gaussian(23, 6), 1e-3
    true = jacobian(lambda x: standardized(x, eps)[0], z)
    values, scale = standardized(z, eps)
    printed = (identity(6) - 1 / 6 - torch.outer(values, values)) / scale
    delta = gaussian(24, 6)
    middle = (delta - delta.mean() - values * (delta * values).sum()) / scale
    final = (delta - delta.mean() - values * (delta * values).mean()) / scale
    confirm("the Jacobian", 0.0, largest(standardization_core(z, eps) / scale - true))
    measured = {
        "error as printed": largest(printed - true),
        "error with 1/m": largest(standardization_core(z, eps) / scale - true),
        "error of the display before the last": largest(middle - delta @ true),
        "error of the final display": largest(final - delta @ true),
    }
    wrong = measured["error as printed"] > ZERO and measured["error of the final display"] < ZERO
    return refuted(wrong, measured, "1/m is lost in the first display and found again in the last")


@CLAIMS.add("003-A11c", "Appendix A.1.1", batch_norm_backward)
def _chain_rule() -> Outcome:
    """By the chain rule dL/dz_n = dL/da_n da_n/dz_n, with the sample's own output only.

    Corrected: Every output of the batch depends on z_n: dL/dz_n = sum_k dL/da_k da_k/dz_n, as the appendix uses later.
    """
    z, delta = gaussian(25, 6), gaussian(26, 6)
    full = jacobian(lambda x: standardized(x, 0.0)[0], z)
    true, own = delta @ full, delta * full.diagonal()
    confirm("the gradient", 0.0, largest(batch_norm_backward(delta, z, 1.0, 0.0) - true))
    measured = {"error": largest(own - true), "largest gradient": largest(true)}
    return refuted(measured["error"] > ZERO, measured, "the statistics tie the samples together")


@CLAIMS.add("003-A11w", "Appendix A.1.1", batch_norm_backward)
def _weight_gradient() -> Outcome:
    """The gradient of a weight is gamma/sigma times (sum delta x - mean of delta times sum x - mean of delta z^ times
    sum z^ x), and its inner product with the weights is zero.

    Corrected: Exact with s = sqrt(sigma^2 + eps) for sigma; orthogonal to the weights for eps = 0.
    """
    x, target, w, gamma = gaussian(27, 12, 4), gaussian(28, 12), gaussian(29, 4), 1.4
    true = gradient(lambda p: (gamma * standardized(x @ p, 0.0)[0] - target).square().sum() / 2, w)
    values, scale = standardized(x @ w, 0.0)
    delta = gamma * values - target
    printed = gamma / scale * (delta @ x - delta.mean() * x.sum(0) - (delta * values).mean() * (values @ x))
    measured = {"error": largest(printed - true), "<w, gradient>": inner({"w": w}, {"w": true}, "w")}
    exact = max(measured["error"], abs(measured["<w, gradient>"])) < ZERO
    return holds(exact, measured, "the final display carries over to the weights")
