"""What none of the papers states and this tool relies on: batch statistics, RMSNorm, attention, symmetries."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import Point, gradient_of
from normscope.geometry.symmetry import batch_norm_orbit, radial_derivative, symmetry_dimension
from normscope.operators.attention import attention_constants
from normscope.operators.normalizers.batch_norm import (
    batch_norm_batch_at,
    batch_norm_batch_each,
    batch_norm_batch_global,
)
from normscope.operators.normalizers.group_norm import group_norm_at
from normscope.operators.normalizers.layer_norm import layer_norm_global, layer_norm_range
from normscope.operators.normalizers.rms_norm import rms_norm_at, rms_norm_global
from normscope.papers.claim import Claims, Outcome, holds
from normscope.papers.measure import confirm, confirm_bound, jacobian, jacobian_norm, norm
from normscope.papers.small_networks import change, hidden_layer, normalized, square_loss
from normscope.papers.tensors import EPS, ZERO, gaussian, identity, largest, numbers, ones, zeros

CLAIMS = Claims("normscope")


def _agree(ours: float, true: float) -> float:
    return abs(ours - true) / max(true, 1e-300)


@CLAIMS.add("X-BNtrain", "F2", batch_norm_batch_at, batch_norm_batch_global)
def _batch_statistics() -> Outcome:
    """On the stacked batch BatchNorm has the Jacobian norm max_c |gamma_c|/s_c for m >= 3 values per channel, |gamma_c|
    eps/s_c^3 for m = 2 and 0 for m = 1; ||J||_F^2 = sum_c gamma_c^2/s_c^2 (m - 2 + (eps/s_c^2)^2).
    """
    gamma, gaps = numbers(1.5, -0.7), {}
    for m in (1, 2, 3, 7):
        x = gaussian(800 + m, m, 2)
        whole = jacobian(lambda z: standardized(z, EPS)[0] * gamma, x)
        gaps[m] = _agree(batch_norm_batch_at(x, gamma, EPS), norm(whole)) if m > 1 else norm(whole)
        if m > 1:
            scale = standardized(x, EPS)[1]
            square = gamma.square() / scale.square() * (m - 2 + (EPS / scale.square()).square())
            confirm("||J||_F^2", float(square.sum()), float(whole.square().sum()))
    image = gaussian(810, 2, 2, 3, 3)
    train = jacobian_norm(lambda z: F.batch_norm(z, None, None, gamma, training=True, eps=EPS), image)
    constant = jacobian_norm(lambda z: standardized(z, EPS)[0], ones(4, 1))
    confirm("the constant at a constant batch", batch_norm_batch_global(numbers(1), EPS), constant)
    measured = {f"relative gap, m = {m}": gap for m, gap in gaps.items()}
    measured["relative gap, images, m = 18"] = _agree(batch_norm_batch_at(image, gamma, EPS), train)
    return holds(max(measured.values()) < 1e-9, measured, "two rank-one terms leave m - 2 directions")


@CLAIMS.add("X-BNfold", "F2", batch_norm_batch_each)
def _folded() -> Outcome:
    """The layer X -> BN_train(X W^T) has at most the norm of diag(gamma/s) W."""

    def ratio(seed: int) -> float:
        x, weight, gamma = gaussian(820 + seed, 9, 3), gaussian(870 + seed, 4, 3), gaussian(920 + seed, 4)
        true = jacobian_norm(lambda z: standardized(z @ weight.mT, EPS)[0] * gamma, x)
        return true / norm(batch_norm_batch_each(x @ weight.mT, gamma, EPS)[:, None] * weight)

    ratios = [ratio(seed) for seed in range(40)]
    measured = {"true/bound, largest of 40": max(ratios), "least": min(ratios)}
    return holds(max(ratios) <= 1 + 1e-9, measured, "each channel contracts after the folded weight")


@CLAIMS.add("X-RMS", "F6", rms_norm_at, rms_norm_global)
def _rms() -> Outcome:
    """RMSNorm has the Jacobian (I - x x^T/(n r^2))/r, r^2 = ||x||^2/n + eps: norm 1/r for n >= 2, eps/r^3 for n = 1, at
    most max |gamma|/sqrt(eps), attained at zero.
    """
    measured = {}
    for n in (1, 2, 5):
        x, one = gaussian(830 + n, n), ones(n)
        whole = jacobian(lambda z: F.rms_norm(z, z.shape, eps=EPS), x)
        r = math.sqrt(float(x.square().mean()) + EPS)
        ours = (identity(n) - torch.outer(x, x) / (n * r * r)) / r
        confirm("the Jacobian", 0.0, largest(ours - whole))
        confirm("its norm", 1 / r if n > 1 else EPS / r**3, norm(whole))
        measured[f"relative gap, n = {n}"] = _agree(rms_norm_at(x, one, EPS), norm(whole))
    gamma = numbers(1, -3, 0.5)
    zero = jacobian_norm(lambda z: F.rms_norm(z, (3,), gamma, EPS), zeros(3))
    measured["relative gap at zero"] = _agree(rms_norm_global(gamma, EPS), zero)
    return holds(max(measured.values()) < 1e-9, measured, "one rank-one term, no centring")


@CLAIMS.add("X-IN", "F5", group_norm_at)
def _instance() -> Outcome:
    """InstanceNorm has the norm max |gamma_c|/s_nc over samples and channels, for at least three positions."""
    x, gamma = gaussian(840, 2, 3, 2, 3), numbers(1.5, -0.7, 4)
    true = jacobian_norm(lambda z: F.instance_norm(z, weight=gamma, eps=EPS), x)
    ours = group_norm_at(x, x.shape[1], gamma, EPS)
    deviation = (x.var((2, 3), correction=0) + EPS).sqrt()
    confirm("the closed form", float((gamma.abs() / deviation).max()), true)
    return holds(_agree(ours, true) < 1e-9, {"ours": ours, "true": true}, "blocks by sample and channel")


@CLAIMS.add("X-res", "F10")
def _residual() -> Outcome:
    """The map x + f(x) has at most the constant 1 + Lip(f), attained by f = 2 id."""

    def ratio(seed: int) -> float:
        a, b = gaussian(842 + seed, 6, 4), gaussian(872 + seed, 4, 6)
        return jacobian_norm(lambda x: x + torch.tanh(x @ a.mT) @ b.mT, gaussian(902 + seed, 4)) / (
            1 + norm(a) * norm(b)
        )

    attained, most = jacobian_norm(lambda x: x + 2 * x, gaussian(841, 4)), max(map(ratio, range(20)))
    measured = {"f = 2 id": attained, "true/bound, largest of 20 random": most}
    return holds(abs(attained - 3) < ZERO and most <= 1, measured, "the triangle inequality")


def _attention(a: Tensor, value: Tensor, mask: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Return ``x -> softmax(x A x^T + mask) x V^T`` on tokens (N, d)."""

    def attend(x: Tensor) -> Tensor:
        scores = x @ a @ x.mT
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        return torch.softmax(scores, -1) @ x @ value.mT

    return attend


