r"""Bounds on a ball for networks with attention, gates or normalizers: the Jacobian at the centre plus its variation.

Write the network as atoms joined by linear maps. On the ball the Jacobian of atom j differs from the one at the centre
by at most :math:`d_u` on each of its units u (a token, a row of attention, an entry). With :math:`S_j` the diagonal
matrix of :math:`\sqrt{d_u}`, :math:`R_{kj}` the map from the output of atom j to the input of atom k and
:math:`R_{kx}` that from the network input, all at the centre,

.. math:: v_k = \|S_k R_{kx}\| + \sum_{j<k} \|S_k R_{kj} S_j\| v_j, \qquad
          L \le \|J(x_0)\| + \sum_k \|R_{yk} S_k\| v_k .

The input of an atom moves by a secant, not a tangent: there the Jacobian averaged over a segment matters, which varies
by at most a fraction :math:`\kappa_j` of that (a half, where the variation is linear).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import certify_largest_eigenvalue
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma
from normscope.lipschitz.local.expansion import expanded, operation_label
from normscope.lipschitz.local.linear_steps import size_of
from normscope.lipschitz.local.slopes import ScalarFunction
from normscope.lipschitz.local.tangent_propagation import TangentPropagation, required
from normscope.lipschitz.local.tangents import (
    TangentAlgebra,
    TangentRows,
    TensorWithTangents,
    UnboundedError,
    padded_rows,
    value_rounding,
)
from normscope.lipschitz.local.values_at_point import ValueAtPoint, values_at_point
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input
from normscope.operators.spread_division import Spread

#: Bound on the relative rounding error of values and derivatives of these operations in float64.
ROUNDING = 2.0**-46
#: Fraction of the largest term below which a norm is bounded by the Frobenius norm.
COARSE = 0.002
#: Sides of matrices whose norms are found by their eigenvalues; above, an estimate is proved with some slack.
SMALL, SLACK = 128, 2e-3
#: Largest number of entries of the tangents of one tensor.
LARGEST_ROWS = 1.5e8
#: Longest softmax rows whose third cumulants are used.
LONGEST_ROW = 32


@statement("normscope", "LOCAL-8", holds="rho less than the length; eps only adds a coordinate that does not move")
def division_variation(length: Tensor, rho: Tensor, factor: float, eps: float) -> Tensor:
    r"""Return how much the Jacobian of :math:`c \mapsto c/\sqrt{a |c|^2 + \epsilon}` varies within a distance.

    The map is the gradient of a norm over :math:`\sqrt a`, whose third derivative is at most
    :math:`2/(\sqrt{3} R^2)`; :math:`\frac{2}{\sqrt{3a}} \frac{\rho}{R (R - \rho)}` with
    :math:`R^2 = |c|^2 + \epsilon/a`. Infinite for :math:`\rho \ge R`.

    Args:
        length: :math:`|c|` at the centre.
        rho: the distance.
        factor: a.
        eps: :math:`\epsilon`.

    >>> round(float(division_variation(torch.tensor(2.0), torch.tensor(1.0), 1.0, 0.0)), 6)  # 1/sqrt(3)
    0.57735
    """
    whole = (length.square() + eps / factor).sqrt() * (1 - 1e-12)
    varies = 2 / math.sqrt(3 * factor) * rho / (whole * (whole - rho)) * (1 + 1e-12)
    return torch.where(rho < whole, varies, math.inf)


@statement("normscope", "LOCAL-9", holds="one row of softmax")
def softmax_variation(p: Tensor, rho: Tensor) -> Tensor:
    r"""Return how much :math:`\mathrm{diag}(p) - p p^T` varies within a distance of the logits.

    Its derivative is a third cumulant: at most :math:`\frac{\sqrt 3}{18} 2^{3/2} \rho`; by Grönwall at most
    :math:`\lambda (e^{\sqrt 2 \rho} - 1)` with :math:`\lambda` its norm at the centre; and at most
    :math:`c \rho + \rho^2/2` with c that of the third cumulants there, as fourth ones are at most one.

    Args:
        p: (rows, n) distributions at the centre.
        rho: (rows,) distances.

    >>> bool(softmax_variation(torch.tensor([[0.5, 0.5]]), torch.tensor([0.1])) < 0.01)
    True
    """
    norm = torch.linalg.eigvalsh(torch.diag_embed(p) - p[:, :, None] * p[:, None])[:, -1].clamp_min(0) + 1e-12
    varies = torch.minimum(math.sqrt(3) / 18 * 2**1.5 * rho, norm * torch.expm1(math.sqrt(2) * rho))
    if p.shape[1] <= LONGEST_ROW:
        varies = torch.minimum(varies, _third_cumulant(p) * rho + rho.square() / 2)
    return varies * (1 + 1e-9)


def _third_cumulant(p: Tensor) -> Tensor:
    """Return a bound on the third cumulants of distributions, the norm of their tensor as a matrix."""
    q = torch.diag_embed(p)
    a, b, c = p[:, :, None, None], p[:, None, :, None], p[:, None, None, :]
    tensor = torch.diag_embed(q) - q[:, :, :, None] * c - q[:, :, None, :] * b - q[:, None] * a + 2 * a * b * c
    return _unit_norms(tensor.flatten(2).permute(2, 0, 1)) + 1e-12


@dataclass(frozen=True)
class AtomInjections:
    """The injections of one atom, each scaled by the root of what its unit varies."""

    rows: slice  #: the place of its tangents among the rows
    tangent: float  #: how fast its scaled input moves with the network input, v
    moved: float  #: how much of an injection differences on the ball amount to at most, rounding of its value included
    off: float  #: the part of that due to rounding alone, at the centre
    error: float  #: how much of an injection is due to the rounding of its rows


@dataclass(frozen=True)
class ScaledOperand:
    """An operand of an atom, scaled."""

    rows: Tensor  #: scaled by the roots of what the units vary
    scale: Tensor  #: these, for every entry
    error: float  #: of the rows before scaling
    slack: float  #: how far its value at the centre may be off, not counting what earlier atoms make of their rounding

    @classmethod
    def of(cls, x: TensorWithTangents, scale: Tensor) -> ScaledOperand:
        """Return an operand with a scale for each entry."""
        rows = required(x.rows)
        return cls(rows.rows.flatten(1) * scale, scale, rows.error, x.at.error)

    @property
    def room(self) -> float:
        """Return a bound on the error of the scaled rows."""
        return float(self.scale.max()) * self.error


class JacobianVariation(TangentPropagation):
    """Propagate derivatives of every tensor by the input and by every atom, scaled by the variation of its Jacobian."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.sources = None
        self.atoms: list[AtomInjections] = []
        self.algebra = VariationAlgebra(self)
        self.off = math.inf  # of the outputs at the centre from their values, once the network was walked

    @property
    def count(self) -> int:
        """Return the number of rows so far."""
        return self.atoms[-1].rows.stop if self.atoms else 1 + self.inputs

    def _values(self, order: list[Expr]) -> dict[int, ValueAtPoint]:
        """Return the value of every expression at the point; rounding is that made after the last atoms."""
        plain = VariationAlgebra(None)

        def evaluate(expr: Expr, below: list[ValueAtPoint]) -> ValueAtPoint:
            return ValueAtPoint(expanded(expr.atom, [TensorWithTangents(b) for b in below], plain).at.value, 0.0)

        return values_at_point(order, self.steps, self.point, evaluate)

    @statement("normscope", "LOCAL-10", holds="networks of operations whose Jacobians vary by a known amount")
    def constant(self) -> float:
        r"""Return :math:`\|J(x_0)\| + \sum_k \|R_{yk} S_k\| v_k`.

        Raises:
            UnboundedError: if an operation has no rule or varies without bound on the ball.
        """
        outputs = self.tangents()
        rows = torch.cat([padded_rows(o.rows.flatten(1), self.count) for o in outputs], 1)
        error = math.hypot(*(o.error for o in outputs))
        norms = self._norms(rows)
        reached = [(norm + error, source) for norm, source in zip(norms[1:], self.atoms, strict=True)]
        fresh = math.hypot(*(self.nominal[e.id].fresh for _, e in self.program.outputs))
        self.off = (fresh + sum(norm * source.off for norm, source in reached)) * (1 + 1e-9)
        return (norms[0] + error + sum(norm * source.tangent for norm, source in reached)) * (1 + 1e-9)

    def _linear(self, expr: Expr) -> TangentRows:
        """Apply a linear operation; where it is all that is left of the last atom, its injections become fewer."""
        result = super()._linear(expr)
        if not self.atoms or len(result.rows) < self.count or self.atoms[-1].rows.start >= self.count - expr.numel:
            return result
        source = self.atoms[-1]
        reading = {item.id for item in self._read(expr) if self._last[item.id] == expr.id}
        if any(len(rows.rows) == self.count for key, rows in self.rows_by_id.items() if key not in reading):
            return result
        flat = result.rows.flatten(1)
        fewer = _dominating(flat[source.rows])
        if fewer is None:
            return result
        start = source.rows.start
        self.atoms[-1] = replace(source, rows=slice(start, start + len(fewer)))
        return replace(result, rows=torch.cat([flat[:start], fewer]).reshape(-1, *expr.shape))

    def _error(self, x: TangentRows) -> float:
        """Return a bound on the error of rows: by norm after norm, or as made at atoms and carried on exactly."""
        flat = x.rows.flatten(1)
        there = [source for source in self.atoms if source.rows.start < len(flat)]
        share = sum(source.error for source in there)
        if share >= 0.5:
            return x.error
        made = sum(float(flat[source.rows].norm()) * source.error for source in there)
        return min(x.error, (x.fresh + made) / (1 - share) * (1 + 1e-9))

    def _atom(self, expr: Expr) -> TangentRows:
        """Pass a block of the input or a nonlinear operation."""
        if isinstance(expr.atom, Input):
            return super()._atom(expr)
        operands = []
        for e in expr.atom.inputs:
            at = self.nominal[e.id]
            operands.append(TensorWithTangents(ValueAtPoint(at.value, at.fresh), self.rows_by_id[e.id]))
        self._label = operation_label(expr.atom)
        return required(expanded(expr.atom, operands, self.algebra).rows)

    def _entrywise(self, at: ValueAtPoint, x: TangentRows, scalar: ScalarFunction) -> TangentRows:
        """Pass a function of each entry."""
        rho = (self.ranges(x, torch.arange(at.value.numel())) + at.error).view_as(at.value)
        sectors = scalar.sectors(at.value, at.error, -rho, rho).flattened()
        varies = torch.maximum(sectors.tangent[0].abs(), sectors.tangent[1].abs())
        secant = torch.maximum(sectors.secant[0].abs(), sectors.secant[1].abs())
        varies = floored(torch.maximum(varies, 2 * secant))  # half of it counts for differences
        flat = x.rows.flatten(1)
        steepest = float(sectors.nominal.abs().max()) if len(varies) else 0.0
        made = steepest * x.fresh + 2 * UNIT_ROUNDOFF * size_of([flat]) * max(1.0, steepest)
        pushed = TangentRows((flat * sectors.nominal).reshape(x.rows.shape), steepest * x.error + made, made)
        defect = value_rounding(at.value, scalar.function(at.value)) + steepest * at.error
        return self.closed(pushed, [ScaledOperand.of(TensorWithTangents(at, x), varies.sqrt())], varies, 0.5, defect)

    def closed(
        self, pushed: TangentRows, read: list[ScaledOperand], varies: Tensor, part: float, defect: float
    ) -> TangentRows:
        """Record an atom and return its rows, with new ones for the variation of its Jacobian.

        Args:
            pushed: its rows by the Jacobian at the centre.
            read: its operands.
            varies: of each entry of the result, how much its unit varies.
            part: of that, how much counts for differences.
            defect: how far its value may be off from that of its operands as they were computed.
        """
        if not bool(varies.isfinite().all()):
            raise UnboundedError(f"{self._label} varies without bound on the ball")
        count, wide = self.count, pushed.rows[0].numel()
        if (count + wide) * wide > LARGEST_ROWS:
            raise UnboundedError(f"{self._label} is too large for a ball")
        self.spend(0.5 * count * wide * min(count, wide))
        norms = self._norms(torch.cat([padded_rows(r.rows, count) for r in read], 1))
        room = math.hypot(*(r.room for r in read))
        tangent = norms[0] + room
        off = math.hypot(*(float(r.scale.max()) * r.slack for r in read))
        moved = self.radius * tangent + off
        for source, norm in zip(self.atoms, norms[1:], strict=True):
            tangent += (norm + room) * source.tangent
            moved += (norm + room) * source.moved
            off += (norm + room) * source.off
        roots = varies.sqrt()
        least = float(roots.min()) if wide else 1.0
        flat = torch.cat([padded_rows(pushed.rows, count).flatten(1), torch.diag(roots)])
        made = pushed.fresh + UNIT_ROUNDOFF * float(roots.norm())
        moved, off = ((part * side + defect / least) * (1 + 1e-9) for side in (moved, off))
        self.atoms.append(AtomInjections(slice(count, count + wide), tangent * (1 + 1e-9), moved, off, made / least))
        result = TangentRows(flat.reshape(-1, *pushed.rows.shape[1:]), pushed.error, made)
        return TangentRows(result.rows, self._error(result), 0.0)

    def ranges(self, x: TangentRows, unit: Tensor) -> Tensor:
        """Return how far each unit moves on the ball: with the input, and by what every atom may do.

        Args:
            x: the rows of a tensor.
            unit: of each entry, its unit; all units have as many entries.
        """
        flat = x.rows.flatten(1)
        units = int(unit.max()) + 1 if len(unit) else 0
        parts = flat[:, unit.argsort(stable=True)].reshape(len(flat), units, -1)
        found = self.radius * _unit_norms(parts[1 : 1 + self.inputs])
        weight = self.radius
        for source in self.atoms:
            if source.rows.start < len(flat):
                found = found + source.moved * _unit_norms(parts[source.rows])
                weight += source.moved
        return found * (1 + 1e-9) + x.error * weight

    def _norms(self, rows: Tensor) -> list[float]:
        """Return norms of the rows of the input and of every atom, rounded up: coarse ones where they hardly count."""
        found = [_norm_above(rows[1 : 1 + self.inputs])]
        for source in self.atoms:
            block = rows[source.rows] if source.rows.start < len(rows) else rows[:0]
            coarse = float(block.norm()) * (1 + 1e-12)
            counts = coarse * source.tangent > COARSE * found[0]
            found.append(_norm_above(block) if counts else coarse)
        return found


