"""K. Than, Why do deep neural networks perform really well? (slides, 2023): learning, then normalizers."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.rounding import as_float64
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.generalization.decomposition import Decomposition, decompose
from normscope.generalization.pac_bayes import pac_bayes_bound, pac_bayes_printed
from normscope.generalization.printed_bounds import weight_norm_rates
from normscope.generalization.theorem_20 import g_paper, partition_bound
from normscope.generalization.vc import vc_bound, vc_bound_printed, vc_dimension_linear
from normscope.geometry.derivatives import standardized
from normscope.lipschitz.theorem_9 import lemma_5, theorem_9
from normscope.operators.normalizers.batch_norm import batch_norm_running, batch_norm_slides
from normscope.operators.normalizers.group_norm import group_norm_global
from normscope.operators.normalizers.layer_norm import layer_norm_global, layer_norm_printed
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from normscope.papers.claim import Claims, Outcome, Verdict, assumes, bound, close, holds, refuted, unsupported, worst
from normscope.papers.measure import confirm, confirm_bound, gradient, jacobian, jacobian_norm, norm
from normscope.papers.small_networks import certified, chain, layer_norm, layer_norm_at_zero
from normscope.papers.tensors import EPS, gaussian, identity, numbers, ones, zeros
from normscope.papers.than2025.claims.statements_18_to_22_learning import (
    DATASETS,
    DELTA,
    failures,
    fixed_partition,
)
from normscope.papers.than2025.complexity import convex_lower, convex_upper, printed_lower_bounds
from normscope.papers.than2025.complexity.corollaries_18_and_19 import positive

CLAIMS = Claims("than2025slides")


def _errors(seed: int) -> Decomposition:
    """Return the errors of a trained model in a family of twelve, whose losses are drawn at random."""
    population, sample = gaussian(seed, 2, 12).abs()
    chosen = seed % 12
    return decompose(
        truth=0.0,
        best=float(population.min()),
        trained=float(population[chosen]),
        trained_on_data=float(sample[chosen]),
        minimizer_on_data=float(sample.min()),
        largest_deviation=float((population - sample).abs().max()),
    )


@CLAIMS.add("002-est", "Errors of a trained model", decompose)
def _estimation_error() -> Outcome:
    """|F(P, h_o) - F(P, h*)| <= |F(D, h_o) - F(D, h_o*)| + 2 sup_h |F(P, h) - F(D, h)|.

    Corrected: As stated: add and subtract, and F(D, h_o*) <= F(D, h*).
    """
    least = math.inf
    for seed in range(500):
        parts = _errors(seed)
        least = min(least, (parts.bound or 0.0) - abs(parts.estimation))
    return holds(least >= -1e-12, {"least right side minus left side, 500 cases": least}, "never below")


@CLAIMS.add("002-dec", "Errors of a trained model, note", decompose)
def _decomposition() -> Outcome:
    """The excess risk is the estimation error plus the approximation error."""
    errors = [abs(p.estimation + p.approximation - p.total) for p in map(_errors, range(100))]
    return holds(max(errors) < 1e-12, {"largest difference of both sides, 100 cases": max(errors)}, "an identity")


@CLAIMS.add("002-sum", "Errors of a trained model, in summary", decompose)
def _summary() -> Outcome:
    """The error is the optimization error plus the generalization error plus the approximation error.

    Corrected: A fourth part is missing, F(D, h_o*) - F(P, h*): it is what the factor 2 of 002-est pays for.
    """
    parts = _errors(3)
    missing = parts.slides_total - parts.total
    confirm("the missing part", -parts.selection, missing)
    measured = {"error": parts.total, "sum of the three parts": parts.slides_total, "missing part": parts.selection}
    return refuted(not close(missing, 0.0), measured, "the three parts do not add up to the error")


@CLAIMS.add("002-VC", "Generalization: VC dimension", vc_dimension_linear)
def _vc_dimension() -> Outcome:
    """Linear models in n dimensions have VC dimension n + 1; ReLU networks with W weights at least W log W.

    Corrected: The first holds. The second is of Bartlett et al. (2019), with the depth in it, and is not checked.
    """
    n = 4
    points = torch.cat([torch.zeros(1, n), torch.eye(n)]).double()
    lifted = torch.cat([points, ones(n + 1, 1)], 1)
    shattered = 0
    for signs in itertools.product((-1.0, 1.0), repeat=n + 1):
        solution = torch.linalg.solve(lifted, torch.tensor(signs, dtype=torch.float64))
        shattered += int(bool((torch.sign(lifted @ solution) == torch.tensor(signs)).all()))
    more = torch.cat([lifted, gaussian(5, 1, n + 1).abs() + 0.1])
    dependent = int(torch.linalg.matrix_rank(more)) < len(more)
    dimension = vc_dimension_linear(n)
    measured = {"labelings of 5 points reached, of 32": shattered, "6 points are dependent": dependent}
    right = shattered == 2**dimension and dependent and dimension == n + 1
    return holds(right, measured, "affine functions in four dimensions")


@CLAIMS.add("002-VCb", "Generalization: VC dimension, the bound", vc_bound_printed, vc_bound)
def _vc_bound() -> Outcome:
    """The gap is at most sqrt((2/m) VC log(2em/VC) + (1/m) log(2/delta)); this is vacuous for networks with more
    weights than samples.

    Corrected: As stated, for the 0-1 loss and m >= VC: it is above the bound of Vapnik, which is taken from him.
    """
    cases = [(d, m, delta) for d in (1, 10, 100) for m in (100, 1000, 10**6) for delta in (0.001, 0.05, 0.5)]
    ratios = [vc_bound_printed(*case).value / vc_bound(*case).value for case in cases]
    vacuous = vc_bound_printed(50_000, 50_000, 0.05).value
    measured = {"least printed / cited, 27 cases": min(ratios), "VC = m = 50000": vacuous}
    return holds(min(ratios) >= 1 and vacuous > 1, measured, "never below the cited bound, and above 1 for VC = m")


@CLAIMS.add("002-PB", "PAC-Bayes", pac_bayes_printed, pac_bayes_bound)
def _pac_bayes() -> Outcome:
    """The mean gap over a posterior is at most sqrt((KL + log(m/delta))/(2m - 1)) (McAllester).

    Corrected: As stated, for a prior chosen before the data: above the bound of Maurer for m >= 8, taken from him.
    """
    cases = [(kl, m, delta) for kl in (0.0, 10.0, 1e4) for m in (8, 1000, 10**6) for delta in (0.001, 0.5)]
    ratios = [pac_bayes_printed(*case).value / pac_bayes_bound(*case).value for case in cases]
    return holds(min(ratios) >= 1, {"least printed / cited, 18 cases": min(ratios)}, "never below the cited bound")


def _cited(what: str) -> Outcome:
    return Outcome(Verdict.NOT_CHECKABLE, {}, f"a statement about other papers: {what}")


@CLAIMS.add("002-norm", "Generalization: weight norm", weight_norm_rates)
def _weight_norms() -> Outcome:
    """Bartlett et al. bound the gap by prod ||W_k||_2 / sqrt(m).

    Corrected: Incomplete: the margin and (sum (||W_k||_{2,1}/||W_k||)^(2/3))^(3/2) are missing.
    """
    return _cited("Bartlett et al. 2017, Neyshabur et al. 2018, Golowich et al. 2020")


@CLAIMS.add("002-tab", "PAC-Bayes, table")
def _table() -> Outcome:
    """Non-vacuous bounds of several papers for MNIST, CIFAR-10 and ImageNet."""
    return _cited("Dziugaite and Roy, Zhou et al., Lotfi et al., Biggs and Guedj")


@CLAIMS.add("002-app", "Approximation and optimization errors")
def _approximation() -> Outcome:
    """Universal approximation, and global minima found by gradient descent for wide networks."""
    return _cited("Cybenko, Hornik, Zhou, Lin and Jegelka, Poggio et al., Du et al., Allen-Zhu et al., Nguyen")


@CLAIMS.add("002-BN", "Lipschitz continuity, BN", batch_norm_running, batch_norm_slides)
def _batch_norm() -> Outcome:
    """The Lipschitz constant of BatchNorm is the l2 norm of the vector gamma_k / sqrt(sigma_k^2 + eps).

    Corrected: max_k |gamma_k| / sqrt(sigma_k^2 + eps); the printed number is the Frobenius norm, an upper bound.
    """
    var, gamma = numbers(0.01, 0.25, 1, 4, 9), numbers(0.3, -2, 1, 5, 0.1)
    true = jacobian_norm(lambda x: gamma * x / (var + EPS).sqrt(), gaussian(1, 5))
    confirm("the largest entry", batch_norm_running(gamma, var, EPS), true)
    printed = batch_norm_slides(gamma, var, EPS)
    return holds(close(printed, true), {"true": true, "printed": printed}, "a diagonal has its maximum as norm")


@statement("than2025slides", "LN", holds="printed; not a bound: fails for a one-hot scale for every n, and for n = 2")
def layer_norm_slides(gamma: Tensor, std: float, eps: float, n: int | None = None) -> float:
    """Return the printed ``(1 - 1/n) ||gamma / sqrt(std^2 + eps)||_2``.

    >>> round(layer_norm_slides(torch.tensor([1.0, 0.0]), 0.0, 1e-5), 1)
    158.1
    """
    scale = as_float64(gamma, "gamma").reshape(-1)
    count = scale.numel() if n is None else n
    norm = float(torch.linalg.vector_norm(scale.expand(count) if scale.numel() == 1 else scale))
    return (1.0 - 1.0 / count) * norm * layer_norm_printed(std, eps)


@statement("than2025slides", "GN", holds="printed; not a bound: fails for a one-hot scale")
def group_norm_slides(gamma: Tensor, std: float, eps: float, group_size: int) -> float:
    """Return the printed ``(1 - 1/n_g) ||gamma / sqrt(std^2 + eps)||_2`` for one group of ``n_g`` values.

    >>> round(group_norm_slides(torch.tensor([1.0, 0.0, 0.0]), 0.0, 1.0, 3), 4)
    0.6667
    """
    norm, inverse = float(as_float64(gamma, "gamma").norm()), layer_norm_printed(std, eps)
    return inverse if math.isinf(inverse) else (1.0 - 1.0 / group_size) * norm * inverse


def _one_hot(n: int) -> Tensor:
    return identity(n)[0]


@CLAIMS.add("002-LN", "Lipschitz continuity, LN", layer_norm_global, layer_norm_slides, centered_scale_norm)
def _layer_norm() -> Outcome:
    """LayerNorm is Lipschitz with (1 - 1/n) times the l2 norm of gamma / sqrt(sigma^2 + eps).

    Corrected: ||diag(gamma) P|| / sqrt(eps), P = I - 11'/n, exactly. (1 - 1/n) bounds the diagonal of the Jacobian, not
    its norm; for gamma = 1 and n >= 3 the slide is true and loose by (1 - 1/n) sqrt(n).
    """
    one_hot = {f"gamma = e_1, n = {n}": _one_hot(n) for n in (2, 10)}
    measured, verdicts = {}, []
    for name, gamma in (one_hot | {"gamma = 1, n = 2": ones(2)}).items():
        true = norm(gamma[:, None] * jacobian(layer_norm, zeros(len(gamma))))
        confirm(name, layer_norm_global(gamma, EPS), true)
        printed = layer_norm_slides(gamma, 0.0, EPS)
        measured[f"true at a constant input, {name}"], measured[f"printed, {name}"] = true, printed
        verdicts.append(bound(printed, true))
    return Outcome(worst(verdicts), measured, "the printed number is below the constant")


@CLAIMS.add("002-GN", "Lipschitz continuity, GN", group_norm_global, group_norm_slides)
def _group_norm() -> Outcome:
    """GroupNorm is Lipschitz with (1 - 1/n_g) times the l2 norm of gamma / sqrt(sigma^2 + eps).

    Corrected: max_g ||diag(gamma_g) P_g|| / sqrt(eps).
    """
    gamma = torch.cat([_one_hot(3), _one_hot(3)])
    flat = zeros(1, 6)
    true = jacobian_norm(lambda x: F.group_norm(x, 2, gamma, eps=EPS), flat)
    confirm("the largest group", group_norm_global(gamma, 2, EPS), true)
    printed = group_norm_slides(_one_hot(3), 0.0, EPS, 3)
    root = math.sqrt(EPS)
    measured = {"true times sqrt(eps), gamma = e_1, n_g = 3": true * root, "printed times sqrt(eps)": printed * root}
    return Outcome(bound(printed, true), measured, "the printed number is below the constant")


@CLAIMS.add("002-01", "Batch Normalization", standardized)
def _unit_variance() -> Outcome:
    """After BatchNorm each signal has mean 0 and variance 1.

    Corrected: Mean 0 and variance sigma^2/(sigma^2 + eps), over the batch whose statistics are used.
    """
    x = 0.01 * gaussian(3, 200, 1)
    y = F.batch_norm(x, None, None, training=True, eps=EPS)
    var, after = float(x.var(unbiased=False)), float(y.var(unbiased=False))
    confirm("sigma^2/(sigma^2 + eps)", var / (var + EPS), after)
    measured = {"mean": float(y.mean()), "variance before": var, "variance after": after}
    return refuted(not close(after, 1.0), measured, "eps = 1e-5 keeps the variance below 1")


@CLAIMS.add("002-D1", "Definition 1")
def _definition_1() -> Outcome:
    """Networks of K layers, 1-Lipschitz activations, ||W_i|| <= s_i, with and without normalizers.

    Corrected: A definition; with BatchNorm the s_i restrict nothing (see 001-D8).
    """
    return Outcome(Verdict.NOT_CHECKABLE, {}, "a definition claims nothing")


@CLAIMS.add("002-L4", "Lemma 4", lemma_5, theorem_9)
def _lemma_4() -> Outcome:
    """The constant of a network is at most prod s_k, that of its normalized version prod s_k ||NO_k||.

    Corrected: As stated; see 001-L5 and 001-T9.
    """
    ratios = []
    for seed in range(10):
        weights = [gaussian(3000 + 10 * seed + k, 5, 5) for k in range(3)]
        norms = certified(norm(w) for w in weights)
        factor = certified([layer_norm_global(ones(5), 0.1)] * 3)
        plain, normalized = chain(weights), chain(weights, lambda y, _: F.layer_norm(y, (5,), eps=0.1))
        for x in gaussian(seed, 3, 5):
            ratios.append(jacobian_norm(plain, x) / theorem_9(norms, []).value)
            ratios.append(jacobian_norm(normalized, x) / theorem_9(norms, factor).value)
    return holds(max(ratios) <= 1, {"largest attained / bound, 60 cases": max(ratios)}, "never exceeded")


@CLAIMS.add("002-num", "Lemma 4, ResNet-18")
def _resnet_18() -> Outcome:
    """The product of ||gamma_k/sigma_k|| of a ResNet-18 is about 1.35e-8, which is about 1.35 x 2^-26.5.

    Corrected: 1e-8 is 2^-26.575, and 1.35 x 2^-26.5 = 1.42e-8. The paper reports 1e-25 for the same network; neither is
    a property of the network (001-RED).
    """
    printed, written = 1.35e-8, 1.35 * 2.0**-26.5
    measured = {"1.35 x 2^-26.5": written, "printed": printed, "log2(1e-8)": math.log2(1e-8)}
    return refuted(not close(written / printed, 1.0, 0.005), measured, "the two numbers differ in the second digit")


@CLAIMS.add("002-exp", "Normalization: our work", layer_norm_global, group_norm_global)
def _exponential() -> Outcome:
    """BatchNorm reduces the Lipschitz constant exponentially, and many other normalizers do.

    Corrected: Not for the same weights: see 001-RED for BatchNorm and 001-C11r for LayerNorm, whose constant on all
    inputs is eps^(-K/2).
    """
    constants = {depth: layer_norm_at_zero(8, depth) for depth in (1, 2, 4)}
    measured = {f"constant of W = I with LayerNorm, K = {depth}": constant for depth, constant in constants.items()}
    grows = constants[1] > 1 and close(constants[4], constants[2] ** 2, 1e-6)
    return refuted(grows, measured, "it grows exponentially there")


@CLAIMS.add("002-T1", "Theorem 1", partition_bound, g_paper)
def _theorem_1() -> Outcome:
    """|F(P, h) - F(D, h)| <= sum (m_i/m) lambda_i L_i + g with probability 1 - delta, lambda_i the diameters.

    Corrected: For a partition fixed before the data and 0 <= loss <= C; the same event bounds both signs (001-T20).
    """
    fixed = [fixed_partition(seed, 200, 10) for seed in range(300)]
    fixed_fails = sum(gap > limit for gap, limit, _ in fixed)
    own_fails, _ = failures()
    measured = {"violations, fixed, of 300": fixed_fails, "violations, partition from the data, of 200": own_fails}
    needed = fixed_fails <= DELTA * len(fixed) and own_fails > DELTA * DATASETS
    return assumes(needed, measured, "the partition must not depend on the data", Verdict.FALSE)


@CLAIMS.add("002-gen", "Exponential benefits: generalization", batch_norm_running, theorem_9)
def _smaller_gap() -> Outcome:
    """With BatchNorm the gap is omega prod ||gamma_k/sigma_k|| + O(m^-0.5), so exponentially smaller, and deeper
    networks save more samples.

    Corrected: Under the assumptions of 001-T20 with constants of the same network. The product changes with the scale
    of the weights while omega changes inversely: only their product, with folded weights, says something.
    """
    data, weight = gaussian(3100, 256, 6), gaussian(3101, 6, 6)
    values = {}
    for c in (1.0, 1e3):
        y = c * data @ weight.mT
        values[c] = batch_norm_running(None, y.var(0, unbiased=False), 0.0), c * norm(weight)
    measured = {
        "||BN||": values[1.0][0],
        "||BN||, weights times 1000": values[1e3][0],
        "||BN|| ||W||": values[1.0][0] * values[1.0][1],
        "||BN|| ||W||, weights times 1000": values[1e3][0] * values[1e3][1],
    }
    scale = close(values[1.0][0] / values[1e3][0], 1e3, 1e-6)
    same = close(measured["||BN|| ||W||"], measured["||BN|| ||W||, weights times 1000"])
    return unsupported(scale and same, measured, "what the factor gains, omega loses: the network is the same")


@CLAIMS.add("002-chain", "Exponential benefits: optimization")
def _chain_rule() -> Outcome:
    """df/dW_i = df/dh x dh/dy_i x h_{i-1}, y_i = W_i h_{i-1}.

    Corrected: As stated, as an outer product: the gradient is (J' df/dh) h_{i-1}'.
    """
    weights, x = [gaussian(3200 + k, 4, 4) for k in range(3)], gaussian(3210, 4)
    hidden = torch.tanh(weights[0] @ x)

    def after(y: Tensor) -> Tensor:
        return torch.tanh(weights[2] @ torch.tanh(y))

    def loss(h: Tensor) -> Tensor:
        return (h**2).sum()

    y = weights[1] @ hidden
    product = jacobian(after, y).mT @ gradient(loss, after(y))
    true = gradient(lambda w: loss(chain([weights[0], w, weights[2]], activation=torch.tanh)(x)), weights[1])
    error, largest = float((torch.outer(product, hidden) - true).abs().max()), float(true.abs().max())
    return holds(error < 1e-12 < largest, {"largest error": error, "largest entry": largest}, "against autograd")


@statement(
    "than2025slides", "Convergence rate", holds="printed without what the error is of; non-convex at fixed delta"
)
def slides_rates(lipschitz: Value, alpha: float) -> dict[str, Value]:
    """Return iterations after which the printed errors are ``alpha``: ``(L^2/T)^(1/3)``, and ``L/sqrt(T)`` if convex.

    So ``T = L^2/alpha^3`` and ``T = L^2/alpha^2``: the first disagrees with ``L/alpha^2`` of Corollary 19.

    >>> [round(v.value, 9) for v in slides_rates(Value.of(4.0, Kind.CERTIFIED), 0.5).values()]
    [128.0, 64.0]
    """
    log = math.log(positive(alpha, "alpha"))
    said = ("printed as an error after T iterations",)
    return {
        name: Value(2 * lipschitz.log - power * log, Kind.PRINTED, statement="than2025slides Convergence rate",
                    assumptions=said)
        for name, power in (("non-convex", 3), ("convex", 2))
    }  # fmt: skip


@CLAIMS.add("002-opt", "Exponential benefits: optimization", slides_rates, printed_lower_bounds)
def _optimization() -> Outcome:
    """Every gradient method needs L/alpha iterations at least for an alpha-stationary point; after T the error is
    (L^2/T)^(1/3).

    Corrected: See 001-IC and 001-C18: a lower bound is about the worst function of a class. The second is the rate
    L^2/alpha^3 for (delta, alpha)-Goldstein points, and contradicts the L/alpha^2 of 001-C19.
    """
    slope, alpha = 100.0, 0.01
    flat = float(gradient(lambda w: slope * torch.relu(w @ numbers(1, 1)), numbers(-1, -1)).norm())
    lipschitz = Value.of(slope * math.sqrt(2), Kind.CERTIFIED)
    claimed = printed_lower_bounds(lipschitz, alpha)["non-convex"].value
    rate = slides_rates(lipschitz, alpha)["non-convex"].value
    confirm("(L^2/T)^(1/3) = alpha at T = L^2/alpha^3", (lipschitz.value**2 / rate) ** (1 / 3), alpha)
    measured = {"gradient at the start": flat, "iterations needed": 0, "claimed at least": claimed}
    return refuted(flat <= alpha, measured, "100 relu(w1 + w2) is 141-Lipschitz and flat where it starts")


@CLAIMS.add("002-cvx", "Exponential benefits: optimization", convex_upper, convex_lower)
def _convex() -> Outcome:
    """For convex functions the error after T iterations is of order L/sqrt(T).

    Corrected: As stated, times the distance to a minimizer: L R / sqrt(T).
    """
    measured, ratios = {}, []
    for steps in (100, 400, 1600):
        x, total, start = 1.0, 0.0, 1.0
        for _ in range(steps):
            total += abs(x)
            x -= start / math.sqrt(steps) * (1.0 if x > 0 else -1.0)
        needed = convex_upper(Value.of(1.0, Kind.CERTIFIED), start, total / steps).value
        confirm_bound("L^2 R^2 / alpha^2 steps are enough", float(steps), needed)
        measured[f"mean of |x| over {steps} steps"] = total / steps
        ratios.append(total / steps * math.sqrt(steps))
    shrinks = all(close(a / b, 1.0, 0.2) for a, b in itertools.pairwise(ratios))
    return holds(shrinks, measured, "the subgradient method on |x|")
