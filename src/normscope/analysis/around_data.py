"""Certified constants on balls around data points, and statements about most inputs like the data."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.analysis.context import AnalysisContext, one_at_a_time
from normscope.analysis.fixed_inputs import values_of
from normscope.core.around_data import ASSUMPTIONS, Around, Neighbourhood
from normscope.core.value import Kind, Value, log_of
from normscope.lipschitz.chains.join import SECONDS
from normscope.lipschitz.climb import batched_norms
from normscope.lipschitz.cost import forward_cost, overhead
from normscope.lipschitz.local.balanced_channels import balanced_program, with_balanced_channels
from normscope.lipschitz.local.ball import TRIES, Ball, on_balls
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.share_of_inputs import covered_share, covering_value, points_needed
from normscope.operators.program import Program

#: Default number of points, and samples of the data from which they are drawn.
POINTS, DRAWN_FROM = 100, 1_000
#: Default radii, relative to the typical distance of a point from the mean of the data.
RELATIVE = (0.001, 0.003)
#: Multiplications per point below which balls are certified by default, and the seconds spent on them.
CHEAP, USUAL_SECONDS = 2e9, 30.0
#: Overhead of an operation relative to that in a plain forward pass.
OPERATION_OVERHEAD = 20
#: Most multiplications for one ball, by default and for a requested radius; and most multipliers tried.
BALL_WORK, ASKED_BALL_WORK, BALL_TRIES = 5e10, 1e12, TRIES
#: Multiplications per second, and seconds per nonlinear operation on a ball, for estimates of the time.
RATE, OVERHEAD = 5e9, 0.02
#: Most points at which only the Jacobian is computed, in networks for which a ball is expensive.
EXACT_POINTS = 300
#: Caveat for these Jacobians.
UNENCLOSED = (
    "Jacobians by automatic differentiation in float64: rounding, and the other sides of kinks, are not enclosed"
)


def around_data(context: AnalysisContext, ceiling: Value | None, messages: list[str]) -> Around | None:
    """Return the constants around the data, or ``None`` where none were requested or none can be computed.

    No local constant exceeds the ceiling, a certified constant on all inputs.
    """
    options = context.options
    if context.data is None or not context.program.blocks or not context.program.outputs:
        return None
    if (context.stacked or 1) > 1 or context.captured.graph.batch not in ("dynamic", "1"):
        return None
    if not options.time and options.radius is None:
        return None
    timed = options.time != SECONDS
    asked = options.radius is not None or timed
    cost = _ball_cost(context.program)
    found = one_at_a_time(context, context.at_most(DRAWN_FROM))
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(options.seed))
    points = [found[i] for i in order.tolist()]
    if not points:
        return None
    if cost > CHEAP and (not asked or (options.radii and not any(options.radii))):
        return _at_points(context, points, ceiling, None if asked else max(1.0, 2 * cost / RATE), messages)
    radii = _radii(options.radii or None, points)
    if not asked:  # by the size of the network, so that a seed gives the same result
        each = len(radii) * ball_seconds(context.program)
        affordable, needed = int(USUAL_SECONDS / each), points_needed(options.share, options.confidence)
        points = points[: max(1, needed if affordable < needed <= 2 * affordable else affordable)]
    balls, notes = _balls(context, points if timed else points[:POINTS], radii, options.time if timed else math.inf)
    return _stated(context, balls, radii, notes, ceiling)


def _ball_cost(program: Program) -> float:
    """Estimate the multiplications for one ball around a point."""
    inputs = sum(math.prod(b.shape) for b in program.blocks)
    return forward_cost(program) * (1 + inputs) + OPERATION_OVERHEAD * overhead(program)


def ball_seconds(program: Program) -> float:
    """Estimate the CPU time of one ball around a point, in seconds."""
    return OVERHEAD * max(1, len(program.atoms)) + _ball_cost(program) / RATE


def _at_points(
    context: AnalysisContext,
    points: list[list[Tensor]],
    ceiling: Value | None,
    seconds: float | None,
    messages: list[str],
) -> Around | None:
    """Return constants at the points of a large network: Jacobian norms in float64, without an enclosure of rounding.

    ``seconds`` is what a ball around a point would take, if none was asked for.
    """
    notes = []
    if seconds is not None:
        left_out = f"constants within a radius were skipped: they take about {seconds:.0f} s per point"
        notes.append(f"{left_out}; request them with radius (--radius) or time (--time)")
    norms = batched_norms(context.captured, context.program, torch.float64, unknown=math.inf)
    each = forward_cost(context.program) * (1 + 2 * sum(e.numel for _, e in context.program.outputs))
    needed = points_needed(context.options.share, context.options.confidence)
    if norms is None or (seconds is not None and needed * each > USUAL_SECONDS * RATE):
        messages.extend(notes)
        return None
    points = points[: EXACT_POINTS if seconds is None else needed]
    start, balls = time.process_time(), []
    try:
        for first in range(0, len(points), 8):
            context.say(f"Jacobians around the data: point {first + 1} of {len(points)}")
            group = torch.cat([point[0] for point in points[first : first + 8]])
            balls += [[Ball(0.0, value * (1 + 1e-9))] for value in norms(group).tolist()]
    except NotImplementedError:  # an operation without a derivative, which the search from below reports
        messages.extend(notes)
        return None
    except KeyboardInterrupt:
        notes.append(f"stopped after {len(balls)} of {len(points)} points")
    spent = (time.process_time() - start) / max(1, len(balls))
    timed = [[replace(ball, seconds=spent) for ball in point] for point in balls]
    return _stated(context, timed, (0.0,), notes, ceiling, (UNENCLOSED,))


def _radii(given: Sequence[float] | None, points: list[list[Tensor]]) -> tuple[float, ...]:
    """Return the radii to certify in ascending order; zero, the point itself, is always among them."""
    if given is not None:
        return tuple(sorted({0.0, *(float(r) for r in given)}))
    real = [torch.cat([t.flatten().double() for t in p if t.is_floating_point()] or [torch.zeros(0)]) for p in points]
    table = torch.stack(real)
    typical = float((table - table.mean(0)).norm(dim=1).median()) or float(table.norm(dim=1).median()) or 1.0
    return (0.0, *(float(f"{typical * part:.0e}") for part in RELATIVE))


def _balls(
    context: AnalysisContext, points: list[list[Tensor]], radii: tuple[float, ...], seconds: float
) -> tuple[list[list[Ball]], list[str]]:
    """Return the balls of every finished point, and notes about points that were skipped."""
    program = None
    most = BALL_WORK if context.options.radius is None else ASKED_BALL_WORK
    start, done, notes = time.process_time(), [], []
    tokens = any(b.kind != "input" for b in context.program.blocks)
    captured = with_balanced_channels(context.captured)
    try:
        for number, point in enumerate(points):
            spent = time.process_time() - start
            if number and spent * (number + 1) / number > seconds:
                notes.append(f"the time limit allowed {number} of {len(points)} points")
                break
            left = "" if not number else f", about {spent / number * (len(points) - number):.0f} s left"
            context.say(f"around the data: point {number + 1} of {len(points)}{left}")
            if program is None or tokens:
                program = balanced_program(captured, point)
                steps = Steps(context.norms)
            values = values_of(context.captured, [block.name for block in program.blocks], point)
            blocks, sketched = [value.double() for value in values], context.options.sketch
            done.append(on_balls(program, steps, blocks, radii, work=most, tries=BALL_TRIES, sketched=sketched))
    except KeyboardInterrupt:
        notes.append(f"stopped after {len(done)} of {len(points)} points")
    return done, notes


def _stated(
    context: AnalysisContext,
    balls: list[list[Ball]],
    radii: tuple[float, ...],
    notes: list[str],
    ceiling: Value | None,
    caveats: tuple[str, ...] = (),
) -> Around | None:
    """Return the statements that the balls of all points allow."""
    options, count = context.options, len(balls)
    if not count:
        return None
    most = math.exp(ceiling.log) * (1 + 1e-12) if ceiling is not None and ceiling.log < 600 else math.inf
    needed = points_needed(options.share, options.confidence)
    if count < needed:
        covered = covered_share(count, count, options.confidence)
        notes.append(
            f"{count} points are too few for a statement about {100 * options.share:g} % of inputs with confidence "
            f"{100 * options.confidence:g} %: they cover {100 * covered:.3g} %, and {needed} points are needed"
        )
    delta = max(b.delta for point in balls for b in point)
    if delta > 0:
        what = "tangents were sketched" if options.sketch else "rounding was verified by random probes"
        notes.append(f"{what}: each constant fails with probability below {delta:.0e}")
    why = {b.why: b for point in balls for b in point if b.why}
    notes += [f"{reason[0].lower()}{reason[1:]}" for reason in caveats]
    notes += [f"no constant within {b.radius:g} of some points: {reason}" for reason, b in why.items()]
    rows = []
    for i, radius in enumerate(radii):
        constants = tuple(min(point[i].constant, most) for point in balls)
        seconds = round(sum(point[i].seconds for point in balls) / count, 4)
        rows.append(Neighbourhood(radius, constants, *_bounds(context, constants, radius, delta, caveats), seconds))
    decisions = [max(b.certified_radius for b in point) for point in balls if point[0].margin is not None]
    proved = tuple(decisions) if len(decisions) == count else ()
    return Around(options.share, options.confidence, count, needed, tuple(rows), proved, tuple(notes))


def _bounds(
    context: AnalysisContext, constants: Sequence[float], radius: float, delta: float, caveats: tuple[str, ...]
) -> tuple[Value | None, Value | None]:
    """Return bounds that hold for most inputs and for every data point; ``None`` where unknown."""
    options, count = context.options, len(constants)
    where = f"within {radius:g} of" if radius else "at"
    points = "the data point" if count == 1 else f"each of the {count:,} data points"
    kind = Kind.PROBABILISTIC if delta else Kind.CERTIFIED
    every = Value(
        log_of(max(constants)), kind, domain=f"{where} {points}", mode=context.mode, delta=min(1.0, count * delta)
    )
    number = covering_value(constants, options.share, options.confidence)
    if number is None:
        return None, None if caveats else every
    most = Value(
        log_of(number),
        Kind.PROBABILISTIC,
        domain=f"{where} {100 * options.share:g} % of inputs like the data",
        mode=context.mode,
        statement="normscope LOCAL-4",
        assumptions=(*ASSUMPTIONS, *caveats),
        delta=1.0 - options.confidence,
    )
    return most, None if caveats else every
