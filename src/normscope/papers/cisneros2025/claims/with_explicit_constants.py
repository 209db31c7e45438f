"""Claims of the summary on weight normalization that explicit constants can decide, its limitations included."""

import itertools
import math

import torch
from torch import Tensor

from normscope.geometry.norm_growth import square_after_step
from normscope.papers.cisneros2025.claims.mechanisms import network
from normscope.papers.cisneros2025.training import descend
from normscope.papers.claim import Claims, Measured, Outcome, Verdict, assumes, holds, refuted
from normscope.papers.measure import confirm_bound
from normscope.papers.tensors import gaussian, zeros
from normscope.weight_normalization.certified_step import certify_step, step_certificate
from normscope.weight_normalization.chain import read_chain
from normscope.weight_normalization.derivative_bounds import (
    activation_norm_bounds,
    gradient_bound,
    hessian_bound,
    hessian_bound_closed,
    paper_layer,
)
from normscope.weight_normalization.measure import (
    activation_norms,
    loss_hessian_norm,
    prediction_hessian_norm,
    square_loss,
)
from normscope.weight_normalization.network import WeightNormNetwork
from normscope.weight_normalization.rademacher import generalization_gap_bound, rademacher_bound

CLAIMS = Claims("cisneros2025")

_TANH = 4.0 / (3.0 * math.sqrt(3.0))


def paper_network(depth: int, width: int = 6, seed: int = 0, activation: str = "tanh") -> WeightNormNetwork:
    """Return a network in the paper's form with an output layer of norm one, in float64."""
    net = WeightNormNetwork(4, width=width, depth=depth, activation=activation, seed=seed).double()
    with torch.no_grad():
        net.output.weight.div_(net.output.weight.norm())
    return net


def unit_inputs(count: int = 16) -> tuple[Tensor, Tensor]:
    """Return inputs of norm one and targets between -1 and 1."""
    x = gaussian(760, count, 4)
    return x / x.norm(dim=1, keepdim=True), torch.tanh(gaussian(761, count, 1))


def _step(net: WeightNormNetwork, x: Tensor, y: Tensor, size: float) -> float:
    """Take a plain step of gradient descent in place, and return the loss after it."""
    descend(net, x, y, steps=1, rate=size, batch=None)
    return float(square_loss(net(x).detach(), y))


@CLAIMS.add("004-L3", "Key Results (Hessian), Mechanism 1", hessian_bound_closed, hessian_bound)
def _depth_power() -> Outcome:
    """The bound on the Hessian of the predictor grows with depth like L^3.

    Corrected: L^2/m is enough: rho [2 A/(sqrt 3 sqrt m w^2) + 2 A L/(m w^2) + b A^2 L (L+1)/(2 m w^2)] + 2 A
    sqrt(L)/(sqrt m w).
    """
    x = unit_inputs(1)[0][0]
    measured: Measured = {}
    for depth in (1, 2, 4):
        net = paper_network(depth)
        chain = read_chain(net, x[None])
        true = prediction_hessian_norm(net, x)
        closed = hessian_bound_closed(depth, 6, chain.least_norm * (1 - 1e-12), 1.0 + 1e-12, 1.0 + 1e-12, _TANH)
        confirm_bound(f"||Hessian|| at depth {depth}", closed, true)
        tight = hessian_bound(chain.constants(), chain.output_norm(), activation_norms(chain, net, x[None]))
        confirm_bound(f"||Hessian|| at depth {depth}, layer by layer", tight, true)
        measured |= {f"depth {depth}: bound": closed, f"depth {depth}: layer by layer": tight, f"depth {depth}": true}
    deep, deeper = (hessian_bound_closed(depth, 6, 1.0, 1.0, 1.0, _TANH) for depth in (2048, 4096))
    power = math.log2(deeper / deep)
    measured["power of L at large depth"] = power
    return Outcome(Verdict.LOOSE if power < 2.01 else Verdict.HOLDS, measured, "one power of the depth less", 2.0)


