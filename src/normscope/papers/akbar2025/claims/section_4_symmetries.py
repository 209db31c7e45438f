"""Section 4 (and 2.1, 2.2, Table 1): what normalizers leave unchanged, and how many directions that makes."""

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.geometry.conservation import conserved
from normscope.geometry.derivatives import weight_norm_gradients
from normscope.geometry.flow import Point, gradient_of
from normscope.geometry.hessian import dense_hessian, nullity
from normscope.geometry.symmetry import (
    Kind,
    batch_norm_orbit,
    layer_norm_orbit,
    radial_derivative,
    scale_deviation,
    symmetry_dimension,
)
from normscope.operators.normalizers.group_norm import group_norm_at
from normscope.operators.normalizers.weight_norm import weight_norm_effective
from normscope.papers.claim import Claims, Outcome, assumes, close, holds, refuted
from normscope.papers.measure import Function, confirm, gradient, jacobian
from normscope.papers.small_networks import change, hidden_layer, inner, normalized, output, square_loss
from normscope.papers.tensors import ZERO, gaussian, identity, largest, numbers

CLAIMS = Claims("akbar2025")


@CLAIMS.add("003-P4.1a", "Proposition 4.1 (first form), Section 2.1", batch_norm_orbit)
def _first_form() -> Outcome:
    """(W, b, gamma) -> (cW, cb, gamma/c) in front of BatchNorm leaves the network unchanged.

    Corrected: gamma stays: (W, b) -> (cW, cb). The paper takes its first form back within the proof.
    """
    point, c = hidden_layer(1), 7.0
    scaled = point | {"W": c * point["W"], "b": c * point["b"]}
    wrong = change(point, scaled | {"gamma": point["gamma"] / c}, "batch")
    right = change(point, scaled, "batch")
    confirm("the output with gamma kept", 0.0, right)
    measured = {"c": c, "change with gamma/c": wrong, "change with gamma kept": right}
    return refuted(wrong > ZERO, measured, "the output scales with gamma")


@CLAIMS.add("003-P4.1b", "Proposition 4.1", batch_norm_orbit, scale_deviation)
def _scale_invariance() -> Outcome:
    """(W, b) -> (cW, cb) with c > 0 in front of BatchNorm leaves the output unchanged for every input.

    Corrected: Needs eps = 0 (or eps -> c^2 eps) and batch statistics; in evaluation mode the running statistics must go
    along, (mean, var) -> (c mean, c^2 var). One factor per neuron and any bias will do. With eps > 0 the normalized
    values scale by rho(c) = sqrt((1 + eps/sigma^2)/(1 + eps/(c sigma)^2)).
    """
    point = hidden_layer(2)
    weight, bias = batch_norm_orbit(point["W"], numbers(0.1, 2, 3, 70), gaussian(3, 4))
    exact = change(point, point | {"W": weight, "b": bias}, "batch")
    ten = point | {"W": 10 * point["W"], "b": 10 * point["b"]}
    z, eps = gaussian(4, 20, 1), 0.05
    for c in (0.1, 0.5, 2.0, 10.0, 100.0):
        ratio = float((normalized("batch", c * z, eps) / normalized("batch", z, eps)).mean())
        confirm("rho", scale_deviation(c, float(z.std(correction=0)), eps), ratio)
    mean, var = z.mean(0), z.var(0, correction=0)
    frozen = F.batch_norm(z, mean, var)
    stale = largest(F.batch_norm(2 * z, mean, var) - frozen)
    moved = largest(F.batch_norm(2 * z, 2 * mean, 4 * var, eps=4e-5) - frozen)
    measured = {
        "change, eps = 0, a factor per neuron and any bias": exact,
        "change, eps = 1e-5, c = 10": change(point, ten, "batch", eps=1e-5),
        "change, running statistics, c = 2": stale,
        "change, running statistics and eps scaled along": moved,
    }
    needs = max(exact, moved) < ZERO < min(stale, measured["change, eps = 1e-5, c = 10"])
    return assumes(needs, measured, "exact without eps and with the statistics of the batch, not otherwise")


