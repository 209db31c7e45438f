"""Sections 5 and 9.5: gradient flow and descent of scale-invariant weights, step sizes, saddle points, momentum."""

import itertools
import math

import torch
from torch import Tensor

from normscope.geometry.conservation import conserved
from normscope.geometry.derivatives import batch_norm_backward, standardized, weight_norm_gradients
from normscope.geometry.flow import Loss, Point, gradient_flow, gradient_of
from normscope.geometry.hessian import dense_hessian
from normscope.geometry.norm_growth import (
    equilibrium_norm,
    growth_after_heavy_ball,
    square_after_flow,
    square_after_step,
)
from normscope.geometry.symmetry import radial_derivative
from normscope.papers.claim import Claims, Measured, Outcome, assumes, close, holds, refuted
from normscope.papers.measure import confirm, gradient, norm
from normscope.papers.small_networks import (
    chain,
    gradient_descent,
    hidden_layer,
    inner,
    neuron,
    normalized,
    square_loss,
    weight_of_neuron,
)
from normscope.papers.tensors import ZERO, gaussian, largest, numbers, ones, zeros

CLAIMS = Claims("akbar2025")
#: Tolerance for what the integration of these flows may lose.
FLOW = 1e-6


def _square(value: Tensor) -> float:
    return float(value.square().sum())


@CLAIMS.add("003-L51", "Lemma 5.1", gradient_flow, conserved, radial_derivative)
def _norm_conserved() -> Outcome:
    """Gradient flow keeps the norm of a weight vector in front of BatchNorm.

    Corrected: For eps = 0 and no weight decay. In general d||w||^2/dt = -2 (eps/(sigma^2 + eps)) gamma dL/dgamma - 2
    lambda ||w||^2.
    """
    loss, start, x = neuron()
    end = gradient_flow(loss, start, 20.0)
    ratio = math.sqrt(_square(end["w"]) / _square(start["w"]))
    stabilized, _, _ = neuron(eps=0.1)
    slopes = gradient_of(stabilized, start)
    variance = (x @ start["w"]).var(correction=0)
    rate = -2 * radial_derivative(variance, start["gamma"], slopes["gamma"], 0.1)
    confirm("the rate for eps = 0.1", float(rate), -2 * inner(start, slopes, "w"))
    drifted = gradient_flow(stabilized, start, 20.0)
    measured = {
        "angle moved": float(torch.arccos(start["w"] @ end["w"] / (start["w"].norm() * end["w"].norm()))),
        "norm after/before, eps = 0": ratio,
        "norm after/before, eps = 0.1": math.sqrt(_square(drifted["w"]) / _square(start["w"])),
    }
    return holds(close(ratio, 1.0, FLOW), measured, "the gradient is orthogonal to the weight")


@CLAIMS.add("003-L51d", "Lemma 5.1", square_after_step)
def _norm_grows() -> Outcome:
    """The same is assumed of full-batch gradient descent: the norm stays.

    Corrected: ||w+||^2 = ||w||^2 + eta^2 ||grad||^2 exactly: the norm grows at every step (with decoupled weight decay,
    (1 - eta lambda)^2 ||w||^2 + eta^2 ||grad||^2).
    """
    loss, start, _ = neuron()
    slopes = gradient_of(loss, start)
    after = gradient_descent(loss, start, 0.5, 1)
    before, growth = _square(start["w"]), _square(after["w"]) - _square(start["w"])
    confirm("||w+||^2", square_after_step(before, _square(slopes["w"]), 0.5), _square(after["w"]))
    decayed = 0.9 * start["w"] - 0.5 * slopes["w"]
    confirm("||w+||^2 with decay", square_after_step(before, _square(slopes["w"]), 0.5, 0.2), _square(decayed))
    end = gradient_descent(loss, start, 0.5, 40)
    measured = {
        "growth of ||w||^2": growth,
        "eta^2 ||grad||^2": 0.25 * _square(slopes["w"]),
        "||w|| after 40 steps/before": math.sqrt(_square(end["w"]) / before),
    }
    return refuted(growth > ZERO, measured, "a step along a tangent leaves the sphere")