def _unit_norms(parts: Tensor) -> Tensor:
    """Return spectral norms over (rows, units, entries) for every unit, rounded up."""
    if parts.shape[2] == 1 or not parts.shape[0]:
        return parts.square().sum((0, 2)).sqrt() * (1 + 1e-12)
    by_unit = parts.transpose(0, 1)
    gram = by_unit.mT @ by_unit if parts.shape[2] <= parts.shape[0] else by_unit @ by_unit.mT
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)
    if gram.shape[1] > 4 * SMALL:
        return trace.clamp_min(0).sqrt() * (1 + 1e-9)
    return (torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0) + 1e-10 * trace).sqrt() * (1 + 1e-12)


def _dominating(matrix: Tensor) -> Tensor | None:
    """Return a square matrix R with ``R^T R >= A^T A``: every ``c^T A`` is a ``b^T R`` with ``|b| <= |c|``."""
    gram = matrix.T @ matrix
    trace = float(gram.trace())
    gram.diagonal().add_((2 * gamma(len(matrix) + 2) + 4 * gamma(len(gram) + 8)) * trace)
    factor, info = torch.linalg.cholesky_ex(gram)
    return None if int(info) else factor.T.contiguous()


def _norm_above(matrix: Tensor) -> float:
    """Return a bound on a spectral norm, within a part :data:`SLACK` of it where the matrix is large."""
    if not matrix.numel():
        return 0.0
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    trace = float(gram.trace())
    if not trace > 1e-280:
        return float(matrix.norm()) * (1 + 1e-12)
    small = len(gram) <= SMALL
    guess = float(torch.linalg.eigvalsh(gram)[-1]) if small else _leading(gram)
    error = gamma(max(matrix.shape) + 2) * trace
    proved = float(certify_largest_eigenvalue(gram, guess, gram_error=error, slack=1e-9 if small else SLACK))
    return min(math.sqrt(max(proved, 0.0)), math.sqrt(trace)) * (1 + 1e-12)


