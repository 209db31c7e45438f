"""Attack the statements about balls around the data: Lipschitz constants, and radii of constant decisions."""

import math

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.testing.attack_context import AttackContext
from normscope.testing.input_pairs import dense_norms, most_stretched, unit
from normscope.testing.refutation import Attack

#: Largest number of outputs for which whole Jacobians are formed; larger ones are measured by Lanczos.
ROWS = 64
#: Random points tried in every ball, and ascent steps from the best of them.
PLACES, STEPS = 12, 6
#: Relative rounding error of the norm of a Jacobian.
_ROUNDING = 1e-9


def attack_balls(context: AttackContext) -> None:
    """Test the constants of all balls against Jacobians inside them, and every radius against a changed decision.

    The result lists the constants of its data points in sorted order. If each holds at its own point, then the smallest
    constant is at least the smallest norm, the second smallest at least the second smallest norm, and so on.
    """
    around = context.result.around
    if around is None:
        return
    if around.points > len(context.data):
        context.skip("around", f"it is about {around.points} points, but {len(context.data)} are attacked")
        return
    for near in around.neighbourhoods:
        context.say(f"attacking the constants within {near.radius:g} of the data")
        found = sorted(steepest(context, x, near.radius) for x in context.data)
        for claimed, attained in zip(sorted(near.constants), found, strict=False):
            if claimed < math.inf:
                _record(
                    context, f"within {near.radius:g}", "constants", claimed, attained * (1 - _ROUNDING), lower=False
                )
    if around.radii:
        context.say("attacking the decisions")
        distances = sorted((distance_to_another_decision(context, x) for x in context.data), reverse=True)
        for claimed, attained in zip(sorted(around.radii, reverse=True), distances, strict=False):
            _record(context, "decisions", "radii", claimed, attained, lower=True)


def _record(context: AttackContext, name: str, number: str, claimed: float, attained: float, *, lower: bool) -> None:
    logs = log_of(claimed), log_of(attained) if attained < math.inf else math.inf
    context.attacks.append(Attack("around", name, number, "points of the data", *logs, lower, "Jacobian"))


def _norms(context: AttackContext, x: Tensor) -> Tensor:
    if context.trace.output.shape[1] <= ROWS:
        return dense_norms(context.output, x).nan_to_num(0.0)
    return most_stretched(context.output, x, 10, context.generator)[0]


def steepest(context: AttackContext, x: Tensor, radius: float) -> float:
    """Return the largest norm of the Jacobian found in a ball around a point."""
    best = float(_norms(context, x[None]))
    if radius == 0:
        return best
    radius *= 1 - 1e-9
    count = max(2, int(PLACES * context.effort)) if context.independent else 2
    edge = x + radius * unit(context.random(count, len(x)))
    norms = _norms(context, edge)
    best = max(best, float(norms.max()))
    point = edge[int(norms.argmax())]
    for _ in range(max(1, int(STEPS * context.effort))):
        point = _climbed(context, x, point, radius)
        best = max(best, float(_norms(context, point[None])))
    return best


def _climbed(context: AttackContext, centre: Tensor, point: Tensor, radius: float) -> Tensor:
    """Return the point on the sphere in the direction in which the norm of the Jacobian grows fastest."""
    _, direction = most_stretched(context.output, point[None], 10, context.generator)
    leaf = point[None].detach().clone().requires_grad_(True)
    with torch.enable_grad():
        _, image = torch.autograd.functional.jvp(context.output, leaf, direction, create_graph=True)
        if not image.requires_grad:
            return point
        (slope,) = torch.autograd.grad(image.square().sum(), leaf, allow_unused=True, materialize_grads=True)
    size = float(slope.norm())
    if not 0 < size < math.inf:  # piecewise linear: any other direction is as good
        slope = context.random(*leaf.shape)
        size = float(slope.norm())
    return centre + radius * (slope / size)[0].detach()


def distance_to_another_decision(context: AttackContext, x: Tensor, steps: int = 8) -> float:
    """Return the distance to the nearest input with another decision that linear steps find, or infinity."""
    with torch.no_grad():
        first = int(context.output(x[None])[0].argmax())
    best, point = math.inf, x.clone()
    for _ in range(steps):
        leaf = point[None].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            y = context.output(leaf)[0]
            if not y.requires_grad:
                return math.inf
            gaps = [y[first] - y[k] for k in y.argsort(descending=True).tolist() if k != first][:4]
            slopes = [torch.autograd.grad(gap, leaf, retain_graph=True)[0][0] for gap in gaps]
        moves = [
            -float(d.detach()) / max(float(g.square().sum()), 1e-300) * g for d, g in zip(gaps, slopes, strict=True)
        ]
        move = min(moves, key=lambda m: float(m.norm()))
        if not bool(move.isfinite().all()) or not float(move.norm()):
            break
        tried = torch.stack([point + t * move for t in (1.0, 1.001, 1.02, 1.2)])
        with torch.no_grad():
            changed = context.output(tried).argmax(1) != first
        for t in tried[changed]:
            best = min(best, float((_nearest(context, x, t, first) - x).norm()))
        if bool(changed.any()):
            break
        point = tried[1]
    return best


def _nearest(context: AttackContext, x: Tensor, changed: Tensor, first: int, steps: int = 30) -> Tensor:
    """Bisect the segment from a point to one with another decision; return the nearest one found to differ."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        with torch.no_grad():
            same = int(context.output((x + middle * (changed - x))[None])[0].argmax()) == first
        low, high = (middle, high) if same else (low, middle)
    return x + high * (changed - x)