@CLAIMS.add("X-att", "F11", attention_constants)
def _attention_unbounded() -> Outcome:
    """Dot-product attention of at least two tokens is not Lipschitz on all inputs."""
    one = ones(1, 1)

    def at(t: float) -> float:
        # the query is tied between t and -t whatever t is, and a tie is where the softmax moves
        x = numbers(0, t, -t)[:, None]
        return jacobian_norm(_attention(one, one), x)

    sizes = {t: at(t) for t in (1.0, 10.0, 100.0, 1000.0)}
    measured = {f"||J|| at t = {t:g}": size for t, size in sizes.items()}
    growth = sizes[1000.0] / sizes[100.0]
    confirm("the growth by the square", 100.0, growth, 1e-2)
    single = jacobian_norm(_attention(one, one), numbers(1000)[:, None])
    confirm("one token", 1.0, single)
    return holds(growth > 50, measured, "the score is a product of two tokens")


@CLAIMS.add("X-attB", "F11", attention_constants)
def _attention_bound() -> Outcome:
    """For tokens of norm at most R: Lip <= ||V|| (sqrt(N) + ||A|| R^2 (1 + sqrt(N))), whatever the mask."""
    worst, count, d = 0.0, 4, 3
    causal = torch.ones(count, count, dtype=torch.bool).triu(1)
    for seed in range(60):
        a, value = gaussian(1000 + seed, d, d), gaussian(1100 + seed, d, d)
        x = gaussian(1200 + seed, count, d) * (0.3 + seed / 20)
        x = torch.cat([zeros(1, d), x[1:]]) if seed % 3 == 0 else x
        radius = float(x.norm(dim=1).max())
        ours = norm(value) * (math.sqrt(count) + norm(a) * radius**2 * (1 + math.sqrt(count)))
        to_query, to_key, to_value = attention_constants(count, norm(a), radius, radius, radius)
        parts = norm(value) * (to_query + to_key + to_value)
        confirm("the constants by query, key and value", ours, parts)
        true = jacobian_norm(_attention(a, value, causal if seed % 2 else None), x)
        worst = max(worst, true / ours)
    first = torch.ones(count, count, dtype=torch.bool)
    first[:, 0] = False
    flat = _attention(zeros(d, d), value, first)  # every token sees the first only
    attained = jacobian_norm(flat, x) / (norm(value) * math.sqrt(count))
    confirm("the bound is attained for A = 0", 1.0, attained)
    measured = {"true/bound, largest of 60": worst, "true/bound, A = 0, all see one token": attained}
    return holds(worst <= 1, measured, "covariances of tokens in a ball")