def _leading(gram: Tensor) -> float:
    """Return an estimate of the largest eigenvalue, from below."""
    x = gram[:, gram.diagonal().argmax()].clone()
    for _ in range(20):
        x = gram @ x
        x = x / x.norm()
    return float(x @ (gram @ x))


class VariationAlgebra(TangentAlgebra):
    """Operations on tensors with tangents, with products, softmax and normalization as atoms of their own.

    Args:
        walk: records the atoms; without it only values are computed.
    """

    def __init__(self, walk: JacobianVariation | None) -> None:
        super().__init__(None if walk is None else walk._entrywise)
        self.walk = walk

    def scalar(self, x: TensorWithTangents, function: ScalarFunction) -> TensorWithTangents:
        """Return a function of single entries; the rounding of its value is recorded with the atom."""
        found = super().scalar(x, function)
        return found if self.walk is None else _known(found.at.value, found.rows)

    @statement("normscope", "LOCAL-11", holds="products of two tensors, entry by entry or as matrices")
    def product(self, f: TensorWithTangents, g: TensorWithTangents) -> TensorWithTangents:
        """Return the product entry by entry."""
        value = f.at.value * g.at.value
        if self.walk is None:
            return _known(value)
        sizes = [float(m.at.value.abs().max()) if value.numel() else 0.0 for m in (f, g)]
        a, b = (padded_rows(required(m.rows).rows, self.walk.count) for m in (f, g))
        noise = 4 * UNIT_ROUNDOFF * (sizes[1] * size_of([a]) + sizes[0] * size_of([b]))
        defect = 2 * UNIT_ROUNDOFF * size_of([value]) + sizes[0] * g.at.error + sizes[1] * f.at.error
        unit = torch.arange(value.numel())
        return self._bilinear(f, g, (unit, unit, unit), value, a * g.at.value + b * f.at.value, sizes, noise, defect)

    def matrix_product(self, left: TensorWithTangents, right: TensorWithTangents) -> TensorWithTangents:
        """Return ``A B``, batch index by batch index."""
        a, b = left.at.value, right.at.value
        value = a @ b
        if self.walk is None:
            return _known(value)
        sizes = [float(torch.linalg.matrix_norm(m).max()) if m.numel() else 0.0 for m in (a, b)]
        f, g = (padded_rows(required(m.rows).rows, self.walk.count) for m in (left, right))
        noise = gamma(a.shape[-1] + 3) * (sizes[1] * size_of([f]) + sizes[0] * size_of([g]))
        whole = float(a.norm()) * float(b.norm())
        defect = gamma(a.shape[-1] + 2) * whole + sizes[0] * right.at.error + sizes[1] * left.at.error
        units = tuple(_other_axes(tuple(t.shape), (-1, -2)) for t in (a, b, value))
        return self._bilinear(left, right, units, value, f @ b + a @ g, sizes, noise, defect)

    def _bilinear(
        self,
        f: TensorWithTangents,
        g: TensorWithTangents,
        units: tuple[Tensor, ...],
        value: Tensor,
        pushed: Tensor,
        sizes: list[float],
        noise: float,
        defect: float,
    ) -> TensorWithTangents:
        r"""Record a product, which varies by :math:`d = \sqrt{2 \rho_f \rho_g}` on a unit.

        Its operands move by :math:`\rho_f, \rho_g` there and are scaled by :math:`\sqrt{d \rho_g/\rho_f}` and
        :math:`\sqrt{d \rho_f/\rho_g}`.
        """
        walk, rows = required(self.walk), [required(f.rows), required(g.rows)]
        rho = [walk.ranges(r, unit) + m.at.error for r, unit, m in zip(rows, units, (f, g), strict=False)]
        least = 1e-6 * max(float(r.max()) for r in rho) + 1e-20
        rho_f, rho_g = (r.clamp_min(least) for r in rho)
        d = floored((2 * rho_f * rho_g).sqrt() * (1 + 1e-12))
        read = [
            ScaledOperand.of(f, (d * rho_g / rho_f).sqrt()[units[0]]),
            ScaledOperand.of(g, (d * rho_f / rho_g).sqrt()[units[1]]),
        ]
        errors = [sizes[1] * e[0] + sizes[0] * e[1] for e in zip(*((r.error, r.fresh) for r in rows), strict=True)]
        half = 0.5 + min(0.5, max(f.at.error, g.at.error) / least)
        whole = TangentRows(pushed, errors[0] + noise, errors[1] + noise)
        return _known(value, walk.closed(whole, read, d[units[2]], half, defect))

    def distribution(self, x: TensorWithTangents, axis: int, keep: Tensor | None) -> TensorWithTangents:
        """Return the softmax along an axis; what is not kept is zero."""
        z = x.at.value if keep is None else x.at.value.masked_fill(~keep, -math.inf)
        p, axis = z.softmax(axis), axis % z.ndim
        if self.walk is None:
            return _known(p)
        spread = (z.amax(axis, keepdim=True) - z).masked_fill(z == -math.inf, 0.0)
        own = ROUNDING * (1 + float(spread.max()))  # relative error of p
        rows, unit = required(x.rows), _other_axes(tuple(p.shape), (axis,))
        rho = self.walk.ranges(rows, unit) + x.at.error
        by_unit = p.flatten()[unit.argsort(stable=True)].reshape(len(rho), -1)
        d = floored(softmax_variation(by_unit, rho) + 4 * own)
        pushed = p * (rows.rows - (p * rows.rows).sum(axis + 1, keepdim=True))
        noise = (gamma(p.shape[axis] + 8) + 4 * own) * size_of([rows.rows])
        whole = TangentRows(pushed, 0.5 * rows.error + noise, 0.5 * rows.fresh + noise)
        defect = own * float(p.norm()) + 0.5 * x.at.error
        part = _half(rho, x.at.error)
        return _known(p, self.walk.closed(whole, [ScaledOperand.of(x, d.sqrt()[unit])], d[unit], part, defect))

    def division(self, x: TensorWithTangents, spread: Spread) -> TensorWithTangents:
        """Return every group divided by its spread."""
        if spread.where != "inside":
            raise UnboundedError("a normalizer with eps outside of the root has no local rule")
        z, view = x.at.value, spread.view
        squares = z.reshape(view).square().sum(spread.axes, keepdim=True)
        a, eps = spread.factor / spread.size, spread.eps
        size = (a * squares + eps).sqrt()
        if not bool((size > 0).all()):
            raise UnboundedError("a normalizer without eps sees a group without spread")
        value = (z.reshape(view) / size).reshape(z.shape)
        if self.walk is None:
            return _known(value)
        steep = float((1 / size).max()) * (1 + 1e-9)
        rows, unit = required(x.rows), _other_axes(view, spread.axes)
        rho = self.walk.ranges(rows, unit) + x.at.error
        d = floored(division_variation(squares.sqrt().flatten(), rho, a, eps) + ROUNDING * steep)
        moving, y = rows.rows.reshape(-1, *view), value.reshape(view)
        inner = (y * moving).sum(tuple(axis + 1 for axis in spread.axes), keepdim=True)
        pushed = ((moving - a * y * inner) / size).reshape(rows.rows.shape)
        noise = steep * (2 * gamma(spread.size + 8) + ROUNDING) * size_of([moving])
        whole = TangentRows(pushed, steep * rows.error + noise, steep * rows.fresh + noise)
        defect = ROUNDING * float(value.norm()) + steep * x.at.error
        part = _half(rho, x.at.error)
        return _known(value, self.walk.closed(whole, [ScaledOperand.of(x, d.sqrt()[unit])], d[unit], part, defect))


def _known(value: Tensor, rows: TangentRows | None = None) -> TensorWithTangents:
    """Return a tensor whose rounding the atom that made it accounts for."""
    return TensorWithTangents(ValueAtPoint(value, 0.0), rows)


def floored(varies: Tensor) -> Tensor:
    """Return variations that are not zero, so that rounding at every entry can be followed."""
    finite = varies[varies.isfinite()]
    return varies.clamp_min(max(1e-8 * float(finite.max()), 1e-24) if finite.numel() else 1e-24)


def _half(rho: Tensor, error: float) -> float:
    """Return the part of a variation that counts for secants, the centre being known up to an error."""
    return float(((rho / 2 + error) / rho.clamp_min(1e-300)).clamp(0.5, 1.0).max())


def _other_axes(shape: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
    """Return of each entry the number of its place in all axes but some.

    >>> _other_axes((2, 3), (1,)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    axes = tuple(axis % len(shape) for axis in axes)
    outer = [1 if i in axes else n for i, n in enumerate(shape)]
    return torch.arange(math.prod(outer)).reshape(outer).expand(shape).flatten()
