"""P. Cisneros-Velarde et al., Optimization and Generalization Guarantees for Weight Normalization: a published summary.

Only what the summary says is here; its theorems were not compared with the paper itself.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.geometry.conservation import conserved
from normscope.geometry.flow import Point, gradient_of
from normscope.geometry.hessian import dense_hessian
from normscope.geometry.norm_growth import growth_after_heavy_ball, square_after_step
from normscope.operators.normalizers.weight_norm import weight_norm_bounds, weight_norm_effective
from normscope.papers.claim import Claims, Outcome, Verdict, assumes, close, holds, refuted
from normscope.papers.measure import confirm, confirm_bound, norm
from normscope.papers.small_networks import gradient_descent, hidden_layer, square_loss
from normscope.papers.tensors import ZERO, gaussian, largest, ones, zeros

CLAIMS = Claims("cisneros2025")


def unit_rows(v: Tensor) -> Tensor:
    """Return the weight of these networks: rows of norm one, without a gain; differentiable.

    >>> unit_rows(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    return v / torch.linalg.vector_norm(v, dim=1, keepdim=True)


def network(point: Point, x: Tensor, *, normalize: bool = True) -> Tensor:
    """Return ``u^T tanh(V^_L ... tanh(V^_1 x)/sqrt(m_1) ...)/sqrt(m_L)``, where ``V_k`` has ``m_k`` rows.

    Layers are named 0, 1, ... and ``u`` is the last.

    >>> network({"0": ones(2, 3), "u": ones(2)}, zeros(1, 3)).tolist()
    [0.0]
    """
    h = x
    for k in range(len(point) - 1):
        weight = unit_rows(point[str(k)]) if normalize else point[str(k)]
        h = torch.tanh(h @ weight.mT) / math.sqrt(len(weight))
    return h @ point["u"]


def _one_layer(*, normalize: bool = True) -> tuple[Callable[..., Tensor], Tensor]:
    """Return the square loss of one hidden layer of five rows, its output layer fixed, and where it starts.

    The loss is over all samples, or over those of a batch.
    """
    x, target, u = gaussian(700, 24, 4), gaussian(701, 24), 3 * gaussian(703, 5)

    def loss(p: Point, batch: slice = slice(None)) -> Tensor:
        return (network({**p, "u": u}, x[batch], normalize=normalize) - target[batch]).square().mean()

    return loss, gaussian(702, 5, 4)


@CLAIMS.add("004-def", "Method Summary", weight_norm_effective)
def _definition() -> Outcome:
    """WeightNorm here divides every weight vector by its norm; there is no gain.

    Corrected: The special case g = 1 of w = g v/||v||; a gain multiplies the layer's constant by up to max |g_i|.
    """
    v = gaussian(704, 5, 4)
    gap = largest(weight_norm_effective(v) - unit_rows(v))
    gain = torch.full((5,), 3.0, dtype=torch.float64)
    with_gain = norm(weight_norm_effective(v, gain)) / norm(unit_rows(v))
    return holds(gap < ZERO, {"difference to g = 1": gap, "constant with g = 3 over g = 1": with_gain}, "the same map")


@CLAIMS.add("004-M1", "Mechanism 1", weight_norm_bounds)
def _unit_jacobians() -> Outcome:
    """With normalized weight vectors the Jacobians of the layers have norm at most one, so that depth costs nothing.

    Corrected: Needs the factor 1/sqrt(m) behind each layer and 1-Lipschitz activations: rows of norm one give 1 <=
    ||V^|| <= sqrt(m), attained by equal rows; without the factor depth may cost m^(L/2).
    """
    m, depth = 4, 6
    random = [norm(unit_rows(gaussian(705 + k, 8, 8))) for k in range(5)]
    equal = ones(m, m)
    bounds = weight_norm_bounds(equal)
    confirm("||V^|| of equal rows", math.sqrt(m), norm(unit_rows(equal)))
    confirm_bound("||V^||", bounds.upper, norm(unit_rows(equal)))
    product = norm(torch.linalg.matrix_power(unit_rows(equal), depth))
    scaled = norm(torch.linalg.matrix_power(unit_rows(equal) / math.sqrt(m), depth))
    measured = {
        "||V^||, random 8 x 8, largest": max(random),
        "||V^||, four equal rows": norm(unit_rows(equal)),
        "six such layers": product,
        "six such layers with 1/sqrt(m)": scaled,
        "||V^||/sqrt(m), random, largest": max(random) / math.sqrt(8),
    }
    needs = product > 1 + ZERO and scaled <= 1 + ZERO and max(random) <= math.sqrt(8)
    return assumes(needs, measured, "the scaling by the width carries it")


@CLAIMS.add("004-M1'", "Mechanism 1 (abstract)", dense_hessian)
def _unique() -> Outcome:
    """The dependence of the Hessian bound on the least weight norm is unique to networks without WeightNorm.

    Corrected: It is unique to networks with WeightNorm, where the Hessian falls like 1/||v||^2. Without it larger
    weights do not flatten the loss.
    """
    ratios = {}
    for normalize in (True, False):
        loss, start = _one_layer(normalize=normalize)
        sizes = [norm(dense_hessian(loss, {"0": c * start})) for c in (0.05, 0.1)]
        ratios[normalize] = sizes[1] / sizes[0]
    confirm("the Hessian at twice the norm", 0.25, ratios[True])
    measured = {"Hessian at 2v over v, WeightNorm": ratios[True], "at 2w over w, plain": ratios[False]}
    because = "the Hessian falls with the norm under WeightNorm, and not without"
    return refuted(ratios[True] < 0.5 < ratios[False], measured, because)


@CLAIMS.add("004-H", "Key Results (Hessian)", dense_hessian)
def _depth() -> Outcome:
    """The Hessian of the loss is bounded without an exponential dependence on depth.

    Corrected: With rows of norm one, 1/sqrt(m) and smooth 1-Lipschitz activations.
    """
    x, target = gaussian(710, 16, 4), gaussian(711, 16)

    def size(depth: int, normalize: bool) -> float:
        point = {str(k): gaussian(712 + k, 4, 4) for k in range(depth)}
        if not normalize:
            point = {k: 2 * torch.linalg.qr(v)[0] for k, v in point.items()}

        def loss(p: Point) -> Tensor:
            h = x
            for k in range(depth):
                h = h @ ((unit_rows(p[str(k)]) / 2 if normalize else p[str(k)]).mT)
            return (h @ p["u"] - target).square().mean() / 2

        return norm(dense_hessian(loss, point | {"u": gaussian(720, 4)}))

    sizes = {normalize: [size(depth, normalize) for depth in (2, 4, 6)] for normalize in (True, False)}
    measured = {
        "WeightNorm, depth 2": sizes[True][0],
        "depth 6": sizes[True][2],
        "weights of norm 2, depth 2": sizes[False][0],
        "plain, depth 6": sizes[False][2],
    }
    flat = max(sizes[True][1:]) <= 2 * sizes[True][0] and sizes[False][2] > 16 * sizes[False][0]
    return holds(flat, measured, "no product of norms above one is left")


@CLAIMS.add("004-M2", "Mechanism 2, Key Results (generalization)")
def _width() -> Outcome:
    """The generalization gap is O(sqrt(L)/sqrt(n)), whatever the width, if the activation is zero at zero.

    Corrected: A theorem of the paper itself, not held against its text. What a check can see of it: ||V^||/sqrt(m) <= 1
    at every width, and tanh(0) = 0.
    """
    ratios = [norm(unit_rows(gaussian(730 + m, m, 8))) / math.sqrt(m) for m in (4, 16, 64, 256)]
    measured = {"||V^||/sqrt(m), largest over the widths": max(ratios), "tanh(0)": math.tanh(0.0)}
    verdict = Verdict.NOT_CHECKABLE if max(ratios) <= 1 + ZERO else Verdict.FALSE
    return Outcome(verdict, measured, "only its hypotheses can be seen here")


@CLAIMS.add("004-RSC", "Mechanism 3, Key Results (optimization)")
def _convexity() -> Outcome:
    """Gradient descent converges if ||grad L||^2/L stays above a threshold that falls with the width and the least
    norm.

    Corrected: A theorem of the paper itself, whose constants the summary does not give. ||grad_v L||^2/L is itself not
    scale-free: it falls like 1/||v||^2 for one and the same function.
    """
    loss, start = _one_layer()

    def ratio(point: Point) -> float:
        return float(gradient_of(loss, point)["0"].square().sum() / loss(point))

    values = [ratio({"0": c * start}) for c in (1.0, 2.0)]
    measured = {"||grad||^2/L at v": values[0], "at 2v": values[1]}
    verdict = Verdict.NOT_CHECKABLE if close(values[1], values[0] / 4) else Verdict.FALSE
    return Outcome(verdict, measured, "no constants to compare with")


@CLAIMS.add("004-M3", "Mechanism 3", dense_hessian)
def _hessian_falls() -> Outcome:
    """A larger least norm of the weight vectors makes the Hessian smaller.

    Corrected: Exactly like 1/||v||^2, because the network does not depend on ||v||: it is a matter of the step size
    only.
    """
    loss, start = _one_layer()
    at = [dense_hessian(loss, {"0": c * start}) for c in (1.0, 3.0)]
    error = largest(9 * at[1] - at[0])
    x, u = gaussian(700, 24, 4), 3 * gaussian(703, 5)
    same = largest(network({"0": 3 * start, "u": u}, x) - network({"0": start, "u": u}, x))
    measured = {"Hessian at v": norm(at[0]), "at 3v": norm(at[1]), "error of 1/9": error, "change of the network": same}
    return holds(error < ZERO and same < ZERO, measured, "a function of the direction")


@CLAIMS.add("004-M3c", "Mechanism 3, Key Results (experiments)", square_after_step)
def _faster() -> Outcome:
    """Training converges faster where the least weight norm is larger.

    Corrected: At a fixed step it is slower: the step on the sphere is eta/||v||^2. With eta ~ ||v||^2 the paths are the
    same.
    """
    loss, start = _one_layer()
    small, large = {"0": start}, {"0": 5 * start}
    ends = [float(loss(gradient_descent(loss, p, size, 60))) for p, size in ((small, 0.1), (large, 0.1), (large, 2.5))]
    confirm("the loss from 5v with 25 times the step", ends[0], ends[2])
    measured = {
        "loss at the start": float(loss(small)),
        "after 60 steps from v": ends[0],
        "from 5v": ends[1],
        "from 5v with 25 times the step": ends[2],
    }
    return refuted(ends[1] > ends[0] + 1e-6, measured, "the norm only divides the step")


@CLAIMS.add("004-fail", "Failure signatures", square_after_step)
def _small_norm() -> Outcome:
    """If the least norm of a weight vector comes near zero, convergence degrades.

    Corrected: One step from a small norm throws the vector out to eta G/||v||, and every later step is small.
    """
    loss, start = _one_layer()
    tiny = {"0": 1e-4 * start}
    thrown = gradient_descent(loss, tiny, 0.1, 1)["0"].norm(dim=1)
    ends = [float(loss(gradient_descent(loss, p, 0.1, 60))) for p in ({"0": start}, tiny)]
    least = float(thrown.min())
    measured = {"loss after 60 steps from v": ends[0], "from v/10000": ends[1], "least norm after a step": least}
    return holds(ends[1] > ends[0] + 1e-6, measured, "one long step, then tiny ones, and the loss stays higher")


def _rows_under(rule: str) -> float:
    """Return the largest fall of a row's norm in any step on mini-batches: plain, heavy-ball, decayed or Adam."""
    loss, start = _one_layer()
    v, eta = start, 0.05 if rule == "adam" else 0.5
    first = second = move = torch.zeros_like(v)
    growth, fall = zeros(5), 0.0
    for k in range(60):
        batch = slice(8 * (k % 3), 8 * (k % 3) + 8)
        slope = gradient_of(functools.partial(loss, batch=batch), {"0": v})["0"]
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope.square()
        adapted = first / (1 - 0.9 ** (k + 1)) / ((second / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
        direction = {"momentum": slope - 0.9 * move / eta, "decay": slope + 0.1 * v, "adam": adapted}.get(rule, slope)
        following = v - eta * direction
        squares, moved = (v.square().sum(1), following.square().sum(1)), following - v
        for i in range(5):
            if rule == "plain":
                said = square_after_step(float(squares[0][i]), float(slope[i].square().sum()), eta)
                confirm("||v+||^2", said, float(squares[1][i]))
            elif rule == "momentum":
                parts = (float(growth[i]), float(move[i].square().sum()), float(moved[i].square().sum()))
                grown = float(squares[1][i] - squares[0][i])
                confirm("the growth of ||v||^2", growth_after_heavy_ball(*parts, 0.9), grown)
        fall = max(fall, float((squares[0].sqrt() - squares[1].sqrt()).max()))
        growth, move, v = squares[1] - squares[0], moved, following
    return fall


@CLAIMS.add("004-Q1", "Open Question 1", square_after_step, growth_after_heavy_ball)
def _least_norm() -> Outcome:
    """Does the least norm of the weight vectors stay away from zero in training? It is observed, not guaranteed.

    Corrected: Yes for gradient descent on any batches, with or without heavy-ball momentum: ||v+||^2 = ||v||^2 + eta^2
    ||grad||^2, so no row ever gets shorter. No with weight decay or Adam.
    """
    falls = {rule: _rows_under(rule) for rule in ("plain", "momentum", "decay", "adam")}
    measured = {f"largest fall of a norm in a step, {rule}": fall for rule, fall in falls.items()}
    needs = max(falls["plain"], falls["momentum"]) < ZERO < min(falls["decay"], falls["adam"])
    return assumes(needs, measured, "plain steps never shorten a row")


@CLAIMS.add("004-Q2", "Open Question 2", square_after_step, conserved)
def _other_normalizers() -> Outcome:
    """Can such guarantees be had for BatchNorm or LayerNorm, or is the structure of WeightNorm essential?

    Corrected: The guarantee of Question 1 carries over to every row in front of BatchNorm (eps = 0); in front of
    LayerNorm to the whole matrix with its bias, not to single rows.
    """
    x, target = gaussian(740, 24, 3), gaussian(741, 24, 2)
    falls = {}
    for kind in ("batch", "layer"):
        loss, at = square_loss(x, target, kind), hidden_layer(742)
        worst, whole = 0.0, 0.0
        for _ in range(30):
            following = gradient_descent(loss, at, 0.2, 1)
            worst = max(worst, float((at["W"].norm(dim=1) - following["W"].norm(dim=1)).max()))
            total = [float(p["W"].square().sum() + p["b"].square().sum()) for p in (at, following)]
            whole, at = max(whole, total[0] - total[1]), following
        falls[kind] = worst
        confirm("the fall of ||W||^2 + ||b||^2", 0.0, whole)
    measured = {f"largest fall of a row's norm, {kind}": fall for kind, fall in falls.items()}
    needs = falls["batch"] < ZERO < falls["layer"]
    return assumes(needs, measured, "row by row for BatchNorm, as a whole for LayerNorm")


@CLAIMS.add("004-Q3", "Open Question 3")
def _rate() -> Outcome:
    """How does the rate of convergence depend on the width?

    Corrected: A question, not a claim; the summary states 1/sqrt(m) in the Hessian bound without its constants.
    """
    return Outcome(Verdict.NOT_CHECKABLE, {}, "nothing is claimed")
