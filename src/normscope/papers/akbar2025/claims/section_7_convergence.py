"""Sections 7 and 9: convergence, implicit bias, generalization, and advice."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.geometry.flow import gradient_of
from normscope.geometry.hessian import dense_hessian
from normscope.geometry.norm_growth import equilibrium_norm
from normscope.geometry.symmetry import batch_norm_orbit
from normscope.papers.claim import Claims, Outcome, Verdict, assumes, close, holds, refuted
from normscope.papers.measure import confirm, jacobian
from normscope.papers.small_networks import (
    chain,
    change,
    gradient_descent,
    hidden_layer,
    neuron,
    normalized,
    output,
    square_loss,
)
from normscope.papers.tensors import ZERO, gaussian, largest, numbers, zeros

CLAIMS = Claims("akbar2025")

#: Three separable points, labels multiplied in; the first two carry the margin, its direction is (0.8, 0.5).
_POINTS = torch.tensor([[1.0, 0.2], [0.5, 1.0], [3.0, 2.0]], dtype=torch.float64)


def _logistic(steps: int) -> Tensor:
    """Return the weight after gradient descent on the logistic loss of the three points, from zero, with step one."""
    w = zeros(2)
    for _ in range(steps):
        w = w + torch.sigmoid(-_POINTS @ w) @ _POINTS
    return w


@CLAIMS.add("003-7a", "Section 7.1")
def _converges() -> Outcome:
    """If the loss is smooth with Lipschitz gradients, gradient descent converges to a critical point.

    Corrected: Needs a step below 2/L and bounded level sets (or another condition that keeps the path in a compact set
    and excludes circling, such as Kurdyka-Lojasiewicz). The logistic loss of separable data has no critical point.
    """
    short, long = (gradient_descent(lambda p: p["w"].square().sum() / 2, {"w": numbers(1)}, s, 100) for s in (1.9, 2.1))
    middle, late = float(_logistic(300).norm()), float(_logistic(3000).norm())
    measured = {
        "|w| after 100 steps of 1.9/L": largest(short["w"]),
        "|w| after 100 steps of 2.1/L": largest(long["w"]),
        "logistic: ||w|| after 300 steps": middle,
        "after 3000 steps": late,
    }
    needs = largest(short["w"]) < 1 < largest(long["w"]) and late > middle + 0.5
    return assumes(needs, measured, "the step and the level sets decide")


@CLAIMS.add("003-7b", "Section 7.2")
def _norm_diverges() -> Outcome:
    """Gradient descent on a linear classifier tends to minimize ||w||, heading for the largest margin.

    Corrected: ||w|| grows without bound, like ln t; only the direction w/||w|| tends to that of the largest margin.
    """
    best = numbers(0.8, 0.5) / math.hypot(0.8, 0.5)
    weights = [_logistic(steps) for steps in (30, 300, 3000)]
    norms = [float(w.norm()) for w in weights]
    angles = [math.acos(min(1.0, float(w @ best / w.norm()))) for w in weights]
    confirm("the angle shrinks", 1.0, float(angles[2] < angles[0]))
    measured = {
        "||w|| after 30 steps": norms[0],
        "after 300": norms[1],
        "after 3000": norms[2],
        "angle to the largest margin after 30": angles[0],
        "angle after 3000": angles[2],
    }
    return refuted(norms[0] < norms[1] < norms[2], measured, "the norm is not minimized, it diverges")


@CLAIMS.add("003-7c", "Section 7.2 (generalization bounds)")
def _gap_formula() -> Outcome:
    """With BatchNorm the generalization gap is about (1/N) sum_l ||W_l||_{2,1}^2 prod_{j != l} ||W_j||_{2,inf}^2, plus
    terms for BatchNorm's parameters, which are not given.

    Corrected: There is nothing to correct, since no proof is given. W -> cW makes the sum as small as one likes and
    leaves the network unchanged, so the missing terms are all that is left.
    """
    x = gaussian(400, 30, 5)
    weights = [gaussian(401 + k, 5, 5) for k in range(3)]

    def network(scale: float) -> Tensor:
        return chain([scale * weight for weight in weights], lambda y, _: normalized("batch", y))(x)

    def formula(scale: float) -> float:
        rows = [torch.linalg.vector_norm(scale * weight, dim=1) for weight in weights]
        product = math.prod(float(r.max()) ** 2 for r in rows)
        return product * sum(float(r.sum() / r.max()) ** 2 for r in rows) / len(x)

    gap = largest(network(0.1) - network(1.0))
    measured = {"change of the network": gap, "formula at W": formula(1.0), "formula at W/10": formula(0.1)}
    empty = gap < ZERO and measured["formula at W/10"] < 1e-3 * measured["formula at W"]
    verdict = Verdict.UNSUPPORTED if empty else Verdict.NOT_CHECKABLE
    return Outcome(verdict, measured, "one network has every value of the formula")


@CLAIMS.add("003-7s", "Section 7.1", dense_hessian)
def _linear_saddle() -> Outcome:
    """In deep linear networks BatchNorm eliminates the bad saddle points.

    Corrected: gamma = beta = 0 with a zero layer behind it is a strict saddle of the linear network too.
    """
    x, target = gaussian(404, 24, 3), gaussian(405, 24, 2)
    zero = zeros(4)
    point = {"W": gaussian(406, 4, 3), "gamma": zero, "beta": zero, "V": zeros(2, 4)}
    point["c"] = target.mean(0)
    loss = square_loss(x, target, "batch", lambda h: h)
    slope = max(largest(value) for value in gradient_of(loss, point).values())
    lowest = float(torch.linalg.eigvalsh(dense_hessian(loss, point))[0])
    end = gradient_descent(loss, point | {"V": 0.1 * gaussian(407, 2, 4)}, 0.1, 200)
    there, nearby = float(loss(point)), float(loss(end))
    measured = {"gradient": slope, "smallest eigenvalue": lowest, "loss there": there, "loss nearby": nearby}
    bad = slope < ZERO and lowest < -ZERO and nearby < there - 1e-3
    return refuted(bad, measured, "a critical point that is no minimum")


@CLAIMS.add("003-71k", "Section 7.1")
def _condition_number() -> Outcome:
    """If the loss is convex and L-smooth, gradient descent needs O(kappa ln(1/accuracy)) steps.

    Corrected: Needs strong convexity: without it kappa is infinite and the steps are polynomial in 1/accuracy.
    """

    def steps(slope: Callable[[Tensor], Tensor], start: Tensor, size: float, accuracy: float) -> int:
        w, count = start, 0
        while largest(w) > accuracy and count < 30000:
            w, count = w - size * slope(w), count + 1
        return count

    def quadratic(kappa: int) -> int:
        return steps(lambda w: numbers(1, 1 / kappa) * w, numbers(1, 1), 1.0, 1e-6)

    needed = {kappa: quadratic(kappa) for kappa in (10, 100)}
    flat = [steps(lambda w: w**3, numbers(0.5), 1.0, accuracy) for accuracy in (0.1, 0.01)]
    measured = {
        "steps, kappa = 10": needed[10],
        "steps, kappa = 100": needed[100],
        "w^4/4: steps to 0.1": flat[0],
        "w^4/4: steps to 0.01": flat[1],
    }
    needs = 8 < needed[100] / needed[10] < 12 and flat[1] > 50 * flat[0]
    return assumes(needs, measured, "with strong convexity, not with convexity alone")


@CLAIMS.add("003-72m", "Section 6 (margin)")
def _linear_margin() -> Outcome:
    """For a linear classifier scaled to the functional margin one, the distance to the boundary is 1/||w||."""
    w = numbers(0.8, 0.5)
    w = w / float((_POINTS @ w).min())
    nearest = _POINTS[int((_POINTS @ w).argmin())]
    foot = nearest - (nearest @ w) * w / (w @ w)
    measured = {"1/||w||": 1 / float(w.norm()), "distance": float((nearest - foot).norm())}
    return holds(close(*measured.values()), measured, "the distance of a point is |w.x|/||w||")


@CLAIMS.add("003-72s", "Section 7.2")
def _spurious_feature() -> Outcome:
    """BatchNorm keeps a network from using a feature that tells the classes apart only by its magnitude.

    Corrected: It maps each feature by one increasing affine map per batch: what separates the classes before, separates
    them after. Only the scale common to the whole batch is lost.
    """
    label = numbers(*([1.0] * 16 + [-1.0] * 16))
    feature = (100.0 + 50.0 * label + gaussian(408, 32))[:, None]
    after = normalized("batch", feature, 1e-5)
    correlations = [float(torch.corrcoef(torch.stack([label, f[:, 0]]))[0, 1]) for f in (feature, after)]
    apart = bool(after[:16].min() > after[16:].max())
    measured = {"correlation before": correlations[0], "after": correlations[1], "classes apart after": apart}
    return refuted(close(*correlations) and apart, measured, "the classes are as far apart as before")


@CLAIMS.add("003-72l", "Section 7.2")
def _last_layer() -> Outcome:
    """BatchNorm in the layers below does not keep the last layer from scaling the logits."""
    x, point = gaussian(409, 12, 3), hidden_layer(410)
    scaled = point | {"V": 5 * point["V"], "c": 5 * point["c"]}
    gap = largest(output(scaled, x, "batch") - 5 * output(point, x, "batch"))
    return holds(gap < ZERO, {"error of five times the logits": gap}, "nothing normalizes the last layer")


@CLAIMS.add("003-91b", "Section 9.1", batch_norm_orbit)
def _capacity() -> Outcome:
    """Leaving out biases in front of BatchNorm reduces the capacity of the model slightly.

    Corrected: Not at all: the output is the same for every bias.
    """
    x, point = gaussian(411, 12, 3), hidden_layer(412)
    slopes = jacobian(lambda b: output(point | {"b": b}, x, "batch", eps=1e-5), point["b"])
    far = change(point, point | {"b": 100 * gaussian(413, 4)}, "batch", x, eps=1e-5)
    measured = {"derivative of the output by the bias": largest(slopes), "change for a bias of 100": far}
    return refuted(max(measured.values()) < ZERO, measured, "what has no effect adds no capacity")


@CLAIMS.add("003-91w", "Section 9.1", equilibrium_norm)
def _least_norm() -> Outcome:
    """Weight decay selects the solution of the least norm among those that BatchNorm makes equivalent.

    Corrected: There is none: the penalty falls to zero along the ray and is not attained. Training settles where growth
    and decay of the norm balance, ||w||^4 = eta G^2/(2 lambda - eta lambda^2).
    """
    loss, start, _ = neuron()
    ray = [c * start["w"] for c in (1.0, 0.1, 0.01)]
    penalized = [float(loss(start | {"w": w}) + 0.05 * w.square().sum()) for w in ray]
    bare = float(loss(start))
    measured = {
        "loss": bare,
        "with the penalty at w": penalized[0],
        "at w/10": penalized[1],
        "at w/100": penalized[2],
        "equilibrium for eta = 0.1, lambda = 0.1, G = 1": equilibrium_norm(0.1, 0.1, 1.0),
    }
    falls = penalized[0] > penalized[1] > penalized[2] > bare
    return refuted(falls, measured, "an infimum that is not attained")


@CLAIMS.add("003-94", "Section 9.4")
def _batch_of_one() -> Outcome:
    """For a batch of one, LayerNorm normalizes the sample just the same.

    Corrected: LayerNorm never looks at the batch; BatchNorm of one sample leaves nothing but beta.
    """
    x = gaussian(414, 8, 6)
    gap = largest(F.layer_norm(x, (6,))[:1] - F.layer_norm(x[:1], (6,)))
    measured = {"LN alone against in a batch": gap, "BN of one sample": largest(normalized("batch", x[:1], 1e-5))}
    return holds(gap < ZERO, measured, "its statistics are the sample's")


@CLAIMS.add("003-95w", "Section 9.5")
def _whitened() -> Outcome:
    """Whitening the activations would make the network invariant to every orthogonal transformation of the weights.

    Corrected: ZCA whitening rotates with the weights: W -> RW gives R z^. That is undone only if the next
    layer rotates back.
    """

    def whitened(z: Tensor) -> Tensor:
        centred = z - z.mean(0)
        values, vectors = torch.linalg.eigh(centred.mT @ centred / len(z))
        return centred @ vectors @ torch.diag(values.rsqrt()) @ vectors.mT

    z = gaussian(415, 30, 4) @ gaussian(416, 4, 4)
    turn = torch.linalg.qr(gaussian(417, 4, 4))[0]
    same, along = largest(whitened(z @ turn.mT) - whitened(z)), largest(whitened(z @ turn.mT) - whitened(z) @ turn.mT)
    confirm("the whitened values turn along", 0.0, along)
    measured = {"change": same, "change after rotating back": along}
    return refuted(same > ZERO, measured, "equivariant, not invariant")
