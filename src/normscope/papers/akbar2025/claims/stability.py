"""Sections 5 and 9.5: step sizes, explosion of gradients, dead units, saddle points, momentum."""

import itertools
import math

import torch
from torch import Tensor

from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import Point, gradient_flow, gradient_of
from normscope.geometry.hessian import dense_hessian
from normscope.geometry.norm_growth import growth_after_heavy_ball
from normscope.papers.akbar2025.claims.laboratory import normalized, square_loss, weight_of_neuron
from normscope.papers.claim import Claims, Outcome, close, given, holds, refuted
from normscope.papers.measure import confirm, gaussian, gradient

CLAIMS = Claims("akbar2025")
ZERO = 1e-10


@CLAIMS.add("003-51L", "Section 5.1 (stability), 9.1", dense_hessian)
def _not_smooth() -> Outcome:
    """BatchNorm lowers the Lipschitz constant of the gradient and keeps gradients bounded.

    Corrected: Both are unbounded: grad L(cw) = grad L(w)/c and the Hessian grows like 1/c^2 as c -> 0. What is bounded
    is ||w|| ||grad|| and ||w||^2 lambda_max.
    """
    loss, start = weight_of_neuron()
    rates, sizes = [], []
    for c in (1.0, 0.1, 0.01):
        point = {"w": c * start["w"]}
        rates.append(float(torch.linalg.eigvalsh(dense_hessian(loss, point)).abs().max()))
        sizes.append(float(gradient_of(loss, point)["w"].norm()))
    confirm("the curvature at w/100", 1e4 * rates[0], rates[2])
    measured = {
        "|H| at w": rates[0],
        "at w/10": rates[1],
        "at w/100": rates[2],
        "gradient at w/100 over w": sizes[2] / sizes[0],
    }
    return refuted(rates[2] > 100 * rates[0], measured, "small weights make the loss as rough as one likes")


@CLAIMS.add("003-51e", "Section 5.1 (stability)")
def _explosion() -> Outcome:
    """By normalizing every layer BatchNorm is suspected to reduce the explosion of gradients exponentially.

    Corrected: In a random deep ReLU network BatchNorm makes gradients explode, by about sqrt(pi/(pi - 1)) = 1.21 per
    layer; He's initialization alone keeps them.
    """
    rates = {}
    for kind in ("batch", "none"):
        width, depth = 128, 16
        x = gaussian(215, 128, width)
        weights = [gaussian(216 + k, width, width) * math.sqrt(2 / width) for k in range(depth)]

        def forward(h: Tensor, kind: str = kind, weights: list[Tensor] = weights) -> Tensor:
            for weight in weights:
                h = torch.relu(normalized(kind, h @ weight.mT))
            return (h * gaussian(240, *h.shape)).sum()

        first = gradient(forward, x)
        last = gaussian(240, *x.shape)
        rates[kind] = float(first.norm() / last.norm()) ** (1 / depth)
    measured = {"growth per layer, BatchNorm": rates["batch"], "growth per layer, plain": rates["none"]}
    because = "gradients grow at every normalized layer and keep their size without one"
    return refuted(rates["batch"] > 1.05 * rates["none"], measured, because)


@CLAIMS.add("003-dead", "Section 5.1 (saddle points)")
def _dead_units() -> Outcome:
    """BatchNorm gives units inputs of mean zero, so that ReLUs are not stuck off.

    Corrected: For beta = 0: some sample has z^ >= 1/sqrt(m - 1). A shift beta <= -gamma sqrt(m - 1) turns a unit off
    for every batch of m, and then neither it nor gamma and beta get a gradient.
    """
    x, m = gaussian(230, 16, 5), 16
    values = normalized("batch", x @ gaussian(231, 40, 5).mT - 50.0)
    fewest = int((values > 0).sum(0).min())
    confirm(
        "the largest value is at least 1/sqrt(m - 1)", 1.0, float(values.max(0).values.min() * math.sqrt(m - 1) >= 1)
    )
    confirm("no value is above sqrt(m - 1)", 1.0, float(float(values.max()) <= math.sqrt(m - 1)))
    shift = torch.full((40,), -math.sqrt(m - 1), dtype=torch.float64)
    slope = gradient(lambda beta: torch.relu(values + beta).square().sum(), shift)
    measured = {
        "samples that turn the worst unit on, beta = 0": fewest,
        "units on, beta = -sqrt(m - 1)": int((values + shift > 0).sum()),
        "gradient of beta there": float(slope.abs().max()),
    }
    needs = fewest > 0 and measured["units on, beta = -sqrt(m - 1)"] == 0
    return given(needs, measured, "a shift of zero keeps units alive, a low one turns them off for good")


@CLAIMS.add("003-sad", "Section 5.1 (saddle points), 7.1", dense_hessian)
def _saddle_noise() -> Outcome:
    """Mini-batch statistics make the gradient of each batch non-zero at a saddle point, so that training leaves it.

    Corrected: There are strict saddles where every mini-batch gradient is exactly zero: gamma = beta = 0 and V = 0.
    """
    x, target = gaussian(232, 24, 3), gaussian(233, 24, 2)
    zero = torch.zeros(4, dtype=torch.float64)
    point = {"W": gaussian(234, 4, 3), "gamma": zero, "beta": zero, "V": torch.zeros(2, 4, dtype=torch.float64)}
    rest = {"c": torch.zeros(2, dtype=torch.float64)}

    def pull(batch: Tensor) -> float:
        slopes = gradient_of(lambda p: square_loss(x[batch], target[batch], "batch")({**p, **rest}), point)
        return max(float(value.abs().max()) for value in slopes.values())

    worst = max(pull(batch) for batch in torch.arange(24).reshape(4, 6))
    bend = dense_hessian(lambda p: square_loss(x, target, "batch")({**p, **rest}), point)
    lowest = float(torch.linalg.eigvalsh(bend)[0])
    measured = {"largest gradient of a mini-batch": worst, "smallest eigenvalue of the Hessian": lowest}
    return refuted(worst == 0.0 and lowest < -ZERO, measured, "no batch pushes off this saddle")


@CLAIMS.add("003-52", "Section 5.2", gradient_flow)
def _arc() -> Outcome:
    """With BatchNorm the path of a weight in the plane is an arc: the norm stays and the angle moves monotonically.

    Corrected: Under the flow. It ends at the best direction from every start but the worst one.
    """
    x = gaussian(235, 30, 2)
    target = standardized(x[:, 0], 0.0)[0] + 0.1 * gaussian(236, 30)

    def loss(p: Point) -> Tensor:
        return (standardized(x @ p["w"], 0.0)[0] - target).square().mean() / 2

    at = {"w": torch.tensor([0.0, 0.5], dtype=torch.float64)}
    angles, norms = [], []
    for _ in range(15):
        angles.append(math.atan2(float(at["w"][1]), float(at["w"][0])))
        norms.append(float(at["w"].norm()))
        at = gradient_flow(loss, at, 0.2, 16)
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
    """Momentum may carry a weight along the radial direction although no gradient points there.

    Corrected: It does, outwards only: ||w_{t+1}||^2 - ||w_t||^2 = mu (||w_t||^2 - ||w_{t-1}||^2) + mu ||p_t||^2 +
    ||p_{t+1}||^2 for heavy ball with moves p, never negative from rest.
    """
    loss, start = weight_of_neuron()
    w, move = start["w"], torch.zeros(3, dtype=torch.float64)
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
    return holds(radial > ZERO and least >= 0, measured, "a move that was tangent once points outwards later")
