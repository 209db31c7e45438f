r"""Search for good multipliers: the largest eigenvalue, smoothed, by a quasi-Newton method in their logarithms.

:math:`\lambda_{\max}(Q) \le (\operatorname{tr} Q^p)^{1/p}`, which is smooth; p grows from stage to stage. Logarithms
make the search indifferent to the scale of each neuron. Nothing found here is trusted: :mod:`.proof` checks it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError
from normscope.lipschitz.chains.elimination import Eliminated, eliminate

#: Powers of the smoothed eigenvalue, stage by stage, and the share of all steps each gets.
POWERS = ((32.0, 0.7), (256.0, 0.3))
#: Pairs of steps and gradients a quasi-Newton step remembers.
MEMORY = 30
#: A step that lowers the logarithm by less counts as idle; a stage ends after this many idle steps.
NOTHING, IDLE = 2e-7, 8
#: The largest change of a logarithm in one step.
LONGEST = 2.0


@dataclass(frozen=True, eq=False)
class FoundMultipliers:
    """The result of a search."""

    multipliers: list[Tensor]  #: of every unit
    balance: Tensor  #: logarithms of the constant allowed for each source, up to a common factor
    log: float  #: logarithm of the constant they give, if nothing is rounded
    steps: int  #: evaluations made


class SmoothedObjective:
    """The smoothed constant of a form as a function of all logarithms: multipliers, then the balance of the sources.

    Args:
        form: the part of the network, in its own units.
    """

    def __init__(self, form: ChainForm) -> None:
        self.form = form
        self.sizes = [unit.size for unit in form.units]
        self.weights = torch.tensor(form.weights, dtype=torch.float64)
        self.evaluations = 0

    def split(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the logarithms of the multipliers, unit by unit, and the balance of the sources."""
        *logs, balance = x.split([*self.sizes, self.form.first])
        return logs, balance

    def __call__(self, x: Tensor, power: float) -> tuple[float, float, Tensor] | None:
        """Return the logarithms of the constant and of the smoothed one, and the gradient of the latter."""
        self.evaluations += 1
        logs, balance = self.split(x)
        rest = eliminate(self.form, [part.exp() for part in logs])
        found = None if rest is None else smoothed(rest, balance, self.weights, power)
        if rest is None or found is None:
            return None
        slopes = (g.double() * m for g, m in zip(found.by_multiplier, rest.multipliers, strict=True))
        return found.log, found.smooth, torch.cat([*slopes, found.by_balance]) / 2


@dataclass(frozen=True, eq=False)
class SmoothedConstant:
    """The constant that remains, smoothed, and twice the derivatives of its logarithm."""

    log: float  #: logarithm of the constant
    smooth: float  #: that of the smoothed one
    by_multiplier: list[Tensor]  #: twice the derivatives of the latter by every multiplier
    by_balance: Tensor  #: by the balance of the sources


def smoothed(rest: Eliminated, balance: Tensor, weights: Tensor, power: float) -> SmoothedConstant | None:
    """Return the smoothed constant of what remains of a form, or ``None`` if it is not finite and positive."""
    units = rest.units(balance)
    real = units.dtype
    values, vectors = torch.linalg.eigh(units[:, None] * rest.sources * units)
    values = values.double()
    top = float(values.max())
    if not math.isfinite(top) or top <= 0.0:
        return None
    shares = (values.clamp_min(0.0) / top).pow(power)
    total = float(shares.sum())
    keep = int((shares > 1e-6 * total).any(0).sum())
    parts = (shares / (total * values.clamp_min(1e-30 * top)))[:, -keep:].to(real)
    kept = vectors[:, :, -keep:]
    by_multiplier = rest.gradient(units[:, None] * kept, parts)
    masses = (kept.abs().square() * (parts * values[:, -keep:].to(real))[:, None]).sum((0, 2)).double()
    sizes = 2 * (balance + weights.log())
    by_balance = -2 * torch.stack([part.sum() for part in masses.split(list(rest.form.sources))])
    log = (math.log(top) + float(sizes.logsumexp(0))) / 2
    return SmoothedConstant(log, log + math.log(total) / (2 * power), by_multiplier, by_balance + 2 * sizes.softmax(0))