@CLAIMS.add("003-C411", "Corollary 4.1.1", radial_derivative)
def _orthogonal() -> Outcome:
    """In front of BatchNorm <grad_W L, W> + <grad_b L, b> = 0.

    Corrected: For eps = 0 every neuron alone: <grad_{w_i} L, w_i> = 0 and dL/db_i = 0. For eps > 0: <grad_{w_i} L, w_i>
    = (eps/(sigma_i^2 + eps)) gamma_i dL/dgamma_i, and still dL/db_i = 0.
    """
    x, target, point = gaussian(5, 24, 3), gaussian(6, 24, 2), hidden_layer(7)
    slopes = {eps: gradient_of(square_loss(x, target, "batch", eps=eps), point) for eps in (0.0, 0.1)}
    each = (slopes[0.0]["W"] * point["W"]).sum(1)
    stabilized = (slopes[0.1]["W"] * point["W"]).sum(1)
    variance = (x @ point["W"].mT).var(0, correction=0)
    ours = radial_derivative(variance, point["gamma"], slopes[0.1]["gamma"], 0.1)
    confirm("the radial derivative for eps = 0.1", 0.0, largest(ours - stabilized))
    confirm("the gradient of the bias", 0.0, largest(slopes[0.1]["b"]))
    measured = {
        "sum, eps = 0": inner(slopes[0.0], point, "W", "b"),
        "largest of a neuron, eps = 0": largest(each),
        "sum, eps = 0.1": inner(slopes[0.1], point, "W", "b"),
    }
    return holds(abs(measured["sum, eps = 0"]) < ZERO, measured, "the loss does not depend on the scale")


@CLAIMS.add("003-met", "Section 4.1 (metric)")
def _metric() -> Outcome:
    """The metric g_y(D, D') = D^T D'/y^T y is the same at k y for k D, k D'."""
    y, one, two = gaussian(8, 5), gaussian(9, 5), gaussian(10, 5)
    before = float(one @ two / (y @ y))
    after = float((3 * one) @ (3 * two) / ((3 * y) @ (3 * y)))
    return holds(close(before, after), {"at y": before, "at 3y": after}, "the factors cancel")


@CLAIMS.add("003-sph", "Section 4.1 (sphere)", radial_derivative)
def _sphere() -> Outcome:
    """On the unit sphere of weights the gradient is the Euclidean one without its radial part, and BatchNorm has
    already removed that part.
    """
    x, target, w = gaussian(11, 24, 4), gaussian(12, 24), gaussian(13, 4)
    w = w / w.norm()
    slope = gradient(lambda p: (normalized("batch", (x @ p)[:, None])[:, 0] - target).square().mean(), w)
    tangent = slope - (slope @ w) * w
    measured = {"gradient": float(slope.norm()), "its radial part": float((slope - tangent).norm())}
    return holds(measured["its radial part"] < ZERO, measured, "the gradient is tangent to the sphere")


@CLAIMS.add("003-nat", "Section 4.3 (natural gradient)", batch_norm_orbit)
def _fisher() -> Outcome:
    """The Fisher information is degenerate along the scale of weights in front of BatchNorm."""
    x, point = gaussian(14, 24, 3), hidden_layer(15)
    slopes = jacobian(lambda w: output(point | {"W": w.reshape(4, 3)}, x, "batch"), point["W"].reshape(-1))
    fisher = slopes.mT @ slopes / len(x)
    along = largest(fisher @ point["W"].reshape(-1))
    each = [largest(fisher.reshape(12, 4, 3)[:, i] @ point["W"][i]) for i in range(4)]
    measured = {"|F W|": along, "|F w_i|, worst neuron": max(each), "|F|": largest(fisher)}
    return holds(max(along, *each) < ZERO, measured, "outputs that do not move carry no information")


