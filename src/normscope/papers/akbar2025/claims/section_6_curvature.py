"""Sections 4.3, 6 and Appendix A.1.2: the Hessian behind BatchNorm."""

import math

import torch
from torch import Tensor

from normscope.geometry.derivatives import (
    batch_norm_backward,
    batch_norm_hessian,
    batch_norm_hessian_spectrum,
    standardization_core,
    standardized,
)
from normscope.geometry.flow import gradient_flow, gradient_of
from normscope.geometry.hessian import dense_hessian, smallest_eigenvalue_bound
from normscope.geometry.symmetry import symmetry_dimension
from normscope.papers.akbar2025.claims.section_4_symmetries import flat_directions
from normscope.papers.claim import Claims, Measured, Outcome, Verdict, assumes, close, holds, refuted
from normscope.papers.measure import confirm, confirm_bound, gradient, jacobian
from normscope.papers.small_networks import change, hidden_layer, square_loss, weight_of_neuron
from normscope.papers.tensors import ZERO, gaussian, identity, largest, numbers, ones, zeros

CLAIMS = Claims("akbar2025")


def _curvature_at(z: Tensor, target: Tensor, gamma: float, eps: float) -> Tensor:
    """Return the Hessian of ``sum (gamma z^ - y)^2/2`` with respect to the pre-activations, by double backward."""
    return dense_hessian(lambda p: (gamma * standardized(p["z"], eps)[0] - target).square().sum() / 2, {"z": z})


def _weight_curvature(x: Tensor, w: Tensor) -> Tensor:
    """Return the Hessian of ``sum (z^ - y)^2/2`` with respect to the weight, at zero residual."""
    target = standardized(x @ w, 0.0)[0]
    return dense_hessian(lambda p: (standardized(x @ p["w"], 0.0)[0] - target).square().sum() / 2, {"w": w})


@CLAIMS.add("003-H0", "Sections 4.1 and 6.1", smallest_eigenvalue_bound, dense_hessian)
def _zero_eigenvalue() -> Outcome:
    """The Hessian has the eigenvector w with the eigenvalue zero.

    Corrected: H w = -grad L: an eigenvector only where the gradient is zero. Elsewhere w^T H w = 0 and H has a negative
    eigenvalue, at most (h - sqrt(h^2 + 4 ||grad||^2/||w||^2))/2 with h the curvature along the gradient.
    """
    loss, point = weight_of_neuron()
    w, slope, bend = point["w"], gradient_of(loss, point)["w"], dense_hessian(loss, point)
    unit = slope / slope.norm()
    ours = smallest_eigenvalue_bound(float(unit @ bend @ unit), float(slope.norm()), float(w.norm()))
    lowest = float(torch.linalg.eigvalsh(bend)[0])
    confirm("H w + grad L", 0.0, largest(bend @ w + slope))
    confirm_bound("-lambda_min is at least", -lowest, -ours)
    measured = {
        "|H w|": float((bend @ w).norm()),
        "|H w + grad L|": float((bend @ w + slope).norm()),
        "w^T H w": float(w @ bend @ w),
        "smallest eigenvalue": lowest,
        "our bound of it": ours,
    }
    return refuted(measured["|H w|"] > ZERO, measured, "the gradient turns with the weight")


@CLAIMS.add("003-Hmix", "Section 3.2 (Hessian)", dense_hessian)
def _mixed() -> Outcome:
    """The mixed second derivatives between an invariant direction and others vanish as well.

    Corrected: w^T H u = -<grad L, u>: they vanish at stationary points only.
    """
    loss, point = weight_of_neuron()
    slope, bend = gradient_of(loss, point)["w"], dense_hessian(loss, point)
    unit = slope / slope.norm()
    mixed = float(point["w"] @ bend @ unit)
    confirm("w^T H u", -float(slope.norm()), mixed)
    end = gradient_flow(loss, point, 60.0)
    rest = float((dense_hessian(loss, end) @ end["w"]).norm())
    measured = {"w^T H u along the gradient": mixed, "|H w| near the minimum": rest}
    return refuted(abs(mixed) > ZERO, measured, "w^T H u is minus the slope along u")