@CLAIMS.add("004-W", "Key Results, Open Question 3", hessian_bound)
def _width_power() -> Outcome:
    """A larger width makes the Hessian bound smaller, like 1/sqrt(m).

    Corrected: Part of it falls like 1/sqrt(m) and part like 1/m, at a fixed least weight norm. Uniform initialization
    of variance 1/fan-in keeps that norm fixed.
    """

    def bound(width: int) -> float:
        return hessian_bound([paper_layer(width, 1.0, curvature=_TANH)] * 3, 1.0, [1.0] * 4)

    ratios = [bound(m) / bound(4 * m) for m in (16, 256, 4096)]
    measured = {f"bound at m = {m} over 4 m": r for m, r in zip((16, 256, 4096), ratios, strict=True)}
    between = all(2.0 - 1e-6 <= r <= 4.0 + 1e-6 for r in ratios)
    return holds(between, measured, "between 2 and 4 for four times the width")


@CLAIMS.add("004-vanish", "Mechanism 1 (signal)", activation_norm_bounds)
def _vanishing() -> Outcome:
    """No matter how deep the network is, the product of Jacobians contributes just a constant factor of one.

    Corrected: At most one. In the scaling that gives it, a random layer multiplies by about 1/sqrt(fan-in), so the
    signal and every derivative vanish exponentially with depth.
    """
    x = unit_inputs(8)[0]
    nets = {depth: paper_network(depth, 16) for depth in (1, 4, 16)}
    norms = {depth: activation_norms(read_chain(net, x), net, x)[-1] for depth, net in nets.items()}
    measured = {f"norm of the last activation, depth {depth}": value for depth, value in norms.items()}
    return refuted(norms[16] < 1e-6 * norms[1], measured, "the factor is far below one")


@CLAIMS.add("004-step", "Key Results (optimization)", certify_step)
def _certified_steps() -> Outcome:
    """Gradient descent converges under the condition on ||grad L||^2/L.

    Corrected: For a plain step with eta <= 1/beta, beta = 2 varrho^2 + 2 sqrt(L) c_H, the loss falls by the factor 1 -
    eta (1 - eta beta/2) ||grad L||^2/L, without any condition.
    """
    net, (x, y) = paper_network(1), unit_inputs()
    shares = []
    for _ in range(12):
        now = certify_step(net, x, y)
        confirm_bound("||Hessian of the loss||", now.certificate.smoothness, loss_hessian_norm(net, x, y))
        after = _step(net, x, y, now.certificate.step_size)
        confirm_bound("the loss after the step", now.certificate.contraction * now.loss, after)
        shares.append((now.loss - after) / (now.loss * (1.0 - now.certificate.contraction)))
    measured = {"real over proved decrease, least": min(shares), "largest": max(shares)}
    return holds(min(shares) >= 1.0, measured, "every step did at least what was proved")


@CLAIMS.add("004-gap", "Key Results (generalization)", rademacher_bound)
def _gap() -> Outcome:
    """The generalization gap is at most of the order sqrt(L)/sqrt(n), whatever the width.

    Corrected: rho A (sqrt(2 L ln 2) + 1)/sqrt(n) bounds the Rademacher complexity; with the square loss the gap is at
    most 4 (1 + rho A) times it plus 3 (1 + rho A)^2 sqrt(ln(2/delta)/(2 n)). rho and A must be fixed before the data
    are seen.
    """
    shallow, deep = (rademacher_bound(depth, 1.0, math.sqrt(50_000), 50_000) for depth in (10, 40))
    gap = generalization_gap_bound(shallow, 1.0, 50_000, 0.05)
    measured = {"complexity, L = 10": shallow, "complexity, L = 40": deep, "gap, L = 10, n = 50000": gap}
    return assumes(deep <= 2.0 * shallow and gap < 1.0, measured, "the radius is fixed beforehand and phi(0) = 0")


