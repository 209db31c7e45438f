"""Table 1: how many directions of the parameters leave a network unchanged, counted as zero eigenvalues."""

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.geometry.flow import Point
from normscope.geometry.hessian import dense_hessian, nullity
from normscope.geometry.symmetry import Kind, layer_norm_orbit, symmetry_dimension
from normscope.operators.normalizers.group_norm import group_norm_at
from normscope.operators.normalizers.weight_norm import weight_norm_effective
from normscope.papers.akbar2025.claims.laboratory import Activation, change, hidden_layer, largest, output, square_loss
from normscope.papers.claim import Claims, Outcome, holds, refuted
from normscope.papers.measure import confirm, gaussian, numbers

CLAIMS = Claims("akbar2025")
ZERO = 1e-10


def flat_directions(kind: Kind, activation: Activation, *, affine: bool = True, groups: int = 1, seed: int = 0) -> int:
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
    found = flat_directions("batch", torch.relu, affine=False)
    confirm("the nullity", symmetry_dimension("batch", 4, 3, affine=False, homogeneous=True), found)
    # with few samples some kinks are not seen, and the Hessian has zeros that are no symmetries
    x, below, above = gaussian(70, 300, 3), hidden_layer(71), hidden_layer(77, inputs=4)
    point = {f"{name}1": below[name] for name in ("W", "b", "gamma", "beta")} | above

    def network(p: Point) -> Tensor:
        first = {name: p[f"{name}1"] for name in ("W", "b", "gamma", "beta")}
        hidden = output(first | {"V": eye, "c": eye[0] * 0}, x, "batch", torch.relu)
        return output(p, hidden, "batch", torch.relu)

    eye = torch.eye(4, dtype=torch.float64)
    target = network(point)
    deep = nullity(dense_hessian(lambda p: (network(p) - target).square().mean(), point))
    ours = sum(symmetry_dimension("batch", 4, inputs, homogeneous=True) for inputs in (3, 4))
    confirm("the nullity of two layers", ours, deep)
    measured = {
        "one layer of 4, no affine part": found,
        "printed": 1,
        "two layers of 4, affine": deep,
        "printed, two": 2,
    }
    return refuted(found != 1 and deep != 2, measured, "every neuron has its own scale and its own bias")


@CLAIMS.add("003-T1", "Table 1", symmetry_dimension, nullity)
def _table() -> Outcome:
    """Degrees of freedom: BatchNorm a scale and a shift per neuron, LayerNorm a scale and a common shift per layer,
    WeightNorm a scale per vector.

    Corrected: BatchNorm 2 per neuron before its affine part; LayerNorm 1 + inputs + 1 per layer; GroupNorm that per
    group; RMSNorm 1; ReLU adds one per neuron (with gamma, beta, or without a normalizer).
    """
    cases: dict[str, tuple[Kind, Activation, bool, int]] = {
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