@CLAIMS.add("003-ex41", "Section 4.1 (example)")
def _example_linear() -> Outcome:
    """(w.x - t)^2/2 has the Hessian x x^T: the eigenvalue ||x||^2 along x and zeros elsewhere."""
    x = gaussian(16, 4)
    found = dense_hessian(lambda p: (p["w"] @ x - 0.7).square() / 2, {"w": gaussian(17, 4)})
    error = largest(found - torch.outer(x, x))
    top, flat = float(torch.linalg.eigvalsh(found)[-1]), nullity(found)
    measured = {"error": error, "||x||^2": float(x @ x), "largest eigenvalue": top, "zeros": flat}
    return holds(error < ZERO and flat == 3, measured, "the Hessian has rank one")


@CLAIMS.add("003-ex41b", "Section 4.1 (example)")
def _example_scalar() -> Outcome:
    """With a scalar input and one weight, BatchNorm's output does not depend on the weight.

    Corrected: It depends on the weight's sign, and on nothing else.
    """
    x = gaussian(18, 12, 1)
    at = {w: normalized("batch", w * x + 0.3) for w in (1.0, 5.0, -5.0)}
    measured = {"w = 5 against w = 1": largest(at[5.0] - at[1.0]), "w = -5 against w = 1": largest(at[-5.0] - at[1.0])}
    mirrored = largest(at[-5.0] + at[1.0])
    confirm("the output for a weight of the other sign", 0.0, mirrored)
    return holds(measured["w = 5 against w = 1"] < ZERO, measured, "the scale is taken away; the sign is not")


@CLAIMS.add("003-P4.2", "Proposition 4.2", layer_norm_orbit, scale_deviation)
def _layer_scale() -> Outcome:
    """(W, b) -> (cW, cb) with c > 0 in front of LayerNorm leaves the output unchanged; the proof keeps eps in sigma.

    Corrected: Needs eps = 0, or eps -> c^2 eps: sigma' = c sigma is wrong with eps inside.
    """
    point = hidden_layer(19)
    scaled = point | {"W": 3 * point["W"], "b": 3 * point["b"]}
    x = gaussian(100, 24, 3)
    along = largest(output(scaled, x, "layer", eps=0.9) - output(point, x, "layer", eps=0.1))
    measured = {
        "change, eps = 0": change(point, scaled, "layer"),
        "change, eps = 1e-5": change(point, scaled, "layer", eps=1e-5),
        "change, eps = 0.1": change(point, scaled, "layer", eps=0.1),
        "change, eps scaled along": along,
    }
    needs = max(measured["change, eps = 0"], along) < ZERO < measured["change, eps = 1e-5"]
    return assumes(needs, measured, "exact without eps only")


@CLAIMS.add("003-LNr", "Section 4.2", layer_norm_orbit)
def _single_row() -> Outcome:
    """LayerNorm does not undo the scaling of some rows only: all weights of the layer need the same factor."""
    point = hidden_layer(20)
    factors = numbers(3, 1, 1, 1)
    one = point | {"W": point["W"] * factors[:, None], "b": point["b"] * factors}
    measured = {
        "change, one row": change(point, one, "layer"),
        "change, all rows": change(point, point | {"W": 3 * point["W"], "b": 3 * point["b"]}, "layer"),
    }
    kept = measured["change, all rows"] < ZERO < measured["change, one row"]
    return holds(kept, measured, "the mean and the variance mix the rows")