@CLAIMS.add("004-lim1", "Limitations (smooth activations)", gradient_bound)
def _smooth() -> Outcome:
    """The analysis needs a smooth activation.

    Corrected: The Hessian part does. Lipschitz, gradient and complexity bounds hold for ReLU as they are.
    """
    finite = math.isfinite(hessian_bound([paper_layer(4, 1.0, curvature=_TANH)], 1.0, [1.0, 1.0]))
    none = math.isinf(hessian_bound([paper_layer(4, 1.0)], 1.0, [1.0, 1.0]))
    measured = {"Hessian bound, tanh": finite, "none for ReLU": none}
    return assumes(finite and none, measured, "the claim is about second derivatives")


@CLAIMS.add("004-next1", "Next Checks 1 (least weight norm)", certify_step)
def _norm_sensitivity() -> Outcome:
    """Vary the least weight norm in training and see how convergence depends on it.

    Corrected: The function does not depend on it; gradient descent from c v with the step c^2 eta is the same path.
    """
    steps = {}
    for factor in (1.0, 4.0):
        net = paper_network(1)
        with torch.no_grad():
            net.hidden[0].weight.mul_(factor)
        steps[factor] = certify_step(net, *unit_inputs()).largest_certified_step
    measured = {f"largest certified step, weight vectors x {factor:g}": step for factor, step in steps.items()}
    return holds(steps[4.0] > steps[1.0], measured, "longer vectors allow longer steps, and need them")


@CLAIMS.add("004-next2", "Next Checks 2 (activation)")
def _relu_depth() -> Outcome:
    """See whether the Hessian stays free of exponential growth in depth for ReLU.

    Corrected: It does, where it exists: the layers' norms are at most one for any 1-Lipschitz activation.
    """
    x = unit_inputs(1)[0][0]
    found = {depth: prediction_hessian_norm(paper_network(depth, 8, activation="relu"), x) for depth in (1, 4, 8)}
    measured = {f"ReLU, depth {depth}": value for depth, value in found.items()}
    return holds(
        found[8] <= found[1] and found[4] <= found[1], measured, "it falls, as everything in this scaling does"
    )


@CLAIMS.add("004-next3", "Next Checks 3 (width and the gap)", rademacher_bound)
def _width_gap() -> Outcome:
    """Measure the generalization gap against width.

    Corrected: `normscope reproduce wn-width` does. A quick check can only see that the bound does not depend
    on the width.
    """
    chains = [read_chain(paper_network(2, width), torch.zeros(1, 4)) for width in (4, 64, 256)]
    factors = [chain.layers[0].peeling_factor() for chain in chains]
    measured = {"layer factor, width 4": factors[0], "width 256": factors[-1]}
    return holds(max(factors) <= 1.0 + 1e-9, measured, "every layer contributes a factor of one")


@CLAIMS.add("004-zero", "Mechanism 2 (core assumption)", activation_norm_bounds)
def _zero_at_zero() -> Outcome:
    """The activation must be zero at zero for the contraction to avoid the width.

    Corrected: Otherwise every layer adds |phi(0)| sqrt(m) to the activations.
    """
    x = zeros(1, 3)
    sizes = {}
    for m in (16, 256):
        net = WeightNormNetwork(3, width=m, depth=1, activation="sigmoid", seed=0).double()
        sizes[m] = activation_norms(read_chain(net, x), net, x)[-1]
    point = {"0": gaussian(765, 16, 3), "u": gaussian(766, 16)}
    at_zero = float(network(point, x).abs().max())
    measured = {"sigmoid, m = 16": sizes[16], "m = 256": sizes[256], "tanh at zero": at_zero}
    grows = abs(sizes[256] / sizes[16] - 4.0) < 1e-9 and at_zero == 0.0
    return holds(grows, measured, "the root of the width appears")


