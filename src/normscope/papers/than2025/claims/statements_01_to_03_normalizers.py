"""Section 3 and Appendix A: the Lipschitz constants of BatchNorm, LayerNorm and GroupNorm."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.operators.normalizers.batch_norm import (
    batch_norm_batch_at,
    batch_norm_frobenius,
    batch_norm_printed,
    batch_norm_running,
)
from normscope.operators.normalizers.group_norm import group_norm_at, group_norm_global, group_norm_printed
from normscope.operators.normalizers.layer_norm import (
    layer_norm_at,
    layer_norm_global,
    layer_norm_jacobian,
    layer_norm_on_floor,
    layer_norm_printed,
)
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from normscope.papers.claim import Claims, Measured, Outcome, Verdict, assumes, bound, close, holds, worst
from normscope.papers.measure import confirm, confirm_bound, jacobian, jacobian_norm, norm, quotient
from normscope.papers.small_networks import layer_norm
from normscope.papers.tensors import EPS, gaussian, largest, numbers, ones, zeros

CLAIMS = Claims("than2025")


def _batch_norm_eval(var: Tensor, gamma: Tensor | None = None, eps: float = EPS) -> torch.nn.BatchNorm1d:
    layer = torch.nn.BatchNorm1d(var.numel(), eps=eps, dtype=torch.float64).eval()
    layer.running_var = var.clone()
    if gamma is not None:
        layer.weight.data.copy_(gamma)
    return layer


@CLAIMS.add("001-L1", "Lemma 1", batch_norm_running, batch_norm_frobenius, batch_norm_printed)
def _lemma_1() -> Outcome:
    """With population statistics the Lipschitz constant of BatchNorm is the l2 norm of the vector of 1/sigma_k.

    Corrected: ||BN||_Lip = max_k |gamma_k| / sqrt(sigma_k^2 + eps). The printed number is the Frobenius norm of the
    Jacobian, an upper bound, too large by a factor between 1 and sqrt(n).
    """
    var, gamma_var = numbers(9, 16), numbers(0.01, 0.25, 1, 4, 9)
    true = jacobian_norm(lambda x: (x - 1) / var.sqrt(), numbers(0.3, -2))
    confirm("the constant without eps", batch_norm_running(None, var, 0.0), true)
    gamma = numbers(0.3, -2, 1, 5, 0.1)
    layer = _batch_norm_eval(gamma_var, gamma)
    scaled = jacobian_norm(lambda x: layer(x[None])[0], gaussian(1, 5))
    confirm("the constant of torch's layer", batch_norm_running(gamma, gamma_var, EPS), scaled)
    printed = batch_norm_printed(var, 0.0)
    measured = {"true": true, "printed": printed, "true, torch BatchNorm1d with a scale": scaled}
    return holds(close(printed, true), measured, "a diagonal matrix has its largest entry as norm")


@CLAIMS.add("001-L1'", "Section 3.1", batch_norm_running, batch_norm_batch_at)
def _frozen_statistics() -> Outcome:
    """BatchNorm is the map with the population's mean and variance, which do not depend on the input.

    Corrected: Holds in evaluation mode. In training the statistics are the batch's, the samples are coupled, and the
    constant is that of the stacked batch: max_c |gamma_c| / sqrt(s_c^2 + eps), 1/sqrt(eps) in the worst case.
    """
    x, eps = gaussian(2, 6, 3), EPS

    def train(batch: Tensor) -> Tensor:
        return F.batch_norm(batch, None, None, training=True, eps=eps)

    derivative = jacobian(train, x).reshape(6, 3, 6, 3)
    across = float(derivative[0, 0, 1, 0].abs())
    layer = _batch_norm_eval(x.var(0, unbiased=False))
    frozen = float(jacobian(layer, x).reshape(6, 3, 6, 3)[0, 0, 1, 0].abs())
    confirm("the stacked constant", batch_norm_batch_at(x, None, eps), norm(derivative.reshape(18, 18)))
    measured = {"d(sample 1)/d(sample 2), frozen": frozen, "d(sample 1)/d(sample 2), training": across}
    because = "only with frozen statistics is a sample normalized by itself"
    return assumes(frozen == 0 and across > 0, measured, because)


@CLAIMS.add("001-BNc", "Section 3.2", layer_norm_at, batch_norm_batch_at)
def _coupling() -> Outcome:
    """LayerNorm acts on each sample alone; BatchNorm with batch statistics couples the samples of a batch."""
    x = gaussian(3, 4, 5)
    layer = jacobian(layer_norm, x).reshape(4, 5, 4, 5)[0, :, 1].abs().max()
    batch = jacobian(lambda b: F.batch_norm(b, None, None, training=True), x).reshape(4, 5, 4, 5)[0, :, 1].abs().max()
    measured = {"coupling in LayerNorm": float(layer), "coupling in BatchNorm": float(batch)}
    return holds(bool(layer == 0 < batch), measured, "entries of the Jacobian between two samples")


@CLAIMS.add("001-L2a", "Lemma 2, at a point", layer_norm_at, layer_norm_printed)
def _lemma_2_at() -> Outcome:
    """The Jacobian of LayerNorm at x has norm at most 1/sqrt(sigma(x)^2 + eps).

    Corrected: Equality for n >= 3; for n = 2 the norm is eps/(sigma^2 + eps)^(3/2), for n = 1 it is 0.
    """
    measured: Measured = {}
    verdicts = []
    for n in (2, 3, 5, 17):
        x = gaussian(n, n)
        true = jacobian_norm(layer_norm, x)
        confirm(f"n = {n}", layer_norm_at(x, ones(n), EPS), true)
        printed = layer_norm_printed(float(x.std(unbiased=False)), EPS)
        measured[f"true / printed, n = {n}"] = true / printed
        verdicts.append(bound(printed, true))
    below = verdicts.pop(0) is not Verdict.FALSE  # n = 2, where the norm is far less
    return Outcome(worst(verdicts) if below else Verdict.FALSE, measured, "a bound for every n, attained for n >= 3")


@CLAIMS.add("001-L2b", "Lemma 2, on all inputs", layer_norm_global, layer_norm_printed)
def _lemma_2_global() -> Outcome:
    """LayerNorm is 1/sigma-Lipschitz, sigma the least sqrt(variance + eps) over all inputs.

    Corrected: That least value is sqrt(eps) whatever the data: ||LN||_Lip = 1/sqrt(eps) exactly for n >= 2 (316.2 at
    eps = 1e-5), 0 for n = 1; with eps = 0 LayerNorm is not Lipschitz.
    """
    printed = layer_norm_printed(0.0, EPS)
    measured: Measured = {"printed, 1/sqrt(eps)": printed}
    verdict = Verdict.HOLDS
    for n in (2, 3, 8):
        attained = jacobian_norm(layer_norm, ones(n))
        confirm(f"n = {n}", layer_norm_global(ones(n), EPS), attained)
        measured[f"attained at a constant vector, n = {n}"] = attained
        verdict = bound(printed, attained) if verdict is Verdict.HOLDS else verdict
    alone = jacobian_norm(layer_norm, numbers(2.0))
    confirm("n = 1", layer_norm_global(ones(1), EPS), alone)
    return Outcome(verdict, measured, "the bound is attained, and it says nothing about the data")


@CLAIMS.add("001-L2c", "Section 3.2", layer_norm_on_floor, layer_norm_global)
def _contraction() -> Outcome:
    """Where the variance of the input is large, LayerNorm is a contraction.

    Corrected: On {x: sigma(x) >= s} (not a convex set) LayerNorm is exactly 1/sqrt(s^2 + eps)-Lipschitz for n >= 2; on
    all inputs it is 1/sqrt(eps).
    """
    eps, s = 1e-3, 0.5
    measured: Measured = {}
    for n in (2, 3, 8):
        x = gaussian(20 + n, 400, n)
        x = x - x.mean(1, keepdim=True)
        x = x * (s * (1 + torch.linspace(0, 1, 400, dtype=torch.float64)[:, None])) / x.std(1, unbiased=False)[:, None]
        pairs = [quotient(lambda a: layer_norm(a, eps=eps), a, b) for a, b in itertools.pairwise(x)]
        most = max(*pairs, quotient(lambda a: layer_norm(a, eps=eps), x[0], -x[0]))
        stated = layer_norm_on_floor(ones(n), eps, s)
        confirm(f"largest quotient on the set, n = {n}", stated, most)
        measured[f"largest quotient where std >= 0.5, n = {n}"] = most
    far = layer_norm_on_floor(ones(8), eps, 2.0)
    everywhere = jacobian_norm(lambda a: layer_norm(a, eps=eps), ones(8))
    measured |= {"constant where std >= 2": far, "constant on all inputs": everywhere}
    return assumes(far < 1 < everywhere, measured, "a contraction on that set alone", Verdict.FALSE)


@CLAIMS.add("001-L2e", "Section 3.2", layer_norm_global, layer_norm_at)
def _stabilizer() -> Outcome:
    """The stabilizer eps makes LayerNorm globally Lipschitz; without it the gradient blows up at variance zero."""
    spread = numbers(1, -1, 0.5)
    without = [jacobian_norm(lambda a: layer_norm(a, eps=0.0), t * spread) for t in (1e-2, 1e-4, 1e-6)]
    with_eps = jacobian_norm(layer_norm, 1e-6 * spread)
    stated = layer_norm_global(ones(3), EPS)
    confirm_bound("with eps", stated, with_eps)
    grows = all(close(b / a, 100.0, 1e-6) for a, b in itertools.pairwise(without))
    unbounded = math.isinf(layer_norm_global(ones(3), 0.0))
    measured = {"eps = 0, std ~ 1e-2": without[0], "eps = 0, std ~ 1e-6": without[2], "eps = 1e-5": with_eps}
    return holds(grows and unbounded, measured, "without eps the norm grows as 1/std")


@CLAIMS.add("001-L3", "Lemma 3", group_norm_at, group_norm_global, group_norm_printed)
def _lemma_3() -> Outcome:
    """GroupNorm is Lipschitz with the sum over the groups of 1/sqrt(sigma_k^2 + eps).

    Corrected: The Jacobian is block diagonal: the constant is the largest term, 1/sqrt(eps) on all inputs. The sum is
    up to C times too large. (The proof speaks of a second statement; the lemma has none.)
    """
    x = gaussian(31, 1, 12)
    true = jacobian_norm(lambda a: F.group_norm(a, 4, eps=EPS), x)
    confirm("at a point", group_norm_at(x, 4, None, EPS), true)
    stds = x.reshape(4, 3).std(1, unbiased=False)
    printed = group_norm_printed(stds, EPS)
    flat = jacobian_norm(lambda a: F.group_norm(a, 4, eps=EPS), ones(1, 12))
    confirm("on all inputs", group_norm_global(ones(12), 4, EPS), flat)
    printed_flat = group_norm_printed(zeros(4), EPS)
    measured = {
        "true, 4 groups of 3": true, "printed": printed, "true at a constant input": flat, "printed there": printed_flat
    }  # fmt: skip
    verdict = worst([bound(printed, true), bound(printed_flat, flat)])
    because = "the constants of the groups do not add up: the largest one counts"
    return Outcome(verdict, measured, because, printed_flat / flat)


@CLAIMS.add("001-GNLN", "Section 3.3", group_norm_at, layer_norm_at)
def _one_group() -> Outcome:
    """GroupNorm with one group is LayerNorm."""
    x = gaussian(33, 2, 7)
    difference = float((F.group_norm(x, 1, eps=EPS) - layer_norm(x)).abs().max())
    constants = group_norm_at(x, 1, None, EPS), layer_norm_at(x, ones(7), EPS)
    measured = {"largest difference": difference, "constant as GroupNorm": constants[0], "as LayerNorm": constants[1]}
    return holds(difference < 1e-14 and close(*constants), measured, "same map, same constant")


@CLAIMS.add("001-L23", "Lemma 23", layer_norm_jacobian)
def _lemma_23() -> Outcome:
    """The Jacobian of LayerNorm is (1/s)(I - yy'/(||y||^2 + n eps))(I - 11'/n), s = sqrt(sigma^2 + eps).

    Corrected: As stated; with a scale gamma, diag(gamma) multiplies from the left.
    """
    error = 0.0
    for n in (1, 2, 3, 9):
        x = 3 * gaussian(40 + n, n)
        error = max(error, largest(layer_norm_jacobian(x, ones(n), EPS) - jacobian(layer_norm, x)))
    return holds(error < 1e-12, {"largest error of an entry": error}, "the formula against autograd")


@CLAIMS.add("001-SCALE", "Section 3.1, Section 6", batch_norm_running, batch_norm_printed, centered_scale_norm)
def _scale() -> Outcome:
    """Scale and shift of the normalizers are left out for simplicity.

    Corrected: The shift does not matter. With a scale the constants are max_k |gamma_k|/s_k (BatchNorm) and
    ||diag(gamma) P||/s (LayerNorm): the printed ones are no bounds once some |gamma_k| > 1.
    """
    var, gamma = numbers(1, 4, 9), numbers(1, 1, 8)
    layer = _batch_norm_eval(var, gamma)
    true = jacobian_norm(lambda x: layer(x[None])[0], gaussian(50, 3))
    confirm("with a scale", batch_norm_running(gamma, var, EPS), true)
    printed = batch_norm_printed(var, EPS)
    plain = batch_norm_running(None, var, EPS)
    measured = {"true with gamma = (1, 1, 8)": true, "printed without a scale": printed, "true without a scale": plain}
    return assumes(plain <= printed < true, measured, "the printed number needs |gamma| <= 1")