@CLAIMS.add("003-LNs", "Section 4.2", layer_norm_orbit, conserved)
def _layer_shifts() -> Outcome:
    """Apart from the scale, LayerNorm is invariant to a common shift of the bias only.

    Corrected: To W -> W + 1 v^T and b -> b + d 1: inputs + 1 dimensions. Gradient flow conserves 1^T W and 1^T b.
    """
    x, target, point = gaussian(21, 24, 3), gaussian(22, 24, 2), hidden_layer(23)
    one, row = numbers(1), gaussian(24, 1, 3)
    weight, bias = layer_norm_orbit(point["W"], point["b"], one, row, numbers(0.8))
    slopes = gradient_of(square_loss(x, target, "layer"), point)
    measured = {
        "change, b + 0.8": change(point, point | {"b": point["b"] + 0.8}, "layer"),
        "change, b + a vector": change(point, point | {"b": point["b"] + gaussian(25, 4)}, "layer"),
        "change, W + 1 v^T": change(point, point | {"W": point["W"] + row}, "layer"),
        "sum of the weight gradient over rows": largest(slopes["W"].sum(0)),
    }
    confirm("the output along the orbit", 0.0, change(point, point | {"W": weight, "b": bias}, "layer"))
    confirm("the sum of the gradient", 0.0, measured["sum of the weight gradient over rows"])
    because = "a row added to every row shifts a sample as a whole"
    return refuted(measured["change, W + 1 v^T"] < ZERO, measured, because)


@CLAIMS.add("003-P4.3", "Proposition 4.3, Sections 2.2 and 3.1", weight_norm_effective)
def _weight_norm_symmetry() -> Outcome:
    """(v, g) -> (alpha v, g/alpha) gives the same weight w = g v/||v||.

    Corrected: v -> alpha v with g fixed (and (v, g) -> (-v, -g)); with g/alpha the weight shrinks by 1/alpha.
    """
    v, g, alpha = gaussian(26, 1, 5), numbers(1.7), 2.5
    before = weight_norm_effective(v, g)
    printed = float((weight_norm_effective(alpha * v, g / alpha) - before).norm())
    fixed = float((weight_norm_effective(alpha * v, g) - before).norm())
    confirm("||w' - w||", 1.7 * (1 - 1 / alpha), printed)
    confirm("the weight with g fixed", 0.0, fixed)
    confirm("the weight with both signs turned", 0.0, float((weight_norm_effective(-v, -g) - before).norm()))
    measured = {"||w||": float(before.norm()), "||w' - w|| with g/alpha": printed, "||w' - w|| with g fixed": fixed}
    return refuted(printed > ZERO, measured, "||alpha v|| cancels alpha already")


@CLAIMS.add("003-P43g", "Section 4.3", weight_norm_gradients)
def _weight_norm_identity() -> Outcome:
    """<v, grad_v L> = g dL/dg: the gradient is orthogonal to (v, -g).

    Corrected: <v, grad_v L> = 0: the gradient is orthogonal to (v, 0).
    """
    x, target, v, g = gaussian(27, 20, 5), gaussian(28, 20), gaussian(29, 1, 5), numbers(1.7)

    def loss(p: Point) -> Tensor:
        weight = p["g"] * p["v"] / p["v"].norm()
        return (torch.tanh(x @ weight[0]) - target).square().mean()

    slopes = gradient_of(loss, {"v": v, "g": g})
    weight_gradient = gradient(lambda w: (torch.tanh(x @ w[0]) - target).square().mean(), g * v / v.norm())
    ours = weight_norm_gradients(v, g, weight_gradient)
    confirm("the gradient of v", 0.0, largest(ours[0] - slopes["v"]))
    radial, gain = float((v * slopes["v"]).sum()), float(g * slopes["g"])
    confirm("<v, grad_v L>", 0.0, radial)
    measured = {"<v, grad_v L>": radial, "g dL/dg": gain, "along (v, -g)": radial - gain}
    return refuted(abs(radial - gain) > ZERO, measured, "one side is always zero, the other is not")