@CLAIMS.add("003-2D", "Section 4.3 (curvature)", dense_hessian)
def _plane() -> Outcome:
    """For a loss f(angle) of two weights the Hessian has the eigenvalues 0 and f''/r^2.

    Corrected: At stationary points of f. Elsewhere the radial-angular entry is -f'/r^2, and the eigenvalues are (f'' +-
    sqrt(f''^2 + 4 f'^2))/(2 r^2): one of them negative.
    """

    def found(angle: float) -> Tensor:
        w = 2.0 * numbers(math.cos(angle), math.sin(angle))
        return torch.linalg.eigvalsh(dense_hessian(lambda p: torch.sin(torch.atan2(p["w"][1], p["w"][0])), {"w": w}))

    still, moving = found(math.pi / 2), found(0.4)
    first, second = math.cos(0.4), -math.sin(0.4)
    root = math.hypot(second, 2 * first)
    confirm("the smaller eigenvalue", (second - root) / 8, float(moving[0]))
    confirm("the larger eigenvalue", (second + root) / 8, float(moving[1]))
    measured: Measured = {
        "f' = 0: eigenvalues": f"{float(still[0]):.4f}, {float(still[1]):.4f}",
        "f' = 0.92: eigenvalues": f"{float(moving[0]):.4f}, {float(moving[1]):.4f}",
        "f' = 0.92: f''/r^2": second / 4,
    }
    right = close(float(still[0]), -1 / 4) and close(float(still[1]), 0.0)
    needs = right and not close(float(moving[0]), second / 4)
    return assumes(needs, measured, "true where the slope is zero, not elsewhere")


@CLAIMS.add("003-61", "Section 6.1", standardization_core)
def _whitening() -> Outcome:
    """BatchNorm is like whitening its inputs: the largest eigenvalue and the condition number of the Hessian drop.

    Corrected: At zero residual H = (gamma^2/sigma^2) X^T Q X/m: the input covariance deflated along Sigma w, divided by
    w^T Sigma w. Its size follows 1/||w||^2; compare ||w||^2 lambda_max only.
    """
    signs = torch.tensor([[1, 1, 1], [1, 1, -1], [1, -1, 1], [1, -1, -1]], dtype=torch.float64)
    x = torch.cat([signs, -signs]) * numbers(10, 1, 0.1)  # centred, with the covariance diag(100, 1, 0.01) exactly

    def spectrum(w: Tensor) -> Tensor:
        bend = _weight_curvature(x, w) / len(x)
        core = standardization_core(x @ w, 0.0)
        ours = x.mT @ core @ x / len(x) / (x @ w).var(correction=0)
        confirm("the Hessian", 0.0, largest(ours - bend) / largest(bend))
        return torch.linalg.eigvalsh(bend)

    values, small = spectrum(numbers(0, 1, 0)), spectrum(numbers(0, 0.1, 0))
    linear = torch.linalg.eigvalsh(x.mT @ x / len(x))
    measured = {
        "linear: largest eigenvalue": float(linear[2]),
        "linear: condition": float(linear[2] / linear[0]),
        "BN at w = e2: largest": float(values[2]),
        "BN at w = e2: condition of the non-zero ones": float(values[2] / values[1]),
        "BN at w = e2/10: largest": float(small[2]),
    }
    condition = measured["BN at w = e2: condition of the non-zero ones"]
    worse = condition > 0.999 * measured["linear: condition"] and float(values[2]) > 0.999 * float(linear[2])
    return refuted(worse, measured, "one direction is removed; the others keep their spread")


@CLAIMS.add("003-61f", "Section 6.1", standardization_core)
def _fixed_statistics() -> Outcome:
    """With the batch statistics held fixed, the derivative of the output is orthogonal to w, and the Hessian of rank
    one.

    Corrected: With fixed statistics <w, da_n/dw> = z^_n, not 0; orthogonality comes from the moving variance. Over a
    batch the Hessian has the rank of Q X, min(n - 1, m - 2).
    """
    x, w = gaussian(300, 12, 4), gaussian(301, 4)
    values, scale = standardized(x @ w, 0.0)
    fixed = (x - x.mean(0)) / scale  # the paper's derivative, statistics fixed
    moving = jacobian(lambda p: standardized(x @ p, 0.0)[0], w)
    confirm("<w, da/dw> with fixed statistics", 0.0, largest(fixed @ w - values))
    confirm("<w, da/dw>", 0.0, largest(moving @ w))
    rank = int(torch.linalg.matrix_rank(moving.mT @ moving, rtol=1e-10))
    confirm("the rank", min(4 - 1, 12 - 2), rank)
    measured = {"<w, da/dw>, fixed statistics": largest(fixed @ w), "moving": largest(moving @ w), "rank": rank}
    return refuted(largest(fixed @ w) > ZERO and rank != 1, measured, "the part left out is what makes it orthogonal")