def search(
    form: ChainForm,
    multipliers: list[Tensor],
    *,
    steps: int,
    out_of_time: Callable[[], bool] = lambda: False,
) -> FoundMultipliers | None:
    """Return the best multipliers found in a number of evaluations, or ``None`` if the first ones bound nothing.

    Args:
        form: the part of the network, in its own units.
        multipliers: to begin with.
        steps: evaluations of the constant and its gradient.
        out_of_time: called before every evaluation.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), torch.tensor([[1.0, -1.0]])])
    >>> found = search(net, [torch.full((2,), 3.0).double()], steps=40)
    >>> round(math.exp(found.log), 3)  # the root of two, which is attained
    1.414
    """
    objective = SmoothedObjective(form)
    x = torch.cat([*(m.double().log() for m in multipliers), -torch.tensor(form.weights, dtype=torch.float64).log()])
    first = objective(x, 1.0)
    if first is None:
        return None
    best, at, done = first[0], x, 0.0

    def note(log: float, point: Tensor) -> None:
        nonlocal best, at
        if log < best:
            best, at = log, point

    for power, share in POWERS:
        done += share
        x = _descend(objective, x, power, round(done * steps), note, out_of_time)
    logs, balance = objective.split(at)
    return FoundMultipliers([part.exp() for part in logs], balance, best, objective.evaluations)


def _descend(
    objective: SmoothedObjective,
    x: Tensor,
    power: float,
    until: int,
    note: Callable[[float, Tensor], None],
    out_of_time: Callable[[], bool],
) -> Tensor:
    """Minimise the smoothed constant by L-BFGS with backtracking; return the last point."""
    here = objective(x, power)
    pairs: list[tuple[Tensor, Tensor]] = []
    failures = idle = 0
    while here is not None and objective.evaluations < until and not out_of_time():
        _, value, gradient = here
        step = _direction(gradient, pairs)
        slope = float(gradient @ step)
        if slope >= 0.0:
            pairs, step, slope = [], -gradient, -float(gradient @ gradient)
        if not pairs:
            step = step * (0.3 / float(step.abs().max().clamp_min(1e-30)))
            slope = float(gradient @ step)
        length = min(1.0, LONGEST / float(step.abs().max().clamp_min(1e-30)))
        moved = None
        while objective.evaluations < until and length > 1e-6 and not out_of_time():
            point = x + length * step
            found = objective(point, power)
            if found is not None:
                note(found[0], point)
                if found[1] <= value + 1e-4 * length * slope:
                    moved = point, found
                    break
            length *= 0.4
        if moved is None:
            if not pairs or failures:
                break
            pairs, failures = [], failures + 1
            continue
        difference, change = moved[0] - x, moved[1][2] - gradient
        if float(difference @ change) > 1e-10 * float(difference.norm() * change.norm()):
            pairs = [*pairs[-(MEMORY - 1) :], (difference, change)]
        idle = idle + 1 if value - moved[1][1] < NOTHING else 0
        x, here = moved
        if idle == IDLE:
            break
    return x


def _direction(gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the quasi-Newton direction: the two-loop recursion of L-BFGS."""
    step, kept = -gradient, []
    for s, y in reversed(pairs):
        rho = 1.0 / float(s @ y)
        a = rho * float(s @ step)
        step = step - a * y
        kept.append((a, rho, s, y))
    if pairs:
        s, y = pairs[-1]
        step = step * (float(s @ y) / float(y @ y))
    for a, rho, s, y in reversed(kept):
        step = step + s * (a - rho * float(y @ step))
    return step


def reduced(form: ChainForm) -> ChainForm:
    """Return a form with the same constant whose sources are no larger than what reads them: for a search.

    Of a source with n entries only the span of the rows of all matrices that read it matters.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> reduced(chain([torch.rand(3, 50), torch.ones(1, 3)])).sources
    (3,)
    """
    sources = list(form.sources)
    units = [dict(unit.inputs) for unit in form.units]
    target = dict(form.target)
    for number, size in enumerate(form.sources):
        readers = [blocks for blocks in (*units, target) if number in blocks]
        stacked = torch.cat([blocks[number].value for blocks in readers], 1)
        if stacked.shape[1] >= size or not readers:
            continue
        triangle = torch.linalg.qr(stacked.mH, mode="r")[1].mH
        heights = [blocks[number].value.shape[1] for blocks in readers]
        for blocks, part in zip(readers, triangle.split(heights, 1), strict=True):
            blocks[number] = MatrixWithError(part)
        sources[number] = stacked.shape[1]
    made = tuple(ActivationUnit(b, u.low, u.high) for b, u in zip(units, form.units, strict=True))
    return ChainForm(tuple(sources), made, target, form.weights)