def flat_directions(kind: Kind, activation: Function, *, affine: bool = True, groups: int = 1, seed: int = 0) -> int:
    """Return the nullity of the Hessian at an interpolating minimum: 4 neurons (8 in groups), 3 inputs, 2 outputs.

    >>> flat_directions("none", torch.relu)
    4
    """
    x = gaussian(seed + 50, 60, 3)
    teacher = hidden_layer(seed + 60, neurons=4 if groups == 1 else 8, affine=affine and kind != "none")
    loss = square_loss(x, output(teacher, x, kind, activation, groups=groups), kind, activation, groups=groups)
    return nullity(dense_hessian(loss, teacher))


@CLAIMS.add("003-grp", "Section 4.1 (geometry)", symmetry_dimension, nullity)
def _group() -> Outcome:
    """The symmetry group of a network with k BatchNorm layers is (R+)^k: one dimension per layer.

    Corrected: (R+ x R) per neuron: a scale and a bias each, and for affine BatchNorm before ReLU one more, (gamma_i,
    beta_i) against the next layer's column.
    """
    one = flat_directions("batch", torch.relu, affine=False)
    confirm("the nullity", symmetry_dimension("batch", 4, 3, affine=False, homogeneous=True), one)
    # with few samples some kinks are not seen, and the Hessian has zeros that are no symmetries
    x, below, above = gaussian(70, 300, 3), hidden_layer(71), hidden_layer(77, inputs=4)
    point = {f"{name}1": below[name] for name in ("W", "b", "gamma", "beta")} | above

    def network(p: Point) -> Tensor:
        first = {name: p[f"{name}1"] for name in ("W", "b", "gamma", "beta")}
        hidden = output(first | {"V": eye, "c": eye[0] * 0}, x, "batch", torch.relu)
        return output(p, hidden, "batch", torch.relu)

    eye = identity(4)
    target = network(point)
    deep = nullity(dense_hessian(lambda p: (network(p) - target).square().mean(), point))
    ours = sum(symmetry_dimension("batch", 4, inputs, homogeneous=True) for inputs in (3, 4))
    confirm("the nullity of two layers", ours, deep)
    measured = {"one layer of 4, no affine part": one, "printed": 1, "two layers of 4, affine": deep, "printed, two": 2}
    return refuted(one != 1 and deep != 2, measured, "every neuron has its own scale and its own bias")


@CLAIMS.add("003-T1", "Table 1", symmetry_dimension, nullity)
def _table() -> Outcome:
    """Degrees of freedom: BatchNorm a scale and a shift per neuron, LayerNorm a scale and a common shift per layer,
    WeightNorm a scale per vector.

    Corrected: BatchNorm 2 per neuron before its affine part; LayerNorm 1 + inputs + 1 per layer; GroupNorm that per
    group; RMSNorm 1; ReLU adds one per neuron (with gamma, beta, or without a normalizer).
    """
    cases: dict[str, tuple[Kind, Function, bool, int]] = {
        "plain, ReLU": ("none", torch.relu, True, 1),
        "BN without affine, ReLU": ("batch", torch.relu, False, 1),
        "BN, ReLU": ("batch", torch.relu, True, 1),
        "BN, tanh": ("batch", torch.tanh, True, 1),
        "LN, ReLU": ("layer", torch.relu, True, 1),
        "LN, tanh": ("layer", torch.tanh, True, 1),
        "GN with two groups of four, tanh": ("group", torch.tanh, True, 2),
        "RMSNorm, tanh": ("rms", torch.tanh, True, 1),
    }
    measured: dict[str, float] = {}
    for name, (kind, activation, affine, groups) in cases.items():
        measured[name] = flat_directions(kind, activation, affine=affine, groups=groups)
        width, scaled, relu = 4 if groups == 1 else 8, affine and kind != "none", activation is torch.relu
        ours = symmetry_dimension(kind, width, 3, groups=groups, affine=scaled, homogeneous=relu)
        confirm(name, ours, measured[name])
    return refuted(measured["LN, tanh"] != 2, measured, "LayerNorm has 5 flat directions here, not 2")