@CLAIMS.add("X-homog", "F17", symmetry_dimension)
def _homogeneity() -> Outcome:
    """With ReLU (gamma_i, beta_i) -> alpha and the next column/alpha changes nothing, and gradient flow conserves
    gamma_i^2 + beta_i^2 - ||V_:i||^2; without a normalizer the same of (w_i, b_i).
    """
    x, target, alpha = gaussian(850, 20, 3), gaussian(851, 20, 2), numbers(0.3, 2, 5, 1)
    measured = {}
    for kind, names in (("batch", ("gamma", "beta")), ("none", ("W", "b"))):
        point = hidden_layer(852, affine=kind == "batch")
        moved = {**point, "V": point["V"] / alpha}
        moved |= {name: point[name] * (alpha[:, None] if name == "W" else alpha) for name in names}
        gap = change(point, moved, kind, x, activation=torch.relu)
        slopes = gradient_of(square_loss(x, target, kind, torch.relu), point)
        rate = -(point["V"] * slopes["V"]).sum(0)
        for name in names:
            rate = rate + (point[name] * slopes[name]).reshape(4, -1).sum(1)
        measured[f"change of the output, {kind}"] = gap
        measured[f"rate of the conserved quantity, {kind}"] = largest(rate)
    return holds(max(measured.values()) < ZERO, measured, "ReLU passes positive factors")


def _stream(point: Point, x: Tensor) -> Tensor:
    """Return a network with two residual branches before its normalizer, and a final one (pre-activation)."""
    h = x @ point["stem"].mT
    for k in (0, 1):
        inner = torch.relu(normalized("batch", h)) @ point[f"inner{k}"].mT
        h = h + torch.relu(normalized("batch", inner)) @ point[f"writer{k}"].mT
    return torch.relu(normalized("batch", h)) @ point["head"].mT


@CLAIMS.add("X-ressym", "F17", batch_norm_orbit)
def _residual_symmetry() -> Outcome:
    """In residual networks a weight whose output is normalized inside its branch is scale-invariant alone; weights that
    write to the stream are so only all together with the stem.
    """
    x = gaussian(853, 20, 3)
    shapes = {"stem": (5, 3), "inner0": (6, 5), "inner1": (6, 5), "writer0": (5, 6), "writer1": (5, 6), "head": (2, 5)}
    point = {name: gaussian(854 + k, *shape) for k, (name, shape) in enumerate(shapes.items())}

    def scaled(*names: str) -> float:
        moved = {name: 3 * value if name in names else value for name, value in point.items()}
        return largest(_stream(moved, x) - _stream(point, x))

    measured = {
        "inner weight": scaled("inner0"),
        "all writers and the stem": scaled("stem", "writer0", "writer1"),
        "one writer": scaled("writer0"),
        "writers without the stem": scaled("writer0", "writer1"),
    }
    inner, together, one, without = measured.values()
    return holds(max(inner, together) < ZERO < min(one, without) - 1e-3, measured, "the sum mixes scales")


def _post_activation(p: Point, x: Tensor) -> Tensor:
    """Return a network whose blocks end in BatchNorm, add to the stream, and apply ReLU."""
    h = torch.relu(normalized("batch", x @ p["stem"].mT) * p["gamma"] + p["beta"])
    for k in (0, 1):
        inner = torch.relu(normalized("batch", h @ p[f"reader{k}"].mT))
        h = torch.relu(h + normalized("batch", inner @ p[f"writer{k}"].mT) * p[f"gamma{k}"] + p[f"beta{k}"])
    return h @ p["head"].mT


