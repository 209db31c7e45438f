"""Certificates of regions: found by search, proved by a factorisation, kept for every domain that asks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import NonFiniteError
from normscope.lipschitz.chains.dense import dense_form, fits
from normscope.lipschitz.chains.elimination import eliminate
from normscope.lipschitz.chains.form import Form
from normscope.lipschitz.chains.proof import prove
from normscope.lipschitz.chains.region import Region
from normscope.lipschitz.chains.search import reduced, search
from normscope.lipschitz.chains.start import Start, start

#: Work done in a second, in multiplications, for choosing a number of steps; a clock only ends what takes far longer.
SPEED = 1.5e10
#: Most evaluations of a search, and how much longer than planned it may take.
MOST_STEPS, PATIENCE = 400, 3.0
#: Sides from which a search runs in single precision.
SINGLE_FROM = 256


@dataclass(frozen=True)
class Certificate:
    r"""What is proved of a region: :math:`|dT|^2 \le \sum_i c_i^2 |ds_i|^2` for its sources :math:`s_i`.

    Attributes:
        logs: logarithms of the constants :math:`c_i`.
        method: how it was found: ``dense chain`` or ``torus chain``.
        units: entrywise functions the chain runs over.
        steps: evaluations of the search.
    """

    logs: tuple[float, ...]
    method: str
    units: int
    steps: int


def certify(
    region: Region,
    source_logs: Sequence[float],
    *,
    seconds: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Certificate | None:
    """Return a certificate of a region, or ``None`` where it is too large or nothing can be proved.

    Args:
        region: the part of the network.
        source_logs: logarithms of the constants of the sources, finite.
        seconds: about how long to search; the number of steps follows from it and the size, not from a clock.
        progress: called with a line of text.
    """
    if not region.units or not fits(region) or any(map(math.isinf, source_logs)):
        return None
    top = max(source_logs)
    weights = tuple(math.exp(max(log - top, -30.0)) for log in source_logs)
    form = dense_form(region, weights)
    if form is None:
        return None
    progress(f"chain of {len(region.units)} activations")
    found = certify_form(form, seconds=seconds)
    return None if found is None else Certificate(tuple(found[0]), "dense chain", len(region.units), found[1])


def certify_form(form: Form, *, seconds: float) -> tuple[list[float], int] | None:
    """Return logarithms of proved constants of a form, one per source, and how many steps the search made.

    >>> from normscope.lipschitz.chains.form import chain
    >>> net = chain([torch.eye(2), torch.tensor([[1.0, -1.0]])])
    >>> ((log,), _) = certify_form(net, seconds=1.0)
    >>> 1.41421356 < math.exp(log) < 1.4143
    True
    """
    try:
        first = start(form)
    except NonFiniteError:
        return None
    small = reduced(first.form)
    steps = planned_steps(small, seconds)
    began = time.process_time()
    late = lambda: time.process_time() - began > PATIENCE * seconds + 1.0  # noqa: E731
    single = form.dtype == torch.float64 and max(small.sizes) >= SINGLE_FROM
    searched = search(
        small.converted(torch.float32) if single else small, first.multipliers, steps=steps, out_of_time=late
    )
    choices = [] if searched is None else [(searched.multipliers, searched.balance)]
    plain = torch.zeros(form.first, dtype=torch.float64)
    for multipliers, balance in [*choices, (first.multipliers, plain)]:
        proved = _proved(first, small, multipliers, balance)
        if proved is not None:
            return proved, 0 if searched is None else searched.steps
    return None


def planned_steps(form: Form, seconds: float) -> int:
    """Return how many evaluations of a form fit into a time, at a fixed speed: the same on every machine.

    >>> from normscope.lipschitz.chains.form import chain
    >>> planned_steps(chain([torch.eye(2), torch.eye(2)]), 1.0)
    400
    """
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
    work *= 4 if form.dtype.is_complex else 1
    return max(1, min(MOST_STEPS, int(seconds * SPEED / work)))


def _proved(first: Start, small: Form, multipliers: list[Tensor], balance: Tensor) -> list[float] | None:
    """Return logarithms of the constants that multipliers prove, in the units of the network."""
    for room in (1.0, 1.0 + 1e-6, 1.0 + 1e-4):
        given = [m.double() * room for m in multipliers]
        rest = eliminate(small, given)
        if rest is None:
            continue
        each = torch.cat([b.expand(n) for b, n in zip(balance, small.sources, strict=True)])
        units = (-each).exp()
        square = float(torch.linalg.eigvalsh(units[:, None] * rest.sources * units).max())
        if not math.isfinite(square) or square <= 0.0:
            continue
        constants = [math.sqrt(square) * math.exp(float(b)) for b in balance]
        proved = prove(first.form, given, constants)
        if proved is not None:
            return [math.log(c) + unit + 1e-13 for c, unit in zip(proved, first.log_units, strict=True)]
    return None
