"""The constant of a network on a ball around one point, and the radius within which its decision cannot change."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.lipschitz.local.feedback import gain
from normscope.lipschitz.local.moving import UnboundedError
from normscope.lipschitz.local.point import Nominal
from normscope.lipschitz.local.probed import Probed, is_deep, is_piecewise_linear
from normscope.lipschitz.local.steps import Steps
from normscope.lipschitz.local.walk import LIMIT, ROUNDS, Walk
from normscope.operators.program import Program

#: Multipliers that are tried, and how many of them even where the work is used up.
TRIES, LEAST_TRIES = 40, 12


@dataclass(frozen=True)
class Ball:
    """What is certified on a ball.

    Attributes:
        radius: of the ball, in the l2 norm.
        constant: the output moves at most this many times as far as the input, between any two points of the ball;
            infinite where nothing is proved.
        units: entries whose slope may change on the ball.
        margin: least difference between the largest output at the centre and any other; nothing for one output.
        why: why there is no finite constant.
        seconds: CPU time.
        delta: probability with which rounding may have gone unnoticed: zero where it is bounded, tiny in deep networks,
            where it is probed.
    """

    radius: float
    constant: float
    units: int = 0
    margin: float | None = None
    why: str = ""
    seconds: float = 0.0
    delta: float = 0.0

    @property
    @statement("normscope", "LOCAL-5", holds="the decision is the largest of several outputs")
    def certified_radius(self) -> float:
        r"""Return a radius within which the decision cannot change, :math:`\min(r, m / (\sqrt 2 L))`.

        >>> round(Ball(0.5, 10.0, margin=1.0).certified_radius, 4), Ball(0.05, 10.0, margin=1.0).certified_radius
        (0.0707, 0.05)
        """
        if self.margin is None or self.margin <= 0 or math.isinf(self.constant):
            return 0.0
        if self.constant == 0:
            return self.radius
        return min(self.radius, self.margin / (math.sqrt(2) * self.constant) * (1 - 1e-12))


def on_balls(
    program: Program,
    steps: Steps,
    point: Sequence[Tensor],
    radii: Sequence[float],
    *,
    limit: int = LIMIT,
    rounds: int = ROUNDS,
    tries: int = TRIES,
    work: float = math.inf,
) -> list[Ball]:
    """Return the certified constants of a network on ``|x - point| <= r`` for several radii.

    Args:
        program: the network for inputs of this shape.
        steps: bounds of its linear operations, shared between points.
        point: the value of every block of the input.
        radii: of the balls, the smallest first; zero asks for the Jacobian at the point, both sides of every kink
            included. Beyond one without a constant there is none.
        limit: most entries whose slope may change.
        rounds: of tuning the ranges.
        tries: most multipliers to try.
        work: most multiplications for one ball; what is left after the walk decides how many multipliers are tried.

    Raises:
        InputError: if a radius is negative, infinite or not a number, or the point is not finite.
    """
    balls: list[Ball] = []
    nominal: dict[int, Nominal] = {}
    make: type[Walk] = Walk
    for radius in radii:
        start = time.process_time()
        walk = make(program, steps, point, radius, limit=limit, rounds=rounds, nominal=nominal, work=work)
        if not nominal and is_piecewise_linear(program):
            walk.nominal = walk.values()
            if is_deep(program, walk.nominal):
                make = Probed
                walk = make(program, steps, point, radius, limit=limit, rounds=rounds, work=work)
        if balls and balls[-1].why:
            balls.append(replace(balls[-1], radius=radius, seconds=0.0))
            continue
        units, bound, why = 0, math.inf, ""
        try:
            system = walk.run()
            affordable = max(LEAST_TRIES, (work - walk.spent) / system.work) if system.work else tries
            units, bound = len(system.unit), gain(system, steps=int(min(tries, affordable))).value
            why = "" if math.isfinite(bound) else "no multipliers were found"
        except UnboundedError as error:
            why = str(error)
        nominal, spent = walk.nominal, time.process_time() - start
        delta = walk.delta if isinstance(walk, Probed) else 0.0
        balls.append(Ball(radius, bound, units, _margin(walk), why, spent, delta))
    return balls


def on_ball(program: Program, steps: Steps, point: Sequence[Tensor], radius: float, **settings: Any) -> Ball:
    """Return the certified constant on one ball; see :func:`on_balls`."""
    return on_balls(program, steps, point, [radius], **settings)[0]


def _margin(walk: Walk) -> float | None:
    """Return the certified margin of the decision at the centre, if the network has one row of outputs."""
    outputs = [walk.nominal.get(e.id) for _, e in walk.program.outputs]
    if len(outputs) != 1 or outputs[0] is None or outputs[0].value.numel() < 2:
        return None
    shape = outputs[0].value.shape
    if shape[-1] != outputs[0].value.numel():
        return None
    top = torch.topk(outputs[0].value.flatten(), 2).values
    return float(top[0] - top[1]) - 2 * outputs[0].error