@CLAIMS.add("003-T1B", "Table 1 (batch norm)", symmetry_dimension)
def _table_batch() -> Outcome:
    """BatchNorm has two flat directions per neuron, a scale and a shift.

    Corrected: True of the weights in front of it; ReLU behind its affine part adds a third.
    """
    found = flat_directions("batch", torch.tanh)
    return holds(found == 2 * 4, {"neurons": 4, "nullity, tanh": found}, "two per neuron")


@CLAIMS.add("003-T1L", "Table 1 (layer norm)", symmetry_dimension)
def _table_layer() -> Outcome:
    """LayerNorm has two flat directions per layer, a scale and a common shift.

    Corrected: 1 + inputs + 1 directions: W -> W + 1 v^T is flat as well.
    """
    found = flat_directions("layer", torch.tanh)
    confirm("the nullity", symmetry_dimension("layer", 4, 3), found)
    return refuted(found != 2, {"inputs": 3, "nullity, tanh": found}, "the common row of the weights is missing")


@CLAIMS.add("003-T1W", "Table 1 (weight norm)", weight_norm_effective)
def _table_weight() -> Outcome:
    """WeightNorm has one flat direction per weight vector: (v, g) -> (alpha v, g/alpha).

    Corrected: One, but it is v -> alpha v with g fixed.
    """
    x, v, g = gaussian(30, 40, 3), gaussian(31, 4, 3), 1.0 + gaussian(32, 4).abs()
    out = gaussian(33, 4)

    def net(p: Point) -> Tensor:
        return torch.tanh(x @ (p["g"][:, None] * p["v"] / p["v"].norm(dim=1, keepdim=True)).mT) @ out

    point = {"v": v, "g": g}
    target = net(point)
    curvature = dense_hessian(lambda p: (net(p) - target).square().mean(), point)
    found = nullity(curvature)
    along = torch.cat([v.reshape(-1), -g])
    measured = {
        "vectors": 4,
        "nullity": found,
        "curvature along (v, -g)": float(along @ curvature @ along),
        "curvature along (v, 0)": float(v.reshape(-1) @ curvature[:12, :12] @ v.reshape(-1)),
    }
    confirm("the nullity", 4, found)
    confirm("the curvature along (v, 0)", 0.0, measured["curvature along (v, 0)"])
    return refuted(measured["curvature along (v, -g)"] > ZERO, measured, "the number is right, the direction is not")


@CLAIMS.add("003-GN", "Section 2.2", layer_norm_orbit)
def _group_norm() -> Outcome:
    """GroupNorm's invariances lie between LayerNorm's and BatchNorm's: rescalings within groups of channels.

    Corrected: LayerNorm's group, W -> cW + 1 v^T and b -> cb + d 1, separately for every group.
    """
    point = hidden_layer(34, neurons=6)
    weight, bias = layer_norm_orbit(point["W"], point["b"], numbers(2, 5), gaussian(35, 2, 3), numbers(1, -3))
    moved = point | {"W": weight, "b": bias}
    within = point | {"W": point["W"] * numbers(2, 1, 1, 1, 1, 1)[:, None]}
    measured = {
        "change, each group its own": change(point, moved, "group", groups=2),
        "change, the same under LayerNorm": change(point, moved, "layer"),
        "change, one channel of a group": change(point, within, "group", groups=2),
    }
    between = measured["change, each group its own"] < ZERO < min(list(measured.values())[1:])
    return holds(between, measured, "more than LayerNorm allows, less than BatchNorm")


@CLAIMS.add("003-IN", "Section 2.2", group_norm_at)
def _instance_norm() -> Outcome:
    """InstanceNorm is LayerNorm of every channel of every sample alone."""
    x = gaussian(36, 2, 3, 4, 4)
    error = largest(F.instance_norm(x) - F.layer_norm(x, (4, 4)))
    return holds(error < ZERO, {"difference": error}, "the same mean and variance, over the positions")