@CLAIMS.add("003-L51n", "Section 5.1 (remark)", square_after_step)
def _no_radial_noise() -> Outcome:
    """Mini-batch noise gives the gradient a small component along the invariant direction.

    Corrected: None: the loss of every mini-batch is itself scale-invariant. The norm drifts by eta^2 ||grad_B||^2 only.
    """
    _, start, x = neuron()
    target = gaussian(201, 16)
    radial, size = [], []
    for batch in torch.arange(16).reshape(4, 4):

        def loss(p: Point, batch: Tensor = batch) -> Tensor:
            return (p["gamma"] * standardized(x[batch] @ p["w"], 0.0)[0] - target[batch]).square().mean()

        slopes = gradient_of(loss, start)
        radial.append(abs(inner(start, slopes, "w")))
        size.append(float(slopes["w"].norm()))
    measured = {"<w, gradient>, worst batch": max(radial), "||gradient||, largest batch": max(size)}
    return refuted(max(radial) < ZERO, measured, "no batch has a radial component")


@CLAIMS.add("003-L51L", "Section 5.1", conserved, gradient_flow)
def _layer_norm_conserves() -> Outcome:
    """Under LayerNorm gradient flow keeps the Frobenius norm of the weight matrix.

    Corrected: It keeps ||W||_F^2 + ||b||^2 (and 1^T W, 1^T b); ||W||_F alone only without a bias.
    """
    x, target, point = gaussian(203, 16, 3), gaussian(204, 16, 2), hidden_layer(205)
    loss = square_loss(x, target, "layer")
    slopes = gradient_of(loss, point)
    end = gradient_flow(loss, point, 3.0)
    before, after = (conserved("layer", p["W"], p["b"]) for p in (point, end))
    for name, value in before.items():
        confirm(name, 0.0, largest(value - after[name]), FLOW)
    bare = {name: value for name, value in point.items() if name != "b"}
    confirm("<W, grad_W> without a bias", 0.0, inner(bare, gradient_of(loss, bare), "W"))
    measured = {
        "<W, grad_W>": inner(point, slopes, "W"),
        "<b, grad_b>": inner(point, slopes, "b"),
        "||W||_F^2 after/before": _square(end["W"]) / _square(point["W"]),
    }
    return refuted(abs(measured["<W, grad_W>"]) > ZERO, measured, "weights and bias exchange norm")


def _weight_normalized() -> tuple[Loss, dict[str, Tensor]]:
    """Return the loss of a weight-normalized neuron and its parameters."""
    x, target = gaussian(206, 16, 3), gaussian(207, 16)

    def loss(p: Point) -> Tensor:
        return (torch.tanh(x @ (p["g"] * p["v"] / p["v"].norm())) - target).square().mean() / 2

    return loss, {"v": gaussian(208, 3), "g": numbers(1.7)}


@CLAIMS.add("003-L51W", "Section 5.1", gradient_flow, square_after_step)
def _weight_norm_conserved() -> Outcome:
    """Under WeightNorm gradient flow keeps ||v||.

    Corrected: It does; gradient steps increase ||v||^2 by eta^2 ||grad_v||^2.
    """
    loss, start = _weight_normalized()
    end = gradient_flow(loss, start, 10.0)
    slopes = gradient_of(loss, start)
    after = _square(gradient_descent(loss, start, 0.5, 1)["v"])
    confirm("||v+||^2", square_after_step(_square(start["v"]), _square(slopes["v"]), 0.5), after)
    ratio = _square(end["v"]) / _square(start["v"])
    measured = {"||v||^2 after/before the flow": ratio, "growth of ||v||^2 in a step": after - _square(start["v"])}
    return holds(close(ratio, 1.0, FLOW), measured, "v gets no radial gradient")


@CLAIMS.add("003-L51W'", "Section 5.1", weight_norm_gradients)
def _weight_norm_reason() -> Outcome:
    """The reason: the gradient is orthogonal to (v, -g).

    Corrected: The gradient is orthogonal to (v, 0). Orthogonality to (v, -g) would conserve ||v||^2 - g^2, which moves.
    """
    loss, start = _weight_normalized()
    slopes = gradient_of(loss, start)
    end = gradient_flow(loss, start, 10.0)
    along = inner(start, slopes, "v") - inner(start, slopes, "g")
    confirm("<v, grad_v>", 0.0, inner(start, slopes, "v"))
    values = [_square(p["v"]) - _square(p["g"]) for p in (start, end)]
    measured = {"along (v, -g)": along, "||v||^2 - g^2 before": values[0], "after": values[1]}
    return refuted(abs(along) > ZERO, measured, "the conclusion is right, its reason is not")


