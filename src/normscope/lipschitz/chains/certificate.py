"""Certified constants of regions: multipliers are found by a search and proved by a Cholesky factorisation."""

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.lipschitz.chains.chain_form import ChainForm
from normscope.lipschitz.chains.dense import dense_form, fits
from normscope.lipschitz.chains.elimination import Eliminated, eliminate, eliminate_with_repair
from normscope.lipschitz.chains.newton import newton
from normscope.lipschitz.chains.proof import prove
from normscope.lipschitz.chains.region import Region
from normscope.lipschitz.chains.relative_search import descend
from normscope.lipschitz.chains.scaled_chain import ScaledChain, scaled_chain
from normscope.lipschitz.chains.search import reduced, search
from normscope.lipschitz.chains.torus_region import TorusRegion, torus_region

#: Multiplications per second assumed when choosing a number of steps; a clock only stops what takes far longer.
SPEED = 1.5e10
#: Most evaluations of a search, and how much longer than planned it may take.
MOST_STEPS, PATIENCE = 400, 3.0
#: The same in single precision with complex numbers.
SINGLE_SPEED = 6e10
#: Seconds that a step on a torus takes for each unit, however small it is.
EACH_UNIT = 2e-3
#: Number of steps from which all frequencies are also searched together at the end.
LEAST_STEPS = 20
#: Frequencies that the first multipliers on a torus are taken from.
FIRST_FREQUENCIES = 4
#: How many times longer than the search the proof on a torus may take.
LONGEST_PROOF = 6.0
#: Sides from which a search runs in single precision.
SINGLE_FROM = 256


def certify(
    region: Region,
    source_logs: Sequence[float],
    *,
    seconds: float,
    progress: Callable[[str], None] = lambda text: None,
) -> list[float] | None:
    r"""Return what is proved about a region: logarithms of :math:`c_i` with :math:`|dT|^2 \le \sum_i c_i^2 |ds_i|^2`.

    Args:
        region: the part of the network, with sources :math:`s_i`.
        source_logs: logarithms of the constants of the sources, finite.
        seconds: about how long to search; the number of steps follows from it and the size, not from a clock.
        progress: called with a line of text.

    Returns:
        The logarithms; ``None`` where the region is too large or nothing can be proved.
    """
    if not region.units or any(map(math.isinf, source_logs)):
        return None
    top = max(source_logs)
    weights = tuple(math.exp(max(log - top, -30.0)) for log in source_logs)
    units = len(region.units)
    message = f"tightening the bound over {units} activation{'s' if units > 1 else ''}"
    if fits(region):
        form = dense_form(region, weights)
        progress(message)
        return None if form is None else certify_form(form, seconds=seconds)
    torus = torus_region(region)
    if torus is None:
        return None
    progress(message)
    return certify_torus(torus, weights, seconds=seconds, progress=progress)