@CLAIMS.add("003-61o", "Section 6.1 (negative eigenvalues)", batch_norm_backward)
def _origin() -> Outcome:
    """At zero weights BatchNorm's derivative is not defined.

    Corrected: Only for eps = 0. For eps > 0 the derivative is gamma/sqrt(eps) (I - 11^T/m), large but defined.
    """
    x, target, zero, eps = gaussian(302, 10, 3), gaussian(303, 10), zeros(3), 1e-5
    slope = gradient(lambda w: (standardized(x @ w, eps)[0] - target).square().sum() / 2, zero)
    ours = batch_norm_backward(-target, x @ zero, 1.0, eps) @ x
    confirm("the gradient at zero", 0.0, largest(slope - ours))
    bare = gradient(lambda w: (standardized(x @ w, 0.0)[0] - target).square().sum() / 2, zero)
    defined = bool(bare.isfinite().all())
    measured = {"gradient, eps = 1e-5": float(slope.norm()), "gradient, eps = 0, is a number": defined}
    needs = bool(slope.isfinite().all()) and not defined
    return assumes(needs, measured, "only eps = 0 leaves it undefined", Verdict.FALSE)


@CLAIMS.add("003-dl", "Section 6 (deep linear networks)")
def _deep_linear() -> Outcome:
    """A deep linear network is unchanged if one layer is multiplied by alpha and another divided by it."""
    x, a, b = gaussian(304, 6, 3), gaussian(305, 4, 3), gaussian(306, 2, 4)
    gap = largest(x @ (3 * a).mT @ (b / 3).mT - x @ a.mT @ b.mT)
    return holds(gap < ZERO, {"change": gap}, "the factors cancel in the product")


@CLAIMS.add("003-xl", "Section 6 (deep linear networks)", symmetry_dimension)
def _cross_layer() -> Outcome:
    """BatchNorm breaks the rescaling symmetry between layers and removes its zero eigenvalues.

    Corrected: It moves to (gamma_i, beta_i) -> alpha, next column/alpha (linear or ReLU networks), and gamma_i^2 +
    beta_i^2 - ||V_:i||^2 is conserved; the zero eigenvalues become more. Only BatchNorm without affine part removes it.
    """
    x, target, point = gaussian(307, 24, 3), gaussian(308, 24, 2), hidden_layer(309)
    alpha = numbers(0.2, 3, 1, 7)
    moved = point | {"gamma": alpha * point["gamma"], "beta": alpha * point["beta"], "V": point["V"] / alpha}
    gap = change(point, moved, "batch", x, activation=torch.relu)
    slopes = gradient_of(square_loss(x, target, "batch", torch.relu), point)
    rate = sum(point[name] * slopes[name] for name in ("gamma", "beta")) - (point["V"] * slopes["V"]).sum(0)
    confirm("the rate of gamma^2 + beta^2 - ||V||^2", 0.0, largest(torch.as_tensor(rate)))
    plain, batch = flat_directions("none", torch.relu), flat_directions("batch", torch.relu)
    measured = {
        "change along the symmetry": gap,
        "zero eigenvalues, plain": plain,
        "zero eigenvalues, BatchNorm": batch,
    }
    return refuted(gap < ZERO and batch > plain, measured, "the symmetry moves behind the normalizer")


@CLAIMS.add("003-A12a", "Appendix A.1.2", batch_norm_backward)
def _stationary() -> Outcome:
    """Where sum delta = 0 and sum delta (z - mu) = 0, the gradient dL/dz is zero.

    Corrected: These are the conditions for beta and gamma; then dL/dz = (gamma/s) delta.
    """
    z, delta = numbers(-1.5, -0.5, 0.5, 1.5), numbers(1, -1, -1, 1)
    slope = gradient(lambda x: (standardized(x, 0.0)[0] * delta).sum(), z)
    confirm("the gradient", 0.0, largest(slope - delta / math.sqrt(1.25)))
    measured = {"sum delta": float(delta.sum()), "sum delta z": float(delta @ z), "largest gradient": largest(slope)}
    return refuted(largest(slope) > ZERO, measured, "two equations do not make m numbers zero")


@CLAIMS.add("003-A12b", "Appendix A.1.2", batch_norm_hessian, batch_norm_hessian_spectrum)
def _flat_direction() -> Outcome:
    """Along z^ the second derivative has the eigenvalue (1 - m) gamma^2/sigma^2, which a moving gamma makes zero.

    Corrected: At zero residual H = (gamma^2/s^2) Q^2, Q = I - 11^T/m - z^z^^T/m: exactly flat along z^ at fixed gamma
    for eps = 0, and (gamma^2/s^2)(eps/s^2)^2 for eps > 0.
    """
    z, gamma = gaussian(310, 6), 1.5
    along = {}
    for eps in (0.0, 0.1):
        values, _ = standardized(z, eps)
        bend = _curvature_at(z, gamma * values, gamma, eps)
        spectrum = torch.linalg.eigvalsh(bend)
        confirm("the spectrum", 0.0, largest(spectrum - batch_norm_hessian_spectrum(z, gamma, eps).sort().values))
        along[eps] = float(values @ bend @ values / (values @ values))
    full = gamma**2 / float(z.var(correction=0))
    measured = {
        "along z^, eps = 0": along[0.0],
        "printed": (1 - 6) * full,
        "gamma^2/sigma^2": full,
        "along z^, eps = 0.1": along[0.1],
    }
    return refuted(abs(along[0.0] - (1 - 6) * full) > ZERO, measured, "scaling z changes nothing at any order")