@CLAIMS.add("003-WD", "Section 5.1 (weight decay)", square_after_flow, equilibrium_norm)
def _weight_decay() -> Outcome:
    """With the penalty lambda ||w||^2/2, d||w||^2/dt = -lambda ||w||^2, and norms shrink, perhaps to zero.

    Corrected: -2 lambda ||w||^2. Gradient steps do not shrink to zero: ||w||^4 settles at eta G^2/(2 lambda - eta
    lambda^2), G the gradient norm on the unit sphere.
    """
    loss, start = weight_of_neuron()
    end = gradient_flow(loss, start, 20.0, decay=0.05)
    ratio = _square(end["w"]) / _square(start["w"])
    confirm("the decay", square_after_flow(1.0, 0.05, 20.0), ratio, FLOW)
    a, b, eta, decay, size = 1.0, 0.0, 0.1, 0.01, 2.0
    for _ in range(6000):  # the loss 2 * angle: its gradient has the norm 2/||w|| everywhere
        square = a * a + b * b
        shrink = 1 - eta * decay
        a, b = shrink * a + eta * size * b / square, shrink * b - eta * size * a / square
    confirm("the equilibrium", equilibrium_norm(eta, decay, size) ** 4, (a * a + b * b) ** 2, FLOW)
    measured = {
        "||w||^2 after/before, lambda = 0.05, t = 20": ratio,
        "printed": math.exp(-1),
        "||w||^4 in equilibrium": (a * a + b * b) ** 2,
    }
    return refuted(not close(ratio, math.exp(-1), FLOW), measured, "the square decays twice as fast as the norm")


@CLAIMS.add("003-51c", "Section 5.1", conserved)
def _offset_kept() -> Outcome:
    """A common offset of the biases in front of BatchNorm or LayerNorm is not changed by gradient flow.

    Corrected: Under BatchNorm every single bias stays.
    """
    x, target, point = gaussian(209, 16, 3), gaussian(210, 16, 2), hidden_layer(211)
    ends = {kind: gradient_flow(square_loss(x, target, kind), point, 2.0) for kind in ("batch", "layer")}
    measured = {
        "BN: largest change of a bias": largest(ends["batch"]["b"] - point["b"]),
        "LN: change of the mean bias": float((ends["layer"]["b"] - point["b"]).mean().abs()),
        "LN: largest change of a bias": largest(ends["layer"]["b"] - point["b"]),
    }
    kept = max(list(measured.values())[:2]) < ZERO
    return holds(kept, measured, "these directions get no gradient")


@CLAIMS.add("003-51r", "Section 5.1", gradient_flow)
def _sphere_time() -> Outcome:
    """Directions evolve on the sphere; the end is on the ray of the optimum, at the initial norm.

    Corrected: And time runs with 1/||w||^2: from 2w the same path takes four times as long.
    """
    loss, start = weight_of_neuron()
    once = gradient_flow(loss, start, 1.0)["w"]
    twice = gradient_flow(loss, {"w": 2 * start["w"]}, 4.0)["w"]
    gap = largest(once / once.norm() - twice / twice.norm())
    confirm("the direction from 2w after four times the time", 0.0, gap, FLOW)
    final = gradient_flow(loss, start, 40.0)["w"]
    slope = largest(gradient_of(loss, {"w": final})["w"])
    measured = {"norm at the end/start": float(final.norm() / start["w"].norm()), "gradient at the end": slope}
    stays = close(measured["norm at the end/start"], 1.0, FLOW) and slope < 1e-4
    return holds(stays, measured, "the norm stays while the gradient dies out")


