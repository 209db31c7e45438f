"""Linear systems with feedback through uncertain slopes, and a certified bound on their gain by multipliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.linalg.blas import strsm
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_margin
from normscope.linalg.matrix_rounding import gamma
from normscope.lipschitz.local import multipliers
from normscope.lipschitz.local.ellipsoid import largest
from normscope.lipschitz.local.first_layer import FirstLayer, first_guess, is_large
from normscope.lipschitz.local.multipliers import SMOOTH, QuadraticForm

#: Relative slack of the first level that is tried in a proof.
SLACK = 1e-9
#: Relative accuracy of the bisection between a level that is proved and one that is not.
FINE = 1e-4
#: Number of units from which multipliers are searched for in single precision; the proof is in double precision.
SINGLE_FROM = 1_000
#: Number of units up to which a search takes more steps, which are cheap there, and how many times as many.
FEW, MORE_STEPS = 48, 2
#: Number of units up to which multipliers are refined, and the fraction of the steps spent on it.
REFINED = ((100, 0.5), (300, 0.25))
#: Relative slack above the level found in single precision at which a proof is tried first.
SINGLE_SLACK = 1e-4
#: Number of multipliers tried for a large first layer; one if very many units follow.
LAYERS = 2


@dataclass(frozen=True, eq=False)
class FeedbackSystem:
    r"""The map :math:`x \mapsto y = A x + G w` with :math:`q = B x + N w` and :math:`w_u = \Delta_u q_u` per unit u.

    Every :math:`\Delta_u \in [c_u - \rho_u, c_u + \rho_u]`. N is strictly lower triangular, blocks of units that do not
    feed one another standing together.
    """

    A: Tensor  #: (outputs, inputs)
    G: Tensor  #: (outputs, m)
    B: Tensor  #: (m, inputs)
    N: Tensor  #: (m, m)
    centre: Tensor  #: (m,), c
    radius: Tensor  #: (m,), :math:`\rho > 0`
    blocks: tuple[tuple[int, int], ...]  #: (start, end) of units that do not feed one another
    error: float = 0.0  #: bound on the Frobenius norm of the error of the matrix ``[[A, G], [B, N]]``
    #: the same bound for the rows of ``[A, G]`` alone, and for those of each block of ``[B, N]``
    row_errors: tuple[float, ...] = ()

    @property
    def units(self) -> int:
        """Return the number of units."""
        return len(self.centre)

    @property
    def work(self) -> float:
        """Return about how many multiplications one evaluation of multipliers takes."""
        return 2.0 * (self.units - self.first) ** 3

    @property
    def first(self) -> int:
        """Return the number of units of a large first layer that can be absorbed into the input, or zero."""
        count = self.blocks[0][1] if self.blocks else 0
        return count if self.A.shape[0] <= self.A.shape[1] and is_large(count, self.A.shape[1]) else 0

    def rest(self) -> Tensor:
        """Return the rows of all but a first layer over the input and all units."""
        return torch.cat([torch.cat([self.A, self.G], 1), torch.cat([self.B, self.N], 1)[self.first :]])

    def behind(self, layer: FirstLayer) -> FeedbackSystem:
        """Return the system whose inputs are those of a first layer and its units: its gain is at least as large."""
        raw, (outputs, inputs), u = self.rest(), self.A.shape, layer.units
        rows = layer.applied(raw)
        (A, G), (B, N) = (half.tensor_split([inputs + u], 1) for half in rows.tensor_split([outputs]))
        blocks = tuple((i - u, j - u) for i, j in self.blocks[1:])
        error, each = layer.error_of(raw, rows, self.error), self.row_errors
        if each:
            parts = [(0, outputs), *((outputs + i, outputs + j) for i, j in blocks)]
            given = (each[0], *each[2:])
            each = tuple(layer.error_of(raw[i:j], rows[i:j], e) for (i, j), e in zip(parts, given, strict=True))
        matrices = (A.contiguous(), G.contiguous(), B.contiguous(), N.contiguous())
        return FeedbackSystem(*matrices, self.centre[u:], self.radius[u:], blocks, error, each)

    def transposed(self) -> FeedbackSystem:
        """Return the system of the transposed map, which has the same norm, its entries in reverse order."""
        m = self.units
        back = torch.arange(m - 1, -1, -1)
        blocks = tuple((m - j, m - i) for i, j in reversed(self.blocks))
        return FeedbackSystem(
            self.A.T.contiguous(),
            self.B[back].T.contiguous(),
            self.G[:, back].T.contiguous(),
            self.N[back][:, back].T.contiguous(),
            self.centre[back],
            self.radius[back],
            blocks,
            self.error,
        )

    def single(self) -> FeedbackSystem:
        """Return the system in float32, for a search."""
        names = ("A", "G", "B", "N", "centre", "radius")
        found = replace(self, **{name: getattr(self, name).float() for name in names})
        found.__dict__["gram"] = self.gram.float()
        return found

    @cached_property
    def gram(self) -> Tensor:
        """Return the Gram matrix over the inputs: all that is needed of A and B in the transposed system."""
        joint = torch.cat([self.A, self.B])
        return joint @ joint.T

    @cached_property
    def form(self) -> QuadraticForm:
        """Return the form of the transposed system, whose inputs, the outputs y here, are the small side."""
        gram, *rest = (t.contiguous().numpy() for t in (self.gram, self.G.T, self.N.T, self.centre, self.radius))
        return QuadraticForm(gram, self.A.shape[0], *rest)

    @cached_property
    def squares(self) -> Tensor:
        """Return the squares of what each unit reads in the transposed system, of outputs and of other units."""
        return torch.cat([self.G.T, self.N.T], 1).square_()


@dataclass(frozen=True)
class GainBound:
    """A bound of a gain."""

    value: float  #: the bound; infinite if nothing was proved
    multipliers: Tensor | None = None  #: those it was proved with, one per unit


@statement("normscope", "LOCAL-2", holds="all slopes in their sectors, chosen independently; rounding included")
def gain(feedback: FeedbackSystem, *, steps: int = 40) -> GainBound:
    r"""Return a certified bound of :math:`\|y\| / \|x\|` over all slopes.

    For every :math:`T > 0` for which the form
    :math:`L^2 |x|^2 + \sum_j T_j ((w_j - c_j q_j)^2 - \rho_j^2 q_j^2) - |y|^2` is not negative, L is a bound; T is
    found by a fixed point and gradient steps, and the last form is proved by a factorisation.

    Args:
        feedback: the system.
        steps: most multipliers to try; more where there are few units.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> f = FeedbackSystem(one, one, one, 0 * one, 0.5 * one[0], 0.5 * one[0], ((0, 1),))
    >>> round(gain(f).value, 3)  # 1 + s with s in [0, 1]
    2.0
    """
    if feedback.A.shape[0] > feedback.A.shape[1]:
        feedback = feedback.transposed()
    found = _behind_first_layer(feedback, steps) if feedback.first else GainBound(math.inf)
    return found if math.isfinite(found.value) else _gain(feedback, steps)


def _behind_first_layer(feedback: FeedbackSystem, steps: int) -> GainBound:
    """Return a bound with a large first layer absorbed into the input, the best over several multipliers for it."""
    count, best = feedback.first, GainBound(math.inf)
    given = (feedback.B[:count], feedback.centre[:count], feedback.radius[:count])
    # |y|^2 <= (1 + s) |A x|^2 + (1 + 1/s) |g w|^2 with the best s for one unit: this is how much its input matters.
    does = feedback.radius * feedback.G.norm(dim=0)
    weight = (does * (does + feedback.A.norm() / (feedback.B.norm(dim=1) + 1e-300))).sqrt()
    matter = torch.cat([does.new_ones(len(feedback.A)), weight[count:]])
    T = first_guess(given[0], given[2], matter[:, None] * feedback.rest(), given[1])
    large = feedback.units - count >= SINGLE_FROM
    for _ in range(1 if large else LAYERS):
        layer = FirstLayer.of(*given, T, feedback.error)
        if layer is None:
            break
        behind = feedback.behind(layer)
        found = _gain(behind, max(1, steps // LAYERS))
        best = min(best, found, key=lambda bound: bound.value)
        peak = None if large or found.multipliers is None else behind.form.peak(found.multipliers.numpy(), SMOOTH)
        if peak is None:
            break
        T = layer.better(torch.cat([behind.A, behind.B]).T @ torch.from_numpy(np.concatenate([peak.y, peak.w])))
    return best


def _gain(feedback: FeedbackSystem, steps: int) -> GainBound:
    """Return a bound with one multiplier for each unit."""
    if not feedback.units:
        T = feedback.A.new_zeros(0)
        norm = float(torch.linalg.matrix_norm(feedback.A, 2)) if feedback.A.numel() else 0.0
        return GainBound(proved(feedback, T, norm), T)
    single = feedback.units >= SINGLE_FROM
    steps = steps * MORE_STEPS if feedback.units <= FEW else steps
    if single:
        found = search(feedback.single(), steps)
        if found is not None:
            T, level = found[0].double(), found[1] * (1 + SINGLE_SLACK)
            if _holds(feedback, T, level):
                return GainBound(level * (1 + 2.0**-50), T)
            best = _confirmed(feedback, T)
            if math.isfinite(best.value):
                return best
    found = search(feedback, steps)
    return GainBound(math.inf) if found is None else _confirmed(feedback, found[0])


def _confirmed(feedback: FeedbackSystem, T: Tensor) -> GainBound:
    """Return the bound that multipliers prove, raising them a little where rounding makes the proof fail."""
    for room in (0.0, 1e-4, 1e-2, 0.3):
        # Units that are fed by others are raised more: what they add to those stays below.
        raised = T * (1 + room) ** torch.linspace(0.0, 1.0, len(T), dtype=T.dtype)
        peak = feedback.form.peak(raised.numpy(), SMOOTH)
        value = math.inf if peak is None else proved(feedback, raised, peak.value)
        if math.isfinite(value):
            return GainBound(value, raised)
    return GainBound(math.inf)


def search(feedback: FeedbackSystem, steps: int) -> tuple[Tensor, float] | None:
    """Return multipliers (one per unit) and the bound they give, not proved yet."""
    found = multipliers.search(feedback.form, first_multipliers(feedback).numpy(), steps)
    if found is None:
        return None
    part = next((part for most, part in REFINED if feedback.units <= most), 0.0)
    if int(part * steps) and found[0].dtype == np.float64:
        finer = multipliers.search(feedback.form, found[0], int(part * steps), refine=True)
        found = min(found, finer or found, key=lambda pair: pair[1])
    return torch.from_numpy(found[0]), found[1]


def _solved(whole: Tensor, columns: Tensor) -> Tensor:
    """Solve a unit lower triangular system; in float32 with scipy, which is faster."""
    if whole.dtype == torch.float32:
        found = strsm(1.0, whole.numpy().T, columns.contiguous().numpy().T, side=1, diag=1)
        return torch.from_numpy(found).T
    return torch.linalg.solve_triangular(whole, columns, upper=False, unitriangular=True)


def first_multipliers(feedback: FeedbackSystem) -> Tensor:
    """Return multipliers, one per unit, for which the form is definite: block by block, the first ones first."""
    f = feedback
    whole = torch.eye(f.units, dtype=f.N.dtype) - f.N * f.centre  # each unit reads those before it alone
    Q = f.gram[f.A.shape[0] :, f.A.shape[0] :]
    for _ in range(2):  # what all units read of the input, with the middles of the slopes
        Q = _solved(whole, Q.T)
    Mw = _solved(whole, f.N)
    out = f.G + (f.G * f.centre) @ Mw
    Q, Mw = f.radius[:, None] * Q * f.radius, f.radius[:, None] * Mw
    col = (Mw.square().sum(0) + out.square().sum(0)).sqrt()
    row = (Q.diagonal().clamp_min(0) + Mw.square().sum(1)).sqrt()
    col, row = (v.clamp_min(1e-4 * float(v.max()) + 1e-30) for v in (col, row))  # some read or do next to nothing
    shape = row / col
    T = torch.zeros_like(f.radius)
    for i, j in f.blocks:
        if i == j:
            continue
        P, d = (Q[i:j, i:j] + Q[i:j, i:j].T) / 2, shape[i:j]
        root = d.sqrt()
        rho = largest(P / root[:, None] / root)
        after = Mw[j:, i:j]
        pull = (Q[i:j, j:] / root[:, None]).square().sum()
        push = (after * root).square().sum() + (out[:, i:j] * root).square().sum()
        push = push + torch.finfo(push.dtype).tiny
        T[i:j] = max(1.6 * rho + 1e-30, min(float((pull / push).sqrt()), 1e4 * rho)) * d
        factor = torch.linalg.cholesky_ex(torch.diag(T[i:j]) - P)[0]
        if j < len(T):
            Y = torch.linalg.solve_triangular(factor, Q[i:j, j:], upper=False)
            H = T[i:j].sqrt()[:, None] * after.T
            Q[j:, j:] += Y.T @ Y + H.T @ H
    # The form is that of the transposed system with w scaled by its radius.
    return T / f.radius.square()


def proved(feedback: FeedbackSystem, T: Tensor, level: float) -> float:
    """Return a bound near a level, proved by a factorisation; infinite if that fails."""
    level = max(level, 8 * feedback.error, 1e-150)
    low, high = 0.0, max(SLACK, _perturbation(feedback, T, level))
    while not _holds(feedback, T, level * (1 + high)):
        if not low and not _holds(feedback, T, 2 * level):
            return math.inf
        low, high = high, 4 * high
        if high >= 1.0:
            return 2 * level * (1 + 2.0**-50)
    while high - low > FINE:  # between what failed and what did not, which may lie far apart
        middle = (low + high) / 2
        low, high = (low, middle) if _holds(feedback, T, level * (1 + middle)) else (middle, high)
    return level * (1 + high) * (1 + 2.0**-50)


def _holds(feedback: FeedbackSystem, T: Tensor, L: float) -> bool:
    r"""Return whether the form with L is positive definite beyond all rounding.

    Scaled by :math:`D = \mathrm{diag}(L, T^{1/2})` its diagonal is about one. The roundings of forming it are bounded
    by the norms of its terms, those of the factorisation by its trace, and the error E of the matrices themselves by
    their norms.
    """
    ww, wy, yy = map(torch.from_numpy, feedback.form.blocks(T.numpy()))
    c, n = len(yy), len(yy) + len(ww)
    form = torch.zeros(n, n, dtype=T.dtype)  # only the lower triangle is used
    form[:c, :c], form[c:, :c], form[c:, c:] = yy, wy, ww.T
    form[:c, :c].diagonal().add_(L * L)
    scale = torch.cat([T.new_full((c,), L), T.sqrt()])
    form.div_(scale[:, None]).div_(scale)
    if not bool(form.isfinite().all()):
        return False
    diagonal = form.diagonal()
    diagonal -= _perturbation(feedback, T, L)
    trace = float(diagonal.sum()) * (1 + 1e-12)
    if not trace > 0:
        return False
    diagonal -= 2 * cholesky_margin(n, trace)
    return not int(torch.linalg.cholesky_ex(form)[1])


def _perturbation(f: FeedbackSystem, T: Tensor, L: float) -> float:
    """Return a bound on the perturbation of the scaled form by rounding and by the error of the matrices."""
    c, m = f.A.shape[0], len(T)
    scale = torch.cat([T.new_full((c,), L), T.sqrt()])
    joint = float((f.gram.diagonal().clamp_min(0) / scale.square()).sum().sqrt())  # |[A G] D^-1|_F
    read = f.squares @ scale.square().reciprocal()
    slopes = float((((f.centre.abs() + f.radius).square() * T) @ read).sqrt())  # of the weighted [B N] D^-1
    size = joint**2 + 2 * slopes + slopes**2
    rounding = gamma(max(f.A.shape[0], f.A.shape[1]) + m + 16) * size + 8 * gamma(8) * math.sqrt(c + m)
    # T ((w - c q)^2 - rho^2 q^2) = T (w^2 - 2 c w q + (c^2 - rho^2) q^2), whose last term vanishes for sectors [0, s].
    curved = (f.centre.square() - f.radius.square()).abs() * (1 + 1e-12) * T
    along, through, bent = (_moved(f, scale, v) for v in (None, f.centre.abs() * T.sqrt(), curved.sqrt()))
    moved = 2 * joint * along + along**2 + 2 * through + 2 * float((curved @ read).sqrt()) * bent + bent**2
    return (rounding + moved) * (1 + 1e-9)


def _moved(f: FeedbackSystem, scale: Tensor, weight: Tensor | None) -> float:
    """Return a bound on the error of the rows over their scales, along the inputs or along the weighted units.

    Args:
        f: the system.
        scale: of the outputs and units, each of which has a row.
        weight: of the units as columns; the inputs if not given.
    """
    c = len(scale) - f.units
    if not f.row_errors:
        return f.error / float(scale.min()) * (1.0 if weight is None else _largest(weight))
    parts = [
        (f.row_errors[0], 0, c, f.units),
        *((e, c + i, c + j, i) for e, (i, j) in zip(f.row_errors[1:], f.blocks, strict=True)),
    ]
    found = [
        error / float(scale[i:j].min()) * (1.0 if weight is None else _largest(weight[:before]))
        for error, i, j, before in parts  # a block reads the units before it
        if j > i
    ]
    return math.hypot(*found) * (1 + 1e-12)


def _largest(values: Tensor) -> float:
    return float(values.max()) if len(values) else 0.0
