"""The constant of a network on a ball around one point, and the radius within which its decision cannot change."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.lipschitz.local.balanced_channels import BalancedProgram
from normscope.lipschitz.local.bounded_rounding import BoundedRoundingPropagation, RoundingError
from normscope.lipschitz.local.feedback_system import gain
from normscope.lipschitz.local.jacobian_variation import JacobianVariation
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.precise_values import is_deep, is_piecewise_linear
from normscope.lipschitz.local.probed_rounding import ProbedPropagation
from normscope.lipschitz.local.sketched_tangents import SketchedPropagation
from normscope.lipschitz.local.slopes import scalar_of
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.local.tangents import UnboundedError
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.operators.attention import Attention
from normscope.operators.expression import Expr
from normscope.operators.matrix import MatrixProduct
from normscope.operators.nonlinear import Input
from normscope.operators.program import Program

#: Largest number of multipliers to try, and the number tried even where the work is used up.
TRIES, LEAST_TRIES = 40, 6
#: Largest number of entries of products, softmax and normalizers that are expanded into entrywise functions.
MOST_EXPANDED = 400


@dataclass(frozen=True)
class Ball:
    """What is certified on a ball."""

    radius: float  #: of the ball, in the l2 norm
    #: the output moves at most this many times as far as the input, between any two points of the ball; infinite where
    #: nothing is proved
    constant: float
    units: int = 0  #: entries whose slope may change on the ball
    #: least difference between the largest output at the centre and any other; ``None`` for a single output
    margin: float | None = None
    why: str = ""  #: why there is no finite constant
    seconds: float = 0.0  #: CPU time
    #: probability with which the constant may be wrong: zero where all is bounded, tiny where tangents were sketched,
    #: or rounding probed in very deep networks
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
    tries: int = TRIES,
    work: float = math.inf,
    sketched: bool = False,
) -> list[Ball]:
    """Return the certified constants of a network on ``|x - point| <= r`` for several radii.

    Args:
        program: the network for inputs of this shape.
        steps: bounds of its linear operations, shared between points.
        point: the value of every block of the input.
        radii: of the balls, the smallest first; zero stands for the Jacobian at the point, both sides of every kink
            included. If one radius has no constant, larger ones have none either.
        tries: most multipliers to try.
        work: most multiplications for one ball; what is left after the walk decides how many multipliers are tried.
        sketched: whether tangents of deep piecewise linear networks may be sketched: quicker, but each constant
            fails with a probability that is given with it.

    Raises:
        InputError: if a radius is negative, infinite or not a number, or the point is not finite.
    """
    balls: list[Ball] = []
    ways = _Methods(program, steps, point, tries, work, sketched=sketched)
    for radius in radii:
        start = time.process_time()
        if balls and balls[-1].why:
            balls.append(replace(balls[-1], radius=radius, seconds=0.0))
            continue
        found = ways.best(radius)
        balls.append(replace(found, seconds=time.process_time() - start))
    for i in reversed(range(len(balls) - 1)):  # what holds on a ball holds on those inside it
        outer = balls[i + 1]
        if outer.constant < balls[i].constant:
            balls[i] = replace(balls[i], constant=outer.constant, units=outer.units, delta=outer.delta)
    return balls


class _Methods:
    """The methods for a constant around one point, with the arguments of :func:`on_balls`; values serve all radii."""

    def __init__(
        self,
        program: Program,
        steps: Steps,
        point: Sequence[Tensor],
        tries: int,
        work: float,
        *,
        sketched: bool,
    ) -> None:
        self.given, self.tries, self.work = (program, steps, point), tries, work
        self.make: type[TangentPropagation] = TangentPropagation
        self.nominal: dict[type, dict[int, ValueAtPoint]] = {}
        if is_piecewise_linear(program):
            walk = TangentPropagation(program, steps, point, 0.0)
            self.nominal[TangentPropagation] = walk.values()
            if is_deep(program, self.nominal[TangentPropagation]):
                self.make = SketchedPropagation if sketched else BoundedRoundingPropagation
                if steps.probing:
                    self._probe()
        others = [a for a in program.atoms if not isinstance(a.atom, Input) and scalar_of(a.atom) is None]
        self.whole = bool(others)  # operations other than functions of single entries
        self.multiplied = sum(_expanded_entries(a) for a in others) <= MOST_EXPANDED

    def best(self, radius: float) -> Ball:
        """Return the smallest constant by multipliers and, where needed, by the variation of Jacobians."""
        found: list[Ball] = []
        if self.multiplied:
            found.append(self._by_multipliers(radius))
        if self.whole or (found and found[0].why):
            found.append(self._by_variation(radius))
        return min(found, key=lambda ball: ball.constant)

    def _by_multipliers(self, radius: float) -> Ball:
        try:
            return self._walked(self.make, radius)
        except RoundingError:
            self._probe()
            return self._walked(ProbedPropagation, radius)

    def _probe(self) -> None:
        """Verify rounding by probes from now on, in the original network, whose weights were not rounded."""
        program, steps, point = self.given
        steps.probing = True
        if isinstance(program, BalancedProgram):
            self.given = (program.original, steps, point)
        self.make = ProbedPropagation

    def _walked(self, make: type[TangentPropagation], radius: float) -> Ball:
        walk = make(*self.given, radius, nominal=self.nominal.get(make), work=self.work)
        units, bound, why = 0, math.inf, ""
        try:
            system = walk.run()
            affordable = max(LEAST_TRIES, (self.work - walk.spent) / system.work) if system.work else self.tries
            units, bound = system.units, gain(system, steps=int(min(self.tries, affordable))).value
            why = "" if math.isfinite(bound) else "no multipliers were found"
        except RoundingError:
            raise
        except UnboundedError as error:
            why = str(error)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            why = "the ball is too large: its image overflows the eigenvalue solver"
        self.nominal[make] = walk.nominal
        return Ball(radius, bound, units, _margin(walk), why, delta=walk.delta)

    def _by_variation(self, radius: float) -> Ball:
        walk = JacobianVariation(*self.given, radius, nominal=self.nominal.get(JacobianVariation), work=self.work)
        try:
            bound, why = walk.constant(), ""
        except UnboundedError as error:
            return Ball(radius, math.inf, why=str(error))
        self.nominal[JacobianVariation] = walk.nominal
        return Ball(radius, bound, walk.count, _margin(walk, walk.off), why)


def _expanded_entries(expr: Expr) -> int:
    """Return how many entries an operation has when it is written as functions of single ones."""
    matrices = isinstance(expr.atom, Attention | MatrixProduct)
    return expr.numel * (expr.atom.inputs[1].numel // max(1, expr.shape[-1]) if matrices else 1)


def _margin(walk: TangentPropagation, error: float | None = None) -> float | None:
    """Return the certified margin of the decision at the centre, if the network has one row of outputs.

    Args:
        walk: with the values at the centre.
        error: bound on the error of the outputs, if not that of their values.
    """
    outputs = [walk.nominal.get(e.id) for _, e in walk.program.outputs]
    if len(outputs) != 1 or outputs[0] is None or outputs[0].value.numel() < 2:
        return None
    shape = outputs[0].value.shape
    if shape[-1] != outputs[0].value.numel():
        return None
    top = torch.topk(outputs[0].value.flatten(), 2).values
    return float(top[0] - top[1]) - 2 * (outputs[0].error if error is None else error)
