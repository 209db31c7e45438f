r"""Search for multipliers parametrised relative to their lower limits: for many units on a torus.

Going backwards, unit k needs :math:`2 \Lambda_k \succ Q_k`, where :math:`Q_k` depends on the multipliers behind it.
With :math:`\Lambda_k = \rho_k S_k / (2 s_k)`, :math:`\rho_k = \lambda_{\max}(S_k^{-1/2} Q_k S_k^{-1/2})` over all
blocks and :math:`0 < s_k < 1`, every shape :math:`S_k` and share :math:`s_k` is allowed, and a change behind rescales
all before it: a search neither runs into walls nor carries a scale from unit to unit. Nothing found here is trusted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.lipschitz.chains.chain_form import ChainForm
from normscope.lipschitz.chains.elimination import Eliminated, eliminate
from normscope.lipschitz.chains.scaled_chain import LEAST
from normscope.lipschitz.chains.search import FoundMultipliers, smoothed

#: Turns of the power iteration for the first look at a unit, and for each later one.
FIRST_TURNS, TURNS = 40, 6
#: Steps between two looks at all blocks; the first and the last step size.
ROUND, LONGEST_STEP, SHORTEST_STEP = 20, 0.05, 0.001
#: Powers of the smoothed eigenvalue, and the share of the work after which the second one is used.
POWERS, SECOND_FROM = (32.0, 256.0), 0.7
#: Blocks searched because the constant is largest there, beside those where a unit needs its multipliers.
WORST = 2
#: Amount subtracted from the logits of the shares when multipliers turn out too small.
MORE_ROOM = 0.3


@dataclass(frozen=True, eq=False)
class RelativeEvaluation:
    """The constant at one point of the search."""

    log: float  #: logarithm of the constant
    critical: list[int]  #: for every unit the block in which it needs its multipliers, then the worst blocks at the end
    rest: Eliminated  #: what remains of the form
    #: for every unit the largest eigenvalue, the eigenvector, and one over the root of the shape
    gains: list[tuple[float, Tensor, Tensor]]


class RelativeObjective:
    """The constant of a form as a function of shapes, logits of shares and the balance of the sources.

    Args:
        form: the part of the network, in its own units; slopes around zero.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> relative = RelativeObjective(chain([torch.eye(2), 3 * torch.eye(2)]))
    >>> round(relative(relative.first([torch.ones(2).double()])).log - math.log(3.0), 9)  # which is attained
    0.0
    """

    def __init__(self, form: ChainForm) -> None:
        self.form = form
        self.weights = torch.tensor(form.weights, dtype=torch.float64)
        self._sizes = [*(unit.size for unit in form.units), len(form.units), form.first]
        self._leading: dict[int, Tensor] = {}

    def first(self, multipliers: list[Tensor]) -> Tensor:
        """Return the point with the shapes of given multipliers, twice what is needed."""
        logits = torch.zeros(len(multipliers), dtype=torch.float64)
        return torch.cat([*(m.double().log() for m in multipliers), logits, -self.weights.log()])

    def balance(self, x: Tensor) -> Tensor:
        """Return the balance of the sources."""
        return x[len(x) - self.form.first :]

    def with_more_room(self, x: Tensor) -> Tensor:
        """Return a point with larger multipliers of the same shapes."""
        *shapes, logits, balance = x.split(self._sizes)
        return torch.cat([*shapes, logits - MORE_ROOM, balance])

    def __call__(self, x: Tensor) -> RelativeEvaluation | None:
        """Return the constant, or ``None`` where an eigenvalue was underestimated and nothing is bounded."""
        *shapes, logits, balance = x.split(self._sizes)
        critical, gains = [], []

        def chosen(place: int, own: Tensor) -> Tensor:
            half = (-shapes[place] / 2).exp().to(own.real.dtype)
            values, vectors = self._top(half[:, None] * own * half, place)
            worst = int(values.argmax())
            needed = max(float(values[worst]), LEAST)
            critical.append(worst)
            gains.append((needed, vectors[worst], half))
            return (shapes[place] + math.log(needed / 2) - torch.nn.functional.logsigmoid(logits[place])).exp()

        rest = eliminate(self.form, chosen)
        if rest is None:
            return None
        tops = rest.squares(balance)
        if not bool(tops.isfinite().all()) or not float(tops.max()) > 0.0:
            return None
        spread = float((2 * (balance + self.weights.log())).logsumexp(0))
        critical = [*critical[::-1], *tops.argsort(descending=True)[:WORST].tolist()]
        log = (math.log(float(tops.max())) + spread) / 2
        return RelativeEvaluation(log, critical, rest, gains[::-1])

    def gradient(self, x: Tensor, at: RelativeEvaluation, power: float) -> Tensor | None:
        """Return the gradient of the smoothed constant with respect to the point.

        The constant depends on the multipliers, and those of a unit on all behind it through the largest eigenvalue:
        its derivatives come from its eigenvector as those of the constant from the eigenvectors at the end.
        """
        form = self.form
        logits, balance = x.split(self._sizes)[-2:]
        found = smoothed(at.rest, balance, self.weights, power)
        if found is None:
            return None
        slopes = [g.double() * m for g, m in zip(found.by_multiplier, at.rest.multipliers, strict=True)]
        by_shape, by_logit = [], []
        for place in range(len(form.units)):
            total = float(slopes[place].sum())
            needed, vector, half = at.gains[place]
            by_shape.append(slopes[place] - total * vector[:, 0].abs().square().double())
            by_logit.append(-total * torch.sigmoid(-logits[place]))
            start = {place + form.first: half[:, None] * vector}
            for j, slope in at.rest.behind(place, at.critical[place], start).items():
                slopes[j] = slopes[j] + (total / needed) * slope.double() * at.rest.multipliers[j]
        return torch.cat([*by_shape, torch.stack(by_logit), found.by_balance]) / 2

    def _top(self, matrices: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """Return about the largest eigenvalue of every block and its vector, by power iteration from the last one."""
        vectors = self._leading.get(key)
        turns = TURNS
        if vectors is None:
            generator = torch.Generator().manual_seed(0)
            shape = (*matrices.shape[:2], 1)
            vectors = torch.randn(shape, generator=generator, dtype=torch.float64).to(matrices.dtype)
            turns = FIRST_TURNS
        for _ in range(turns):
            vectors = matrices @ vectors
            vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-30)
        self._leading[key] = vectors
        return (vectors.mH @ (matrices @ vectors)).real.flatten(), vectors


def descend(
    form: ChainForm,
    multipliers: list[Tensor],
    *,
    evaluations: int,
    most_steps: int,
    out_of_time: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda text: None,
) -> list[FoundMultipliers]:
    """Return multipliers for all blocks of a form, the best first, found at the few blocks that decide.

    After every round all blocks are evaluated. The next round searches those in which some unit needs its multipliers,
    or the constant is largest: elsewhere nothing is binding.

    Args:
        form: the part of the network with all its blocks, in its own units.
        multipliers: initial ones, of which only the shapes count.
        evaluations: how many single blocks may be evaluated.
        most_steps: most steps of the search.
        out_of_time: called before every step.
        progress: called with a line of text.
    """
    whole = RelativeObjective(form)
    x = whole.first(multipliers)
    descent = torch.optim.Adam([x], lr=LONGEST_STEP)
    found: list[FoundMultipliers] = []
    chosen, spent, steps, done = list(range(form.blocks)), 0, 0, 0.0
    while True:
        at, spent = whole(x), spent + form.blocks
        if at is None:
            x.copy_(whole.with_more_room(x))
        else:
            found.append(FoundMultipliers(at.rest.multipliers, whole.balance(x).clone(), at.log, steps))
            chosen = sorted({*at.critical})
            progress(f"{at.log:.4f} at all frequencies after {steps} steps; {len(chosen)} of {form.blocks} decide")
        few = RelativeObjective(form.mapped(lambda matrices, chosen=chosen: matrices[chosen]))  # type: ignore[misc]
        for number in range(ROUND):
            done = max((spent + form.blocks) / max(1, evaluations), steps / most_steps)
            if done >= 1.0 or out_of_time():
                if number == 0:  # nothing has changed since the last look
                    return sorted(found, key=lambda c: c.log)
                break
            steps, spent = steps + 1, spent + len(chosen)
            _step(few, x, descent, done)


def _step(relative: RelativeObjective, x: Tensor, descent: torch.optim.Optimizer, done: float) -> None:
    """Move the point one step; steps become shorter with the share of the work that is done."""
    at = relative(x)
    slope = None if at is None else relative.gradient(x, at, POWERS[done > SECOND_FROM])
    if slope is None:
        x.copy_(relative.with_more_room(x))
        return
    for group in descent.param_groups:
        group["lr"] = LONGEST_STEP * (1 + math.cos(math.pi * done)) / 2 + SHORTEST_STEP
    x.grad = slope
    descent.step()
