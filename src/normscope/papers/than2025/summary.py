"""A published summary of Than, The Hidden Power of Normalization (2025): what it adds to the paper's own claims."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.lipschitz.theorem_9 import corollary_10, corollary_11, lemma_5
from normscope.operators.normalizers.batch_norm import (
    batch_norm_batch_at,
    batch_norm_printed,
    batch_norm_running,
    batch_norm_scale,
)
from normscope.operators.normalizers.layer_norm import layer_norm_global, layer_norm_on_floor
from normscope.papers.claim import Claims, Outcome, Verdict, assumes, bound, close, holds, refuted, unsupported
from normscope.papers.measure import confirm, gradient, jacobian_norm
from normscope.papers.small_networks import certified, chain, layer_norm_at_zero, normalized
from normscope.papers.tensors import EPS, gaussian, identity, ones
from normscope.papers.than2025.claims.statements_04_to_11_inputs import corollary_10_on_equal_variances

CLAIMS = Claims("than2025summary")


@CLAIMS.add("000-sup", "Summary, contribution", layer_norm_global, corollary_11)
def _suppressed() -> Outcome:
    """Normalization layers exponentially suppress the global Lipschitz constant of a network.

    Corrected: On all inputs LayerNorm multiplies it by up to eps^(-K/2); BatchNorm may raise or lower it (001-RED).
    """
    constants = [layer_norm_at_zero(8, depth) for depth in (1, 2, 3)]
    measured = {f"W = I with LayerNorm, K = {depth}": constant for depth, constant in enumerate(constants, 1)}
    measured["W = I without"] = 1.0
    return refuted(constants[0] > 1 and constants[2] > constants[1], measured, "it grows with every LayerNorm")


@CLAIMS.add("000-inh", "Summary, contribution", lemma_5)
def _inherent() -> Outcome:
    """Unnormalized deep networks inherently have exponentially excessive capacity.

    Corrected: Some have (Theorem 6), others contract: with norms below one the constant decays exponentially.
    """
    depth = 20
    upper = lemma_5(certified([0.5] * depth)).value
    attained = jacobian_norm(chain([0.5 * identity(4)] * depth), ones(4))
    confirm("the product of the norms", upper, attained)
    measured = {"W = 0.5 I, 20 layers, no normalizer": attained}
    return refuted(attained < 1e-5, measured, "a network without normalizers and a tiny constant")


@CLAIMS.add("000-comp", "Summary, contribution", batch_norm_scale)
def _compressed() -> Outcome:
    """Normalization compresses the space of functions a network can represent.

    Corrected: With its scale and shift BatchNorm represents every plain network: gamma = s and beta = mean undo it.
    Only without them (or with bounds on gamma) is anything lost.
    """
    weights, data = [gaussian(10 + k, 6, 6) for k in range(3)], gaussian(20, 64, 6)
    plain = chain(weights)
    statistics, x = [], data
    for weight in weights:
        y = x @ weight.mT
        statistics.append((y.mean(0), y.var(0, unbiased=False)))
        x = torch.relu(y)

    def undone(y: Tensor, k: int) -> Tensor:
        mean, var = statistics[k]
        return F.batch_norm(y, mean, var, (var + EPS).sqrt(), mean, eps=EPS)

    fresh = gaussian(21, 50, 6)
    difference = float((chain(weights, undone)(fresh) - plain(fresh)).abs().max())
    measured = {"outputs of both networks differ by": difference, "largest output": float(plain(fresh).max())}
    return refuted(difference < 1e-9, measured, "the same function with and without BatchNorm")


@CLAIMS.add("000-tight", "Summary, contribution", corollary_10, batch_norm_printed, batch_norm_running)
def _tight() -> Outcome:
    """This is the first tight characterization of normalization by capacity.

    Corrected: The constant of BatchNorm is too large by up to sqrt(n) at every layer (001-L1), GroupNorm's by C.
    """
    true, printed = corollary_10_on_equal_variances()
    measured = {"printed / true, n = 64, K = 10": printed / true}
    return refuted(bound(printed, true) is Verdict.LOOSE, measured, "not tight by nine orders of magnitude")


@CLAIMS.add("000-why", "Summary, contribution", batch_norm_running)
def _explained() -> Outcome:
    """One mechanism explains stable gradients, faster convergence and smaller generalization error.

    Corrected: Upper bounds are compared, no cause is shown; the quantity in question changes under W -> c W while
    training loss, decisions and generalization do not.
    """
    data, weight = gaussian(30, 128, 6), gaussian(31, 6, 6)
    small = batch_norm_running(None, (data @ weight.mT).var(0, unbiased=False), 0.0)
    large = batch_norm_running(None, (100 * data @ weight.mT).var(0, unbiased=False), 0.0)
    change = float((normalized("batch", data @ weight.mT) - normalized("batch", 100 * data @ weight.mT)).abs().max())
    measured = {"||BN||": small, "||BN||, weights times 100": large, "outputs differ by": change}
    moves = change < 1e-10 and close(small / large, 100.0, 1e-6)
    return unsupported(moves, measured, "the mechanism's quantity is no property of the network")


@CLAIMS.add("000-exp", "Abstract", lemma_5)
def _exponential() -> Outcome:
    """An unnormalized network can have exponentially large Lipschitz constants in parameters or inputs.

    Corrected: As stated, for norms >= 1 + c (001-T6, 001-T13(9)).
    """
    x, two = ones(3), 2 * identity(3)
    constants = {depth: jacobian_norm(chain([two] * depth), x) for depth in (5, 10, 20)}
    measured = {f"W = 2 I, {depth} layers": constant for depth, constant in constants.items()}
    return holds(close(constants[20], constants[10] ** 2) and constants[5] > 1, measured, "2^K is attained")


@CLAIMS.add("000-unc", "Abstract", lemma_5)
def _uncountable() -> Outcome:
    """Such bad networks are uncountably many.

    Corrected: As stated, and more: they are an open set of weights, of positive measure.
    """
    x = ones(3)
    attained = []
    for seed in range(20):  # random weights in a ball around 2 I
        weights = [2 * identity(3) + 0.05 * gaussian(100 * seed + k, 3, 3) for k in range(10)]
        attained.append(jacobian_norm(chain(weights), x))
    measured = {"least attained, 20 random networks near W = 2 I, K = 10": min(attained)}
    return holds(min(attained) > 1.5**10, measured, "every network nearby is as bad")


@CLAIMS.add("000-red", "Abstract", layer_norm_on_floor, layer_norm_global)
def _reduced() -> Outcome:
    """Inserting normalization layers provably can reduce the constant exponentially in their number.

    Corrected: Where every normalizer's standard deviation stays above s > 1: by s^-K for LayerNorm on that set; for
    BatchNorm with frozen statistics of std s. Not on all inputs, and not for a network's own statistics.
    """
    floor = layer_norm_on_floor(ones(8), EPS, 3.0)
    frozen = jacobian_norm(chain([identity(8)] * 5, lambda y, _: y / 3), ones(8))
    confirm("five layers at std 3", floor**5, frozen, 1e-5)
    at_zero = layer_norm_at_zero(8, 1)
    measured = {"LayerNorm where std >= 3": floor, "five frozen BatchNorms of std 3": frozen, "LayerNorm at 0": at_zero}
    return assumes(frozen < 1 < at_zero, measured, "a statement about inputs of large variance")


@CLAIMS.add("000-loss", "Abstract, consequence 1", batch_norm_batch_at)
def _smoother() -> Outcome:
    """This smooths the loss landscape exponentially and makes optimization faster and more stable.

    Corrected: Only with statistics that do not move and variances bounded below: in training the gradient in a weight
    before BatchNorm grows as 1/||W|| (001-T12c).
    """
    data, target, weight = gaussian(40, 64, 5), gaussian(41, 64, 5), gaussian(42, 5, 5)

    def loss(w: Tensor) -> Tensor:
        return ((normalized("batch", data @ w.mT) - target) ** 2).mean()

    sizes = {c: float(gradient(loss, c * weight).norm()) for c in (1.0, 1e-2)}
    plain = float(gradient(lambda w: ((data @ w.mT - target) ** 2).mean(), 1e-2 * weight).norm())
    measured = {"gradient with BatchNorm at W": sizes[1.0], "gradient with BatchNorm at 0.01 W": sizes[1e-2]}
    measured["gradient without at 0.01 W"] = plain
    return assumes(sizes[1e-2] > plain, measured, "near W = 0 the normalized loss is the steeper one")


@CLAIMS.add("000-gen", "Abstract, consequence 2", batch_norm_running, lemma_5)
def _generalizes() -> Outcome:
    """This constrains the effective capacity and so improves generalization guarantees.

    Corrected: The guarantee (Theorem 20) needs a partition fixed before the data and a bounded loss, and its constant
    is that of the trained network, which is not shown to be smaller (001-C22, 001-RED).
    """
    data = gaussian(50, 256, 6)
    plain, signal = 0.1**3, data
    factors = []
    for _ in range(3):  # W = 0.1 I: the statistics follow the weights
        y = 0.1 * signal
        factors.append(0.1 * batch_norm_running(None, y.var(0, unbiased=False), 0.0))
        signal = torch.relu(normalized("batch", y))
    measured = {"constant of W = 0.1 I, K = 3": plain, "its bound with BatchNorm": math.prod(factors)}
    return unsupported(math.prod(factors) > plain, measured, "the guarantee got worse with BatchNorm")