@CLAIMS.add("004-lim2", "Limitations (least weight norm)", square_after_step)
def _least_norm_guaranteed() -> Outcome:
    """Nothing guarantees that the least weight norm stays above a threshold in training.

    Corrected: For plain gradient descent, on any batches, it never falls: every gradient is at right angles to its
    weight vector, so ||v+||^2 = ||v||^2 + eta^2 ||grad||^2.
    """
    net, (x, y) = paper_network(2), unit_inputs()
    start = read_chain(net, x).least_norm
    norms = [start]
    for k in range(40):
        batch = torch.arange(4) + 4 * (k % 4)
        _step(net, x[batch], y[batch], 0.5)
        norms.append(read_chain(net, x).least_norm)
    fall = max(a - b for a, b in itertools.pairwise(norms))
    measured: Measured = {"least norm at the start": start, "after 40 steps": norms[-1], "largest fall": fall}
    return refuted(fall <= 1e-12, measured, "there is a guarantee, and it holds on mini-batches")


@CLAIMS.add("004-lim3", "Limitations (schedules, batches, initialization)", certify_step)
def _schedules() -> Outcome:
    """Learning rate schedules, batch sizes and initialization are not addressed.

    Corrected: Every schedule with eta_t <= 1/beta_t is certified, from any initialization without zero weight vectors,
    on the whole data. Steps on mini-batches are not: the loss of all data may rise.
    """
    x, y = unit_inputs()
    least = 1.0
    for seed in range(3):
        net = paper_network(1, seed=seed)
        for k in range(8):
            largest = certify_step(net, x, y).largest_certified_step
            now = certify_step(net, x, y, largest / (1 + k % 3))  # a schedule that rises and falls
            after = _step(net, x, y, now.certificate.step_size)
            confirm_bound("the loss after the step", now.certificate.contraction * now.loss, after)
            least = min(least, after / now.loss)
    rise = 0.0
    for k in range(len(x)):
        net = paper_network(1)
        before = float(square_loss(net(x).detach(), y))
        single = slice(k, k + 1)
        _step(net, x[single], y[single], certify_step(net, x[single], y[single]).largest_certified_step)
        rise = max(rise, float(square_loss(net(x).detach(), y)) / before - 1.0)
    measured: Measured = {"least factor of a certified step": least, "largest rise after a step on one example": rise}
    return assumes(rise > 0, measured, "steps are on the whole data")


@CLAIMS.add("004-fail2", "Failure signatures (ratio)", certify_step, step_certificate)
def _small_ratio() -> Outcome:
    """A small ratio ||grad L||^2/L slows convergence.

    Corrected: It decides the speed: for eta <= 1/beta the relative decrease lies between 1/2 and 3/2 of eta ||grad
    L||^2/L.
    """
    x, y = unit_inputs()
    shares, ratios = [], []
    for depth in (1, 2):
        net = paper_network(depth)
        for _ in range(8):
            now = certify_step(net, x, y)
            fall = 1.0 - _step(net, x, y, now.certificate.step_size) / now.loss
            shares.append(fall / (now.certificate.step_size * now.ratio))
            ratios.append(now.ratio)
    measured: Measured = {
        "decrease over eta mu, least": min(shares),
        "largest": max(shares),
        "mu from": min(ratios),
        "to": max(ratios),
    }
    return holds(min(shares) >= 0.5 and max(shares) <= 1.5, measured, "proportional, at every depth tried")


@CLAIMS.add("004-fail3", "Failure signatures (output layer)", hessian_bound)
def _outside_the_ball() -> Outcome:
    """Guarantees no longer apply when the output layer leaves the ball of radius rho.

    Corrected: Those with a fixed rho. With the norm the output layer has, and how far a step can move it, they hold
    everywhere.
    """
    x, net = unit_inputs(1)[0], paper_network(1)
    chain = read_chain(net, x)
    inside = hessian_bound(chain.constants(), 1.0 + 1e-12, activation_norms(chain, net, x))
    with torch.no_grad():
        net.output.weight.mul_(100.0)
    true = prediction_hessian_norm(net, x[0])
    moved = read_chain(net, x)
    outside = hessian_bound(moved.constants(), moved.output_norm(), activation_norms(moved, net, x))
    confirm_bound("||Hessian||", outside, true)
    measured: Measured = {"bound for rho = 1": inside, "Hessian at an output layer of norm 100": true}
    return holds(true > inside, measured, "the bound for the ball does not hold outside it")
