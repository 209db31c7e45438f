"""Attack the statements around the data: constants on balls, and radii within which decisions stay the same."""

import math

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.testing.pairs import dense_norms, most_stretched, unit
from normscope.testing.refutation import Attack
from normscope.testing.scene import Scene

#: Outputs up to which Jacobians are formed whole; others are measured along the direction they stretch most.
ROWS = 64
#: Random places looked at in every ball, and steps towards larger Jacobians from the best.
PLACES, STEPS = 12, 6
#: Rounding of a Jacobian.
_ROUNDING = 1e-9


def attack_around(scene: Scene) -> None:
    """Hold the constants of all balls against Jacobians inside them, and every radius against a changed decision.

    The result gives the constants of some points of the data, in an order of its own. If each holds at its own point,
    then the smallest constant is at least the smallest norm of all points, the next at least the next, and so on.
    """
    around = scene.result.around
    if around is None:
        return
    if around.points > len(scene.data):
        scene.skip("around", f"it is about {around.points} points, but {len(scene.data)} are attacked")
        return
    for near in around.neighbourhoods:
        scene.say(f"attacking the constants within {near.radius:g} of the data")
        found = sorted(steepest(scene, x, near.radius) for x in scene.data)
        for claimed, attained in zip(sorted(near.constants), found, strict=False):
            if claimed < math.inf:
                _hold(scene, f"within {near.radius:g}", "constants", claimed, attained * (1 - _ROUNDING), lower=False)
    if around.radii:
        scene.say("attacking the decisions")
        distances = sorted((distance_to_another_decision(scene, x) for x in scene.data), reverse=True)
        for claimed, attained in zip(sorted(around.radii, reverse=True), distances, strict=False):
            _hold(scene, "decisions", "radii", claimed, attained, lower=True)


def _hold(scene: Scene, name: str, number: str, claimed: float, attained: float, *, lower: bool) -> None:
    """Note one attack on a number around the data."""
    logs = log_of(claimed), log_of(attained) if attained < math.inf else math.inf
    scene.attacks.append(Attack("around", name, number, "points of the data", *logs, lower, "Jacobian"))


def _norms(scene: Scene, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the norms of the Jacobians at some points, and the directions they stretch most where these are known."""
    leaf = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        y = scene.rows(leaf, [None])[None]
    if y.shape[1] <= ROWS:
        return dense_norms(y, leaf).nan_to_num(0.0), None
    return most_stretched(y, leaf, 10, scene.generator)


def steepest(scene: Scene, x: Tensor, radius: float) -> float:
    """Return the largest norm of the Jacobian that is found in a ball around a point."""
    best = float(_norms(scene, x[None])[0])
    if radius == 0:
        return best
    radius *= 1 - 1e-9
    count = max(2, int(PLACES * scene.effort)) if scene.independent else 2
    edge = x + radius * unit(scene.random(count, len(x)))
    norms, _ = _norms(scene, edge)
    best = max(best, float(norms.max()))
    point = edge[int(norms.argmax())]
    for _ in range(max(1, int(STEPS * scene.effort))):
        point = _climbed(scene, x, point, radius)
        best = max(best, float(_norms(scene, point[None])[0]))
    return best


def _climbed(scene: Scene, centre: Tensor, point: Tensor, radius: float) -> Tensor:
    """Return the point of the ball in whose direction the Jacobian grows fastest, to first order."""
    leaf = point[None].detach().clone().requires_grad_(True)
    with torch.enable_grad():
        y = scene.rows(leaf, [None])[None]
        _, direction = most_stretched(y, leaf, 10, scene.generator)
        u = torch.zeros_like(y, requires_grad=True)
        back = torch.autograd.grad(y, leaf, u, create_graph=True, allow_unused=True, materialize_grads=True)[0]
        if not back.requires_grad:
            return point
        image = torch.autograd.grad(back, u, direction, create_graph=True, allow_unused=True, materialize_grads=True)[0]
        if not image.requires_grad:
            return point
        (slope,) = torch.autograd.grad(image.square().sum(), leaf, allow_unused=True, materialize_grads=True)
    size = float(slope.norm())
    if not 0 < size < math.inf:  # piecewise linear: any other place of the ball is as good
        slope = scene.random(*leaf.shape)
        size = float(slope.norm())
    return centre + radius * (slope / size)[0].detach()


def distance_to_another_decision(scene: Scene, x: Tensor, steps: int = 8) -> float:
    """Return how far the nearest input with another decision is that linear steps find; infinite if they find none."""
    with torch.no_grad():
        first = int(scene.rows(x[None], [None])[None][0].argmax())
    best, point = math.inf, x.clone()
    for _ in range(steps):
        leaf = point[None].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            y = scene.rows(leaf, [None])[None][0]
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
            changed = scene.rows(tried, [None])[None].argmax(1) != first
        for t in tried[changed]:
            best = min(best, float((_nearest(scene, x, t, first) - x).norm()))
        if bool(changed.any()):
            break
        point = tried[1]
    return best


def _nearest(scene: Scene, x: Tensor, changed: Tensor, first: int, steps: int = 30) -> Tensor:
    """Return a point on the way from a point to one with another decision, where the decision is still another."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        with torch.no_grad():
            same = int(scene.rows((x + middle * (changed - x))[None], [None])[None][0].argmax()) == first
        low, high = (middle, high) if same else (low, middle)
    return x + high * (changed - x)
