r"""The best multipliers of a small form by an interior-point method, which ends at the optimum of LipSDP-Neuron.

The squares :math:`s_i = c_i^2` of the constants and the multipliers :math:`\lambda` enter the matrix of the proof
linearly,

.. math:: M(s, \lambda) = \sum_i s_i |x_i|^2 - |T h|^2 - \sum_k \lambda_k (p_k q_k^T + q_k p_k^T),
          \quad p = h - a z, \; q = b z - h,

which makes their choice a semidefinite program: the least :math:`\sum_i w_i^2 s_i` with M positive semidefinite. A
Newton step of the primal-dual method (HKM direction) needs no more than products of p and q with the dual matrix X and
the inverse of M: :math:`\operatorname{tr}(B_j X B_k M^{-1})` for :math:`B_k = p_k q_k^T + q_k p_k^T`. Nothing found
here is trusted: :mod:`.proof` checks it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.lipschitz.chains.chain_form import ChainForm, MatrixWithError
from normscope.lipschitz.chains.search import FoundMultipliers

#: Largest side of the matrix: beyond it a search by gradients is quicker.
LARGEST = 128
#: How far above the optimum the search may end, relative to the squares, and most Newton steps.
ENOUGH, MOST_STEPS = 1e-4, 60
#: Part of the complementarity that a step aims at, after a short step and after a long one.
CAREFUL, BOLD = 0.4, 0.08
#: Part of the way to the boundary that a step may go, and by how much one that is too long is shortened.
BACK, SHORTER = 0.95, 0.85


def newton(form: ChainForm, multipliers: list[Tensor]) -> FoundMultipliers | None:
    """Return about the best multipliers of a small form, or ``None`` if it is not small or they were not found.

    Args:
        form: the part of the network, in its own units.
        multipliers: to begin with.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), torch.tensor([[1.0, -1.0]])])
    >>> found = newton(net, [torch.full((2,), 3.0).double()])
    >>> round(math.exp(found.log), 3)  # the root of two, which is attained
    1.414
    """
    if sum(form.sizes) > LARGEST or form.blocks != 1 or form.dtype.is_complex:
        return None
    program = _SemidefiniteProgram.of(form)
    v = program.start(torch.cat([m.double() for m in multipliers]))
    if v is None:
        return None
    count, steps = form.first, 0
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(program.matrix(v)))
    size = float(program.cost.sum() / inverse.diagonal()[: len(program.source)].sum())
    dual, mu, length = DualPoint(size * inverse, size / v[count:]), size, 0.0
    while mu * program.side > ENOUGH * float(program.cost @ v[:count]):
        found = program.step(v, dual, mu * (CAREFUL if length < 0.5 else BOLD))
        steps += 1
        if found is None or found[2] == 0.0 or steps == MOST_STEPS:
            return None
        v, dual, length = found
        mu = float((dual.X * program.matrix(v)).sum() + dual.y @ v[count:]) / program.side
    total = math.log(float(program.cost @ v[:count])) / 2
    parts = list(v[count:].split([unit.size for unit in form.units]))
    return FoundMultipliers(parts, v[:count].log() / 2 - total, total, steps)


@dataclass(frozen=True, eq=False)
class _SemidefiniteProgram:
    """The semidefinite program of a form in the squares and the multipliers."""

    base: Tensor  #: the matrix without them
    p: Tensor  #: one row for each multiplier
    q: Tensor  #: one row for each multiplier
    source: Tensor  #: the number of the source of each of the first entries
    pick: Tensor  #: the same as a matrix of zeros and ones
    cost: Tensor  #: how much each square counts

    @classmethod
    def of(cls, form: ChainForm) -> _SemidefiniteProgram:
        """Return the program of a form of one block."""
        ends = [0, *torch.tensor(form.sizes).cumsum(0).tolist()]
        places = list(itertools.pairwise(ends))

        def stacked(blocks: dict[int, MatrixWithError], rows: int) -> Tensor:
            found = torch.zeros(rows, ends[-1], dtype=torch.float64)
            for j, block in blocks.items():
                found[:, places[j][0] : places[j][1]] = block.value[0]
            return found

        p, q = [], []
        for k, unit in enumerate(form.units, form.first):
            own, z = torch.zeros(unit.size, ends[-1], dtype=torch.float64), stacked(dict(unit.inputs), unit.size)
            own[:, places[k][0] : places[k][1]] = torch.eye(unit.size, dtype=torch.float64)
            p.append(own - unit.low * z)
            q.append(unit.high * z - own)
        target = stacked(dict(form.target), next(iter(form.target.values())).value.shape[1])
        source = torch.repeat_interleave(torch.arange(form.first), torch.tensor(form.sources))
        cost = torch.tensor(form.weights, dtype=torch.float64).square()
        pick = torch.nn.functional.one_hot(source, form.first).double().T.contiguous()
        return cls(-target.T @ target, torch.cat(p), torch.cat(q), source, pick, cost)

    @property
    def side(self) -> int:
        """Return how many pairs are complementary: eigenvalues, and multipliers with their numbers."""
        return len(self.base) + len(self.p)

    def matrix(self, v: Tensor) -> Tensor:
        """Return the matrix of the proof."""
        squares, multipliers = v[: len(self.cost)], v[len(self.cost) :]
        half = self.p.T @ (multipliers[:, None] * self.q)
        found = self.base - half - half.T
        found.diagonal()[: len(self.source)].add_(squares[self.source])
        return found

    def start(self, multipliers: Tensor) -> Tensor | None:
        """Return squares, the smallest found by doubling, and multipliers for which the matrix is definite."""
        for power in range(60):
            v = torch.cat([2.0**power / self.cost, multipliers])
            if not int(torch.linalg.cholesky_ex(self.matrix(v))[1]):
                return v
        return None

    def step(self, v: Tensor, dual: DualPoint, aim: float) -> tuple[Tensor, DualPoint, float] | None:
        """Return both sides one Newton step further towards a complementarity, and the shorter of the two steps."""
        count, m, inputs = len(self.cost), len(self.p), len(self.source)
        S = self.matrix(v)
        factor, info = torch.linalg.cholesky_ex(S)
        if int(info):
            return None
        inverse = torch.cholesky_inverse(factor)
        both = torch.cat([self.p, self.q])
        over, through = inverse @ both.T, dual.X @ both.T
        a, b = both @ over, both @ through
        hessian = torch.empty(len(v), len(v), dtype=v.dtype)
        cross = b[:m, m:] * a[m:, :m]
        hessian[count:, count:] = cross + cross.T + b[m:, m:] * a[:m, :m] + b[:m, :m] * a[m:, m:]
        hessian[count:, count:].diagonal().add_(dual.y / v[count:])
        mixed = through[:inputs, :m] * over[:inputs, m:] + through[:inputs, m:] * over[:inputs, :m]
        hessian[:count, count:] = -(self.pick @ mixed)
        hessian[count:, :count] = hessian[:count, count:].T
        hessian[:count, :count] = self.pick @ (inverse * dual.X)[:inputs, :inputs] @ self.pick.T
        first = self.pick @ inverse.diagonal()[:inputs]
        second = -2 * a[:m, m:].diagonal() + v[count:].reciprocal()
        right = aim * torch.cat([first, second])
        right[:count] -= self.cost
        moved, info = torch.linalg.solve_ex(hessian, right)
        if int(info) or not bool(moved.isfinite().all()):
            return None
        change = self.matrix(moved) - self.base
        turned = dual.X @ change @ inverse
        dX = aim * inverse - dual.X - (turned + turned.T) / 2
        dy = aim / v[count:] - dual.y * (1 + moved[count:] / v[count:])
        primal = min(_longest(S, change), _longest_entries(v[count:], moved[count:]))
        back = min(_longest(dual.X, dX), _longest_entries(dual.y, dy))
        return v + primal * moved, DualPoint(dual.X + back * dX, dual.y + back * dy), min(primal, back)


@dataclass(frozen=True, eq=False)
class DualPoint:
    """A point of the dual program: a positive definite matrix and nonnegative numbers."""

    X: Tensor  #: a positive definite matrix
    y: Tensor  #: one number for each multiplier


def _longest(matrix: Tensor, change: Tensor) -> float:
    """Return a step, one at most, that keeps a matrix positive definite."""
    length = 1.0
    while length > 1e-6:
        if not int(torch.linalg.cholesky_ex(matrix + length / BACK * change)[1]):
            return length
        length *= SHORTER
    return 0.0


def _longest_entries(numbers: Tensor, change: Tensor) -> float:
    """Return a step, one at most, that keeps numbers positive."""
    falls = -change / numbers
    return min(1.0, BACK / max(float(falls.max()), 1e-30)) if len(numbers) else 1.0