@CLAIMS.add("X-stream", "F17", symmetry_dimension)
def _stream_homogeneity() -> Outcome:
    """In a residual stream with ReLU the rescaling (gamma, beta) -> alpha, next columns/alpha acts per channel of the
    stream: on all that write to it and all that read it together.
    """
    x, alpha = gaussian(880, 20, 3), numbers(0.2, 3, 1, 7, 0.5)
    read, write = (6, 5), (5, 6)
    shapes = {"stem": (5, 3), "reader0": read, "reader1": read, "writer0": write, "writer1": write, "head": (2, 5)}
    point = {name: gaussian(881 + k, *shape) for k, (name, shape) in enumerate(shapes.items())}
    writers = [f"{name}{k}" for name in ("gamma", "beta") for k in ("", "0", "1")]
    point |= {name: gaussian(890 + k, 5) for k, name in enumerate(writers)}

    def change(write: list[str], read: list[str]) -> float:
        moved = {name: value * alpha if name in write else value for name, value in point.items()}
        moved |= {name: point[name] / alpha for name in read}
        return largest(_post_activation(moved, x) - _post_activation(point, x))

    measured = {
        "all writers and readers": change(writers, ["reader0", "reader1", "head"]),
        "one block alone": change(["gamma0", "beta0"], ["reader1"]),
    }
    tied = measured["all writers and readers"] < ZERO < measured["one block alone"] - 1e-3
    return holds(tied, measured, "the sum ties the writers of a channel together")


@CLAIMS.add("X-share", "F17", batch_norm_orbit)
def _shared() -> Outcome:
    """Shared weights are scale-invariant if and only if every use of them is normalized."""
    x, weight = gaussian(860, 20, 4), gaussian(861, 4, 4)

    def run(w: Tensor, every: bool) -> Tensor:
        h = torch.relu(normalized("batch", x @ w.mT))
        return normalized("batch", h @ w.mT) if every else h @ w.mT

    gaps = {every: largest(run(3 * weight, every) - run(weight, every)) for every in (True, False)}
    measured = {"both uses normalized": gaps[True], "one use not": gaps[False]}
    return holds(gaps[True] < ZERO < gaps[False] - 1e-3, measured, "one use lets the scale through")


@CLAIMS.add("X-radial", "F17", radial_derivative)
def _radial() -> Outcome:
    """For eps > 0, <W, grad_W> + <b, grad_b> = sum_n (eps/(sigma_n^2 + eps)) sum_i gamma_i delta_ni z^_ni under
    LayerNorm, and the same with the mean square for sigma_n^2 under RMSNorm.
    """
    x, target, point, eps = gaussian(862, 20, 3), gaussian(863, 20, 2), hidden_layer(864), 0.3
    measured = {}
    for kind in ("layer", "rms"):
        slopes = gradient_of(square_loss(x, target, kind, eps=eps), point)
        z = x @ point["W"].mT + point["b"]
        values = normalized(kind, z, eps)

        def behind(a: Tensor) -> Tensor:
            return (torch.tanh(a) @ point["V"].mT + point["c"] - target).square().sum(1).mean() / 2

        delta = gradient_of(lambda p: behind(p["a"]), {"a": values * point["gamma"] + point["beta"]})["a"]
        spread = z.var(1, correction=0) if kind == "layer" else z.square().mean(1)
        ours = float(((eps / (spread + eps))[:, None] * point["gamma"] * delta * values).sum())
        true = float((slopes["W"] * point["W"]).sum() + (slopes["b"] * point["b"]).sum())
        measured[f"{kind}: true"] = true
        measured[f"{kind}: error"] = abs(ours - true)
    worst = max(value for name, value in measured.items() if "error" in name)
    return holds(worst < ZERO, measured, "eps lets a part of the scale through")


@CLAIMS.add("X-eps", "F3", layer_norm_global, layer_norm_range)
def _range() -> Outcome:
    """Between two inputs LayerNorm's normalized values are never longer than sqrt(n), and it never expands more than
    1/sqrt(eps).
    """
    x, y = gaussian(865, 200, 6) * 1e-3, gaussian(866, 200, 6) * 1e-3
    images = [F.layer_norm(z, (6,), eps=EPS) for z in (x, y)]
    quotients = (images[0] - images[1]).norm(dim=1) / (x - y).norm(dim=1)
    confirm_bound("1/sqrt(eps)", 1 / math.sqrt(EPS), float(quotients.max()))
    measured = {
        "longest value/sqrt(n)": float(images[0].norm(dim=1).max()) / math.sqrt(6),
        "largest quotient": float(quotients.max()),
    }
    return holds(measured["longest value/sqrt(n)"] <= 1, measured, "the variance of what comes out is below one")