@CLAIMS.add("003-E51", "Example 5.1", batch_norm_backward)
def _example() -> Outcome:
    """For y = w.x behind BatchNorm the gradient subtracts averages over the features j.

    Corrected: Averages over the batch, Equation (1) with its gamma; and it shrinks like 1/||w||, it is not O(1).
    """
    x, target, w = gaussian(212, 10, 2), gaussian(213, 10), gaussian(214, 2)

    def loss(weight: Tensor) -> Tensor:
        return (standardized(x @ weight, 0.0)[0] - target).square().sum() / 2

    true = gradient(loss, w)
    values, scale = standardized(x @ w, 0.0)
    confirm("the gradient", 0.0, largest(batch_norm_backward(values - target, x @ w, 1.0, 0.0) @ x - true))
    errors = []
    for delta in (x @ w - target, values - target):  # as printed, and with BatchNorm's own output
        features = (delta[:, None] * x).mean(1)
        shape = delta[:, None] * x - features[:, None] - (values.square() * features)[:, None]
        errors.append(largest((shape / scale).sum(0) - true))
    far = largest(10 * gradient(loss, 10 * w) - true)
    confirm("ten times the gradient at 10w", 0.0, far)
    measured = {"error as printed": errors[0], "error with z^ - t": errors[1], "gradient": largest(true)}
    return refuted(min(errors) > ZERO, measured, "no reading is the gradient: the averages are over the batch")


@CLAIMS.add("003-51L", "Section 5.1 (stability), 9.1", dense_hessian)
def _not_smooth() -> Outcome:
    """BatchNorm lowers the Lipschitz constant of the gradient and keeps gradients bounded.

    Corrected: Both are unbounded: grad L(cw) = grad L(w)/c and the Hessian grows like 1/c^2 as c -> 0. What is bounded
    is ||w|| ||grad|| and ||w||^2 lambda_max.
    """
    loss, start = weight_of_neuron()
    points = [{"w": c * start["w"]} for c in (1.0, 0.1, 0.01)]
    rates = [norm(dense_hessian(loss, point)) for point in points]
    sizes = [float(gradient_of(loss, point)["w"].norm()) for point in points]
    confirm("the curvature at w/100", 1e4 * rates[0], rates[2])
    measured = dict(zip(("|H| at w", "at w/10", "at w/100"), rates, strict=True))
    measured["gradient at w/100 over w"] = sizes[2] / sizes[0]
    return refuted(rates[2] > 100 * rates[0], measured, "small weights make the loss arbitrarily rough")


@CLAIMS.add("003-51e", "Section 5.1 (stability)")
def _explosion() -> Outcome:
    """By normalizing every layer BatchNorm is suspected to reduce the explosion of gradients exponentially.

    Corrected: In a random deep ReLU network BatchNorm makes gradients explode, by about sqrt(pi/(pi - 1)) = 1.21 per
    layer; He's initialization alone keeps them.
    """
    x, last, depth = gaussian(215, 128, 128), gaussian(240, 128, 128), 16
    weights = [gaussian(216 + k, 128, 128) * math.sqrt(2 / 128) for k in range(depth)]

    def growth(kind: str) -> float:
        network = chain(weights, lambda y, _: normalized(kind, y))
        return float(gradient(lambda h: (network(h) * last).sum(), x).norm() / last.norm()) ** (1 / depth)

    batch, plain = growth("batch"), growth("none")
    measured = {"growth per layer, BatchNorm": batch, "growth per layer, plain": plain}
    because = "gradients grow at every normalized layer and keep their size without one"
    return refuted(batch > 1.05 * plain, measured, because)


@CLAIMS.add("003-dead", "Section 5.1 (saddle points)")
def _dead_units() -> Outcome:
    """BatchNorm gives units inputs of mean zero, so that ReLUs are not stuck off.

    Corrected: For beta = 0: some sample has z^ >= 1/sqrt(m - 1). A shift beta <= -gamma sqrt(m - 1) turns a unit off
    for every batch of m, and then neither it nor gamma and beta get a gradient.
    """
    x, m = gaussian(230, 16, 5), 16
    values = normalized("batch", x @ gaussian(231, 40, 5).mT - 50.0)
    fewest = int((values > 0).sum(0).min())
    root = math.sqrt(m - 1)
    confirm("the largest value is at least 1/sqrt(m - 1)", 1.0, float(values.max(0).values.min() * root >= 1))
    confirm("no value is above sqrt(m - 1)", 1.0, float(values.max() <= root))
    shift = -root * ones(40)
    slope = gradient(lambda beta: torch.relu(values + beta).square().sum(), shift)
    on = int((values + shift > 0).sum())
    measured: Measured = {"samples that turn the worst unit on, beta = 0": fewest, "units on, beta = -sqrt(m - 1)": on}
    measured["gradient of beta there"] = largest(slope)
    needs = fewest > 0 and on == 0
    return assumes(needs, measured, "a shift of zero keeps units alive, a low one turns them off for good")