@CLAIMS.add("003-A12m", "Appendix A.1.2", batch_norm_hessian)
def _printed_matrix() -> Outcome:
    """At zero residual the second derivative is (gamma^2/sigma^2)(I - 11^T/m - z^z^^T + I/m).

    Corrected: (gamma^2/s^2) Q^2 with Q = I - 11^T/m - z^z^^T/m; for eps = 0 that is (gamma^2/sigma^2) Q.
    """
    z, gamma = gaussian(311, 6), 1.5
    values, scale = standardized(z, 0.0)
    true = _curvature_at(z, gamma * values, gamma, 0.0)
    eye = identity(6)
    printed = gamma**2 / scale**2 * (eye - 1 / 6 - torch.outer(values, values) + eye / 6)
    ours = batch_norm_hessian(z, zeros(6), ones(6), gamma, 0.0)
    confirm("the second derivative", 0.0, largest(ours - true))
    measured = {"error as printed": largest(printed - true), "largest entry": largest(true)}
    return refuted(largest(printed - true) > ZERO, measured, "1/m is lost at z^z^^T")


@CLAIMS.add("003-A12e", "Appendix A.1.2", batch_norm_hessian_spectrum)
def _spectrum() -> Outcome:
    """Finally: one zero eigenvalue for the shift, one for the scale, and m - 2 equal to gamma^2/sigma^2.

    Corrected: True of the pre-activations at zero residual and eps = 0.
    """
    z, gamma = gaussian(312, 7), 0.8
    bend = _curvature_at(z, gamma * standardized(z, 0.0)[0], gamma, 0.0)
    values = torch.linalg.eigvalsh(bend)
    full = gamma**2 / float(z.var(correction=0))
    flat, equal = (int(((values - value).abs() < ZERO).sum()) for value in (0.0, full))
    measured = {"zero eigenvalues": flat, "equal to gamma^2/sigma^2": equal, "m": 7}
    return holds(flat == 2 and equal == 5, measured, "a projector times a number")


@CLAIMS.add("003-A12c", "Appendix A.1.2", standardization_core)
def _weight_spectrum() -> Outcome:
    """The Hessian of the weights has n - 1 positive eigenvalues, all equal to gamma^2/sigma^2.

    Corrected: It is (gamma^2/sigma^2) X^T Q X: of rank min(n - 1, m - 2) at most, with the spread of the inputs.
    """
    counts, least, most = {}, 0.0, 0.0
    for m in (4, 20):
        values = torch.linalg.eigvalsh(_weight_curvature(gaussian(313, m, 5), gaussian(314, 5)))
        positive = values[values > 1e-9 * values[-1]]
        counts[m], least, most = len(positive), float(positive[0]), float(positive[-1])
        confirm("the rank", min(5 - 1, m - 2), counts[m])
    measured = {"n": 5, "positive, m = 4": counts[4], "positive, m = 20": counts[20], "least": least, "most": most}
    return refuted(counts[4] != 4 or not close(least, most), measured, "the inputs shape the curvature")


@CLAIMS.add("003-A12d", "Appendix A.1.2", batch_norm_hessian)
def _further_terms() -> Outcome:
    """Where delta is not zero there are further terms in delta; they are not given.

    Corrected: - (gamma/(m s^2)) (z^ (Q delta)^T + (Q delta) z^^T + (sum delta z^) Q), for every eps, beside
    (gamma^2/s^2) Q diag(l'') Q.
    """
    z, target, gamma = gaussian(315, 6), gaussian(316, 6), 1.5
    errors = {}
    for eps in (0.0, 0.1):
        delta = gamma * standardized(z, eps)[0] - target
        true = _curvature_at(z, target, gamma, eps)
        errors[eps] = largest(batch_norm_hessian(z, delta, ones(6), gamma, eps) - true)
        confirm("the second derivative", 0.0, errors[eps])
    first = batch_norm_hessian(z, zeros(6), ones(6), gamma, 0.0)
    further = largest(_curvature_at(z, target, gamma, 0.0) - first)
    measured = {"largest further term": further, "our error, eps = 0": errors[0.0], "our error, eps = 0.1": errors[0.1]}
    return holds(further > ZERO, measured, "there are such terms, given in the corrected form")
