r"""Walks of deep networks: the error of all tangents is verified by random probes, instead of bounded by norms.

A bound of the rounding of float64 that multiplies the norms of all layers is useless in a deep network. Here Gaussian
combinations :math:`g` of the generators go through the same linear maps in twice the precision. If Z are the rows as
they should be and :math:`\tilde Z` as computed, :math:`(\tilde Z - Z)^T g` is then known, and by

.. math:: P[\,|E^T g|^2 \le t \|E\|_F^2\,] \le \sqrt t\, e^{(1 - t)/2}

(Chernoff, with :math:`\prod (1 + 2 \lambda p_i) \ge 1 + 2 \lambda` for weights that add up to one) all of several
independent probes miss an error only with tiny probability. What is verified is fixed beforehand, a part of the rows'
own size: the walk does not depend on the probes, except that it ends where one fails.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.matrix_rounding import gamma
from normscope.linalg.pairs import Pair
from normscope.lipschitz.local.feedback import Feedback
from normscope.lipschitz.local.lean import Lean
from normscope.lipschitz.local.moving import Rows, UnboundedError
from normscope.lipschitz.local.slopes import Sectors
from normscope.lipschitz.local.steps import size_of
from normscope.lipschitz.local.twofold import Flow, passed
from normscope.lipschitz.local.walk import CHUNK, Opened
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input

#: Probes, and how many times larger than the largest of them the error may be.
PROBES, FACTOR = 24, 10.0
#: The error of rows that is verified, relative to all of them.
VERIFIED = 2.0**-33
#: The same for outputs, before which means are taken: these are not exact in slices.
AT_OUTPUTS = 2.0**-27


@statement("normscope", "LOCAL-7", holds="Gaussian probes, independent of what is probed")
def failure_probability(checks: int, probes: int = PROBES, factor: float = FACTOR) -> float:
    r"""Return a bound on the probability that an error more than a factor above all probes passes some check.

    >>> failure_probability(20) < 1e-16
    True
    """
    t = factor**-2
    return min(1.0, checks * (math.sqrt(t) * math.exp((1 - t) / 2)) ** probes)


class Probed(Lean):
    """A walk of a piecewise linear network whose rows are verified by probes.

    Args:
        *given, **settings: as of :class:`Walk`.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.flows: dict[int, Flow] = {}
        self.errors: dict[int, float] = {}
        self.checks = 0
        self._generator = torch.Generator().manual_seed(20_250)
        self._gaussian = self._drawn(1 + self.inputs)
        self._flow = Flow(Pair.of(torch.zeros(0, dtype=torch.float64)))
        self._check: _Check | None = None

    @property
    def delta(self) -> float:
        """Return the probability with which something wrong may have passed."""
        return failure_probability(self.checks)

    def _drawn(self, count: int) -> Tensor:
        return torch.randn(PROBES, count, generator=self._generator, dtype=torch.float64)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        self.flows.pop(key, None)

    def _linear(self, expr: Expr) -> Rows:
        if not expr.atoms or not expr.inputs:
            self.flows[expr.id] = Flow(Pair.of(torch.zeros(PROBES, *expr.shape, dtype=torch.float64)))
        else:
            read = [self.flows[i.id] for i in expr.inputs]
            self.flows[expr.id] = passed(expr, self.steps, read, sources=self.errors)
        return super()._linear(expr)

    def _atom(self, expr: Expr) -> Rows:
        if isinstance(expr.atom, Input):
            first = 1 + sum(p.numel() for p in self.point[: expr.atom.block])
            own = self._gaussian[:, first : first + expr.numel].reshape(-1, *expr.shape)
            self.flows[expr.id] = Flow(Pair.of(own.contiguous()))
            return super()._atom(expr)
        below = expr.atom.inputs[0]
        self._flow = self.flows[below.id]
        self.known[below.id] = self._verified(self.known[below.id], self._flow, VERIFIED)
        found = super()._atom(expr)
        self.flows[expr.id] = self._flow
        self.errors[expr.id] = self._flow.error
        return replace(found, error=math.inf)

    def _verified(self, x: Rows, flow: Flow, part: float) -> Rows:
        """Return rows with the error that the probes confirm.

        Args:
            x: the rows.
            flow: their combinations.
            part: the error to be confirmed, relative to all rows.

        Raises:
            UnboundedError: if they do not.
        """
        flat = x.rows.flatten(1)
        gaussian, squares = self._gaussian[:, : len(flat)], super()._squares(flat)
        seen = Pair(-flow.pair.high.flatten(1), -flow.pair.low.flatten(1))
        for i in range(0, len(flat), CHUNK):
            seen = seen.plus(Pair.of(gaussian[:, i : i + CHUNK] @ flat[i : i + CHUNK]))
        largest = gamma(CHUNK + 8) * float(gaussian.norm(dim=1).max()) * 1.01
        self._check = _Check(
            seen.high, squares, (squares[0] + squares[1]).sqrt() * (1 + 1e-9), largest, flow.error, part
        )
        return replace(x, error=self._error_at(torch.arange(flat.shape[1])))

    def _squares(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return self._check.squares if self._check is not None else super()._squares(flat)

    def _error_at(self, entries: Tensor) -> float:
        """Return the error of the rows of some entries that the probes confirm.

        It is a part of their own size or of that of average rows, so that it does not depend on the probes.
        """
        check = self._check
        if check is None:
            raise ValueError("the rows were not verified")
        if not len(entries):
            return 0.0
        self.checks += 1
        size = float(check.sizes[entries].norm())
        average = float(check.sizes.norm()) * math.sqrt(len(entries) / max(1, len(check.sizes)))
        allowed = check.part * max(size, average) * (1 + 1e-9) + 1e-300
        seen = float(check.seen[:, entries].norm(dim=1).max())
        if not FACTOR * (seen + check.rounding * size + check.error) <= allowed:
            raise ProbeError("rounding is larger than the probes allow: the weights are badly scaled")
        return allowed

    def _raw(self, x: Rows, entries: Tensor) -> tuple[Tensor, float]:
        return super()._raw(x, entries)[0], self._error_at(entries)

    def _closed(self, x: Rows, sectors: Sectors, opened: Opened, sizes: Tensor) -> Rows:
        open_ = opened.entries
        width = sectors.tangent[1] - sectors.tangent[0]
        if int((width > 0).sum()) != len(open_):
            raise UnboundedError("a unit without tangents may change its slope")
        before, u = len(self.units), len(open_)
        found = super()._closed(x, sectors, opened, sizes)
        shape = self._flow.pair.high.shape
        pair = Pair(self._flow.pair.high.flatten(1), self._flow.pair.low.flatten(1)).times(sectors.nominal)
        if u:
            new = self._drawn(u)
            self._gaussian = torch.cat([self._gaussian[:, : 1 + self.inputs + before], new], 1)
            added = torch.zeros_like(pair.high)
            added[:, open_] = new
            pair = pair.plus(Pair.of(added))
            if self.radius > 0:
                spread = torch.zeros_like(pair.high)
                spread[:, open_] = self.units.middle[before:]
                pair = pair.plus(Pair.of(self._gaussian[:, :1].expand_as(spread).contiguous()).times(spread))
        steepest = float(sectors.nominal.abs().max()) if len(width) else 0.0
        error = steepest * self._flow.error + 2.0**-90 * size_of([pair.high])
        self._flow = Flow(Pair(pair.high.reshape(shape), pair.low.reshape(shape)), error)
        return found

    def _system(self, outputs: list[Rows]) -> Feedback:
        exprs = [e for _, e in self.program.outputs]
        part = AT_OUTPUTS
        return super()._system([self._verified(o, self.flows[e.id], part) for o, e in zip(outputs, exprs, strict=True)])


class ProbeError(UnboundedError):
    """Rows are not as precise as they have to be."""


@dataclass(frozen=True)
class _Check:
    """What the probes saw of the error of rows.

    Attributes:
        seen: combinations of the errors, one row for each probe.
        squares: of the rows of each entry, along the input and all others.
        sizes: norms of the rows of each entry.
        rounding: of the combinations, relative to the rows.
        error: of the combinations as they should be.
        part: the error to be confirmed, relative to the rows.
    """

    seen: Tensor
    squares: tuple[Tensor, Tensor]
    sizes: Tensor
    rounding: float
    error: float
    part: float
