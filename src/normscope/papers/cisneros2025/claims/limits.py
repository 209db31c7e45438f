"""Limitations and failure signatures of the summary on weight normalization, tried with explicit constants."""

from __future__ import annotations

import itertools

import torch

from normscope.geometry.growth import square_after_step
from normscope.papers.cisneros2025.claims.derived import paper_network, unit_inputs
from normscope.papers.claim import Claims, Outcome
from normscope.papers.measure import Measured, confirm_bound, given, holds, refuted
from normscope.weight_normalization.chain import read_chain
from normscope.weight_normalization.descent import step_certificate
from normscope.weight_normalization.measure import activation_norms, prediction_hessian_norm, square_loss
from normscope.weight_normalization.moment import certify_step
from normscope.weight_normalization.network import WeightNormNetwork
from normscope.weight_normalization.predictor import hessian_bound

CLAIMS = Claims("cisneros2025")


def _step(net: WeightNormNetwork, x: torch.Tensor, y: torch.Tensor, size: float) -> None:
    """Take a plain step of gradient descent in place."""
    slopes = torch.autograd.grad(square_loss(net(x), y), list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), slopes, strict=True):
            p.sub_(size * g)


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
    return refuted(fall <= 1e-12, measured, "a guarantee exists, and holds on mini-batches")


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
            _step(net, x, y, now.certificate.step_size)
            after = float(square_loss(net(x).detach(), y))
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
    return given(rise > 0, measured, "steps are on the whole data")


@CLAIMS.add("004-fail2", "Failure signatures (ratio)", certify_step, step_certificate)
def _small_ratio() -> Outcome:
    """A small ratio ||grad L||^2/L slows convergence.

    Corrected: It decides it: for eta <= 1/beta the relative decrease lies between 1/2 and 3/2 of eta ||grad L||^2/L.
    """
    x, y = unit_inputs()
    shares, ratios = [], []
    for depth in (1, 2):
        net = paper_network(depth)
        for _ in range(8):
            now = certify_step(net, x, y)
            _step(net, x, y, now.certificate.step_size)
            fall = 1.0 - float(square_loss(net(x).detach(), y)) / now.loss
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
    confirm_bound(
        "||Hessian||", hessian_bound(moved.constants(), moved.output_norm(), activation_norms(moved, net, x)), true
    )
    measured: Measured = {"bound for rho = 1": inside, "Hessian at an output layer of norm 100": true}
    return holds(true > inside, measured, "the bound for the ball does not hold outside it")