def certify_torus(
    torus: TorusRegion, weights: tuple[float, ...], *, seconds: float, progress: Callable[[str], None]
) -> list[float] | None:
    """Return logarithms of proved constants of a region on a torus, one per source.

    Multipliers are searched for at the few frequencies that matter, in small regions then at all frequencies together,
    and proved at all of them. Where the proof alone would take much longer than the search is allowed to, nothing is
    returned.
    """
    frequencies = torus.frequencies()
    chosen = frequencies[:: max(1, len(frequencies) // FIRST_FREQUENCIES)]
    late = _deadline(seconds)
    few = torus.form(chosen, weights)
    once = work_of(few) / SPEED * len(frequencies) / len(chosen)  # seconds for one look at all frequencies
    first = scaled_chain(few) if 2 * once <= LONGEST_PROOF * seconds else None
    if first is None:
        return None
    everywhere = first.measured(torus.form(frequencies, weights)).converted(torch.complex64)
    candidates = descend(
        everywhere,
        first.multipliers,
        evaluations=int(seconds * SINGLE_SPEED * len(frequencies) / work_of(everywhere)),
        most_steps=min(MOST_STEPS, int(seconds / (EACH_UNIT * len(few.units)))),
        out_of_time=late,
        progress=progress,
    )
    steps = planned_steps(everywhere, seconds)
    if candidates and steps >= LEAST_STEPS:
        polished = search(everywhere, candidates[0].multipliers, steps=steps, out_of_time=late)
        if polished is not None and polished.log < candidates[0].log:
            candidates.insert(0, polished)
    progress(f"proof at {len(frequencies)} frequencies")
    for found in candidates[:2]:
        room = [m * (1.0 + 1e-6) for m in found.multipliers]
        proved = _proved_on_torus(torus, first, weights, room, found.balance)
        if proved is not None:
            return proved
    return None


def _deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether a search has taken much longer than planned."""
    end = time.process_time() + PATIENCE * seconds + 1.0
    return lambda: time.process_time() > end


def _proved_on_torus(
    torus: TorusRegion, first: ScaledChain, weights: tuple[float, ...], multipliers: list[Tensor], balance: Tensor
) -> list[float] | None:
    """Return logarithms of the constants that multipliers, raised where need be, prove at all frequencies."""
    frequencies = torus.frequencies()
    rest = eliminate_with_repair(first.measured(torus.form(frequencies, weights)), multipliers)
    constants = _constants(rest, balance)
    if rest is None or constants is None:
        return None
    raised = constants
    for frequency in frequencies:
        proved = prove(first.measured(torus.form([frequency], weights)), rest.multipliers, constants)
        if proved is None:
            return None
        raised = [max(a, b) for a, b in zip(raised, proved, strict=True)]
    return first.logs(raised)


def _constants(rest: Eliminated | None, balance: Tensor) -> list[float] | None:
    """Return the constants that remain, one per source, if nothing is rounded; ``None`` if they are not finite."""
    squares = None if rest is None else rest.squares(balance)
    if squares is None or not bool(squares.isfinite().all()) or not float(squares.max()) > 0.0:
        return None
    return [math.sqrt(float(squares.max())) * math.exp(float(b)) for b in balance]


def certify_form(form: ChainForm, *, seconds: float) -> list[float] | None:
    """Return logarithms of proved constants of a form, one per source.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), torch.tensor([[1.0, -1.0]])])
    >>> (log,) = certify_form(net, seconds=1.0)
    >>> 1.41421356 < math.exp(log) < 1.4143
    True
    """
    first = scaled_chain(form)
    if first is None:
        return None
    small = reduced(first.form)
    single = form.dtype == torch.float64 and max(small.sizes) >= SINGLE_FROM
    searched = (newton(small, first.multipliers) if seconds else None) or search(
        small.converted(torch.float32) if single else small,
        first.multipliers,
        steps=planned_steps(small, seconds),
        out_of_time=_deadline(seconds),
    )
    choices = [] if searched is None else [(searched.multipliers, searched.balance)]
    plain = torch.zeros(form.first, dtype=torch.float64)
    for multipliers, balance in [*choices, (first.multipliers, plain)]:
        for room in (1.0, 1.0 + 1e-6, 1.0 + 1e-4):
            given = [m.double() * room for m in multipliers]
            constants = _constants(eliminate(small, given), balance)
            proved = None if constants is None else prove(first.form, given, constants)
            if proved is not None:
                return first.logs(proved)
    return None


def planned_steps(form: ChainForm, seconds: float) -> int:
    """Return how many evaluations of a form fit into a time, at a fixed speed: the same on every machine.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> planned_steps(chain([torch.eye(2), torch.eye(2)]), 1.0)
    400
    """
    return max(1, min(MOST_STEPS, int(seconds * SPEED / work_of(form))))


def work_of(form: ChainForm) -> float:
    """Return about how many multiplications one evaluation of a form takes."""
    work = 5e6 * len(form.units)  # what every step costs whatever its size
    sizes = form.sizes
    readers: list[set[int]] = [set(unit.inputs) for unit in form.units]
    fill = set(form.target)
    for place in range(len(form.units) - 1, -1, -1):
        number = place + form.first
        fill = (fill - {number}) | readers[place]
        width = sum(sizes[j] for j in fill)
        work += form.blocks * sizes[number] * (sizes[number] ** 2 + 3 * sizes[number] * width + 2 * width**2)
    work += 10 * form.blocks * sum(form.sources) ** 3
    return work * (4 if form.dtype.is_complex else 1)