@CLAIMS.add("003-sad", "Section 5.1 (saddle points), 7.1", dense_hessian)
def _saddle_noise() -> Outcome:
    """Mini-batch statistics make the gradient of each batch non-zero at a saddle point, so that training leaves it.

    Corrected: There are strict saddles where every mini-batch gradient is exactly zero: gamma = beta = 0 and V = 0.
    """
    x, target = gaussian(232, 24, 3), gaussian(233, 24, 2)
    zero = zeros(4)
    point = {"W": gaussian(234, 4, 3), "gamma": zero, "beta": zero, "V": zeros(2, 4)}
    rest = {"c": zeros(2)}

    def pull(batch: Tensor) -> float:
        slopes = gradient_of(lambda p: square_loss(x[batch], target[batch], "batch")({**p, **rest}), point)
        return max(float(value.abs().max()) for value in slopes.values())

    worst = max(pull(batch) for batch in torch.arange(24).reshape(4, 6))
    bend = dense_hessian(lambda p: square_loss(x, target, "batch")({**p, **rest}), point)
    lowest = float(torch.linalg.eigvalsh(bend)[0])
    measured = {"largest gradient of a mini-batch": worst, "smallest eigenvalue of the Hessian": lowest}
    return refuted(worst == 0.0 and lowest < -ZERO, measured, "no batch pushes the weights off this saddle")


@CLAIMS.add("003-52", "Section 5.2", gradient_flow)
def _arc() -> Outcome:
    """With BatchNorm the path of a weight in the plane is an arc: the norm stays and the angle moves monotonically.

    Corrected: Under the flow. It ends at the best direction from every start but the worst one.
    """
    x = gaussian(235, 30, 2)
    target = standardized(x[:, 0], 0.0)[0] + 0.1 * gaussian(236, 30)

    def loss(p: Point) -> Tensor:
        return (standardized(x @ p["w"], 0.0)[0] - target).square().mean() / 2

    path = [numbers(0, 0.5)]
    for _ in range(14):
        path.append(gradient_flow(loss, {"w": path[-1]}, 0.2)["w"])
    angles, norms = [math.atan2(*w.flip(0).tolist()) for w in path], [float(w.norm()) for w in path]
    turns = [b - a for a, b in itertools.pairwise(angles)]
    measured = {
        "angle at the start": angles[0],
        "angle at the end": angles[-1],
        "norm at the end/start": norms[-1] / norms[0],
        "turns with one sign": len({turn > 0 for turn in turns}) == 1,
    }
    arc = measured["turns with one sign"] is True and close(norms[-1], norms[0], 1e-6)
    return holds(arc, measured, "a flow on a circle cannot turn back")


@CLAIMS.add("003-95m", "Section 9.5 (momentum)", growth_after_heavy_ball)
def _momentum() -> Outcome:
    """Momentum may carry a weight along the radial direction although no gradient points that way.

    Corrected: It does, outwards only: ||w_{t+1}||^2 - ||w_t||^2 = mu (||w_t||^2 - ||w_{t-1}||^2) + mu ||p_t||^2 +
    ||p_{t+1}||^2 for heavy ball with moves p, never negative from rest.
    """
    loss, start = weight_of_neuron()
    w, move = start["w"], zeros(3)
    growth, least, radial = 0.0, math.inf, 0.0
    for _ in range(40):
        slope = gradient_of(loss, {"w": w})["w"]
        following = 0.9 * move - 0.5 * slope
        ours = growth_after_heavy_ball(growth, float(move @ move), float(following @ following), 0.9)
        radial = max(radial, float(w @ following / w.norm()))
        after = w + following
        growth = float(after @ after - w @ w)
        confirm("the growth", ours, growth)
        w, move, least = after, following, min(least, growth)
    measured = {"largest radial part of a move": radial, "least growth of ||w||^2 in a step": least}
    return holds(radial > ZERO and least >= 0, measured, "a step that was tangent points outwards later")
