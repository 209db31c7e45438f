r"""Tangents of very deep networks: their rounding error is verified by random probes instead of bounded by norms.

A bound of the rounding of float64 that multiplies the norms of all layers is useless in a deep network. Here Gaussian
combinations :math:`g` of the generators go through the same linear maps in twice the precision. If Z are the exact rows
and :math:`\tilde Z` the computed ones, :math:`(\tilde Z - Z)^T g` is then known, and by

.. math:: P[\,|E^T g|^2 \le t \|E\|_F^2\,] \le \sqrt t\, e^{(1 - t)/2}

(Chernoff, with :math:`\prod (1 + 2 \lambda p_i) \ge 1 + 2 \lambda` for weights that add up to one) all of several
independent probes miss an error only with tiny probability. What is verified is fixed beforehand, a part of the rows'
own size: the result does not depend on the probes, except that it is refused where one fails.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.double_double import DoubleDouble
from normscope.linalg.matrix_rounding import gamma
from normscope.lipschitz.local.feedback_system import FeedbackSystem
from normscope.lipschitz.local.linear_steps import size_of
from normscope.lipschitz.local.piecewise_linear import PiecewiseLinearPropagation
from normscope.lipschitz.local.precise_values import DoubleDoubleValue, apply_linear
from normscope.lipschitz.local.slopes import Sectors
from normscope.lipschitz.local.tangent_propagation import CHUNK, OpenEntries
from normscope.lipschitz.local.tangents import TangentRows, UnboundedError
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input

#: Number of probes, and the factor by which the error may exceed the largest of them.
PROBES, FACTOR = 24, 10.0
#: Relative error of rows that is verified.
VERIFIED = 2.0**-33
#: The same for outputs: means before them are not exact in double-double arithmetic.
AT_OUTPUTS = 2.0**-27


@statement("normscope", "LOCAL-7", holds="Gaussian probes, independent of what is probed")
def failure_probability(checks: int, probes: int = PROBES, factor: float = FACTOR) -> float:
    r"""Return a bound on the probability that an error more than a factor above all probes passes some check.

    >>> failure_probability(20) < 1e-16
    True
    """
    t = factor**-2
    return min(1.0, checks * (math.sqrt(t) * math.exp((1 - t) / 2)) ** probes)


class ProbedPropagation(PiecewiseLinearPropagation):
    """Propagate tangents through a piecewise linear network, their rounding error verified by probes."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.flows: dict[int, DoubleDoubleValue] = {}
        self.errors: dict[int, float] = {}
        self.checks = 0
        self._generator = torch.Generator().manual_seed(20_250)
        self._gaussian = self._drawn(1 + self.inputs)
        self._flow = DoubleDoubleValue(DoubleDouble.of(torch.zeros(0, dtype=torch.float64)))
        self._check: _ProbeCheck | None = None

    @property
    def delta(self) -> float:
        """Return a bound on the probability that a wrong result has passed the checks."""
        return failure_probability(self.checks)

    def _drawn(self, count: int) -> Tensor:
        return torch.randn(PROBES, count, generator=self._generator, dtype=torch.float64)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        self.flows.pop(key, None)

    def _linear(self, expr: Expr) -> TangentRows:
        if not expr.atoms or not expr.inputs:
            self.flows[expr.id] = DoubleDoubleValue(
                DoubleDouble.of(torch.zeros(PROBES, *expr.shape, dtype=torch.float64))
            )
        else:
            read = [self.flows[i.id] for i in expr.inputs]
            self.flows[expr.id] = apply_linear(expr, self.steps, read, sources=self.errors)
        return super()._linear(expr)

    def _atom(self, expr: Expr) -> TangentRows:
        if isinstance(expr.atom, Input):
            first = 1 + sum(p.numel() for p in self.point[: expr.atom.block])
            own = self._gaussian[:, first : first + expr.numel].reshape(-1, *expr.shape)
            self.flows[expr.id] = DoubleDoubleValue(DoubleDouble.of(own.contiguous()))
            return super()._atom(expr)
        below = expr.atom.inputs[0]
        self._flow = self.flows[below.id]
        self.rows_by_id[below.id] = self._verified(self.rows_by_id[below.id], self._flow, VERIFIED)
        found = super()._atom(expr)
        self.flows[expr.id] = self._flow
        self.errors[expr.id] = self._flow.error
        return replace(found, error=math.inf)

    def _verified(self, x: TangentRows, flow: DoubleDoubleValue, part: float) -> TangentRows:
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
        seen = DoubleDouble(-flow.pair.high.flatten(1), -flow.pair.low.flatten(1))
        for i in range(0, len(flat), CHUNK):
            seen = seen.plus(DoubleDouble.of(gaussian[:, i : i + CHUNK] @ flat[i : i + CHUNK]))
        largest = gamma(CHUNK + 8) * float(gaussian.norm(dim=1).max()) * 1.01
        self._check = _ProbeCheck(
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

    def _raw(self, x: TangentRows, entries: Tensor) -> tuple[Tensor, float]:
        return super()._raw(x, entries)[0], self._error_at(entries)

    def _closed(self, x: TangentRows, sectors: Sectors, opened: OpenEntries, sizes: Tensor) -> TangentRows:
        open_ = opened.entries
        width = sectors.tangent[1] - sectors.tangent[0]
        if int((width > 0).sum()) != len(open_):
            raise UnboundedError("a unit without tangents may change its slope")
        before, u = len(self.units), len(open_)
        found = super()._closed(x, sectors, opened, sizes)
        shape = self._flow.pair.high.shape
        pair = DoubleDouble(self._flow.pair.high.flatten(1), self._flow.pair.low.flatten(1)).times(sectors.nominal)
        if u:
            new = self._drawn(u)
            self._gaussian = torch.cat([self._gaussian[:, : 1 + self.inputs + before], new], 1)
            added = torch.zeros_like(pair.high)
            added[:, open_] = new
            pair = pair.plus(DoubleDouble.of(added))
            if self.radius > 0:
                spread = torch.zeros_like(pair.high)
                spread[:, open_] = self.units.middle[before:]
                pair = pair.plus(DoubleDouble.of(self._gaussian[:, :1].expand_as(spread).contiguous()).times(spread))
        steepest = float(sectors.nominal.abs().max()) if len(width) else 0.0
        error = steepest * self._flow.error + 2.0**-90 * size_of([pair.high])
        self._flow = DoubleDoubleValue(DoubleDouble(pair.high.reshape(shape), pair.low.reshape(shape)), error)
        return found

    def _system(self, outputs: list[TangentRows]) -> FeedbackSystem:
        exprs = [e for _, e in self.program.outputs]
        part = AT_OUTPUTS
        return super()._system([self._verified(o, self.flows[e.id], part) for o, e in zip(outputs, exprs, strict=True)])


class ProbeError(UnboundedError):
    """The probes found a rounding error that is too large."""


@dataclass(frozen=True)
class _ProbeCheck:
    """The error of rows as measured by the probes."""

    seen: Tensor  #: combinations of the errors, one row for each probe
    squares: tuple[Tensor, Tensor]  #: of the rows of each entry, along the input and all others
    sizes: Tensor  #: norms of the rows of each entry
    rounding: float  #: of the combinations, relative to the rows
    error: float  #: of the exact combinations
    part: float  #: the error to be confirmed, relative to the rows
