"""What rounding may have done to the matrix of a linear segment while it was formed in float64."""

import math
from collections import Counter
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from normscope.core.statement import statement
from normscope.core.value import log_of, log_sum
from normscope.linalg.bounds import NormBounds
from normscope.linalg.dense import BLOCK_NUMBERS
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, schur_norm
from normscope.lipschitz.tokens import TokenMatrices
from normscope.operators.expression import Expr, LinearOp, between
from normscope.operators.linear_map import LinearMap

#: Logarithms of norms beyond which a number, and beyond which its square, may overflow or vanish in float64.
LARGEST_LOG, LARGEST_LOG_OF_SQUARED = 600.0, 300.0
#: Largest matrix of an operation of which only its action is known.
LARGEST_GENERIC = 2**22


@dataclass(frozen=True)
class Forming:
    r"""The error of a matrix formed by applying a segment, operation by operation, to unit vectors.

    :math:`\|\hat M - M\|_2 \le E + \rho \|\hat M\|_2`.
    """

    log_mass: float  #: logarithm of the norm of the same segment with the absolute values of all coefficients
    log_error: float  #: logarithm of E
    relative: float  #: :math:`\rho`
    log_extreme: float = 0.0  #: largest absolute logarithm of a mass met on the way

    @property
    def fits(self) -> bool:
        """Return whether all numbers met stay within the float range."""
        return self.log_extreme < LARGEST_LOG

    @property
    def squares_fit(self) -> bool:
        """Return whether the squares of these numbers do too, as a Gram matrix needs."""
        return self.log_extreme < LARGEST_LOG_OF_SQUARED

    @property
    def log_total(self) -> float:
        """Return the logarithm of a bound on the whole error, with the relative part applied to the mass."""
        if not self.fits:
            return math.inf
        return log_sum((self.log_error, self.log_mass + math.log(self.relative)), math.inf)

    @property
    def total(self) -> float:
        """Return a bound on the whole error."""
        return math.exp(self.log_total) if self.log_total < LARGEST_LOG else math.inf

    def allow(self, bounds: NormBounds) -> NormBounds:
        """Return bounds on the norm of the segment from those on its computed matrix.

        >>> Forming(0.0, math.log(1e-3), 0.0).allow(NormBounds.exact(1.0, method="")).width > 1.9e-3
        True
        """
        if self.log_error == math.inf:
            return NormBounds.certified(-math.inf, math.inf, bounds.method)
        wide = bounds.widen(self.relative)
        if self.log_error == -math.inf:
            return wide
        up = [log_sum((log, self.log_error), math.inf) for log in (wide.log_upper, wide.log_probable)]
        gap = self.log_error - wide.log_lower
        lower = -math.inf if gap >= 0 else wide.log_lower + math.log1p(-math.exp(gap))
        return NormBounds(lower - 4 * UNIT_ROUNDOFF * abs(lower), up[0], up[1], bounds.delta, bounds.method)


@statement("normscope", "Forming error", holds="float64; sums in any order, with or without fused multiply-add")
def forming_error(source: Expr, target: Expr, *, adjoint: bool = False) -> Forming:
    r"""Bound what rounding does while a segment is applied to a unit vector, cancellation between paths included.

    An operation A with coefficients :math:`|A|` that makes k roundings per output errs by at most
    :math:`\gamma_k |A| |x|` entry by entry. With masses :math:`m` and errors :math:`e` of its inputs,
    :math:`m' = \||A|\| m` and :math:`e' = \||A|\| (e + \gamma_k m)`; sums add both. The last sum of two terms errs
    relative to its own result only: nothing is lost where equal paths cancel exactly. The adjoint makes the same
    errors backwards, and rounds where a tensor is read more than once.

    Args:
        source: the expression the segment starts from; every path passes it.
        target: where it ends.
        adjoint: the adjoint was applied as well, or instead.

    Returns:
        The error; infinite where an operation is too large for its coefficients to be inspected.

    >>> from normscope.operators.expression import LinearOp, atom_expr, linear
    >>> x = atom_expr(None, (3,))
    >>> half = LinearOp("diagonal", lambda z: z / 2, None, {"scale": torch.tensor(0.5)})
    >>> forming_error(x, linear(half, [x], (3,))).log_error  # a power of two rounds nothing
    -inf
    """
    masses: dict[int, float] = {source.id: 0.0}
    errors: dict[int, float] = {source.id: -math.inf}
    order = between(source, target)
    for expr in order:
        below = [i.id for i in expr.inputs if masses[i.id] > -math.inf]
        mass, error = [masses[i] for i in below], [errors[i] for i in below]
        if expr.op is None or not below:
            masses[expr.id] = errors[expr.id] = -math.inf
        elif expr.op.kind == "sum":
            masses[expr.id] = log_sum(mass)
            roundings = 0 if len(below) == 2 and expr is target else len(below) - 1
            errors[expr.id] = _after(log_sum(error), masses[expr.id], 0.0, roundings)
        elif expr.op.kind == "concat":
            masses[expr.id] = log_sum(2 * m for m in mass) / 2
            errors[expr.id] = log_sum(2 * e for e in error) / 2
        else:
            gain, roundings = absolute(expr.op, expr) if len(expr.inputs) == 1 else (math.inf, 0)
            masses[expr.id] = -math.inf if gain == -math.inf else mass[0] + gain
            errors[expr.id] = _after(error[0], mass[0], gain, roundings)
    relative = 2.0 * UNIT_ROUNDOFF * math.sqrt(max(1, min(source.numel, target.numel)))
    extreme = max((abs(m) for m in masses.values() if m > -math.inf), default=0.0)
    last, whole = errors[target.id], masses[target.id]
    if adjoint:
        reads = Counter(i.id for expr in order for i in expr.inputs)
        last = _after(last, whole, 0.0, sum(count - 1 for count in reads.values()))
    # One per cent covers all terms of second order, which are smaller by a factor k u.
    return Forming(whole, last + 0.01, relative, extreme)


def _after(error: float, mass: float, gain: float, roundings: int) -> float:
    """Return the log of ``gain (error + k u mass)``."""
    if gain == -math.inf:
        return -math.inf
    own = math.log(roundings * UNIT_ROUNDOFF) + mass if roundings else -math.inf
    return gain + log_sum((error, own))


#: What :func:`_absolute` gave for an operation, by the shape it was applied to.
_gains: WeakKeyDictionary[LinearOp, dict[tuple[int, ...], tuple[float, int]]] = WeakKeyDictionary()


def absolute(op: LinearOp, expr: Expr) -> tuple[float, int]:
    """Return the log of the norm of an operation with absolute coefficients, and how often it rounds either way.

    Computed once: an operation is part of many segments.
    """
    of_shapes = _gains.setdefault(op, {})
    shape = expr.inputs[0].shape
    if shape not in of_shapes:
        of_shapes[shape] = _absolute(op, expr)
    return of_shapes[shape]


def _absolute(op: LinearOp, expr: Expr) -> tuple[float, int]:
    source = expr.inputs[0]
    if op.kind in ("isometry", "embedding") or (op.kind == "contraction" and op.data.get("coordinate")):
        return 0.0, 0
    if op.kind == "contraction":  # centring: |I - 11^T/n| has norm below two
        return math.log(2.0), source.numel + 2
    if op.kind == "diagonal":
        return _diagonal(op.data["scale"])
    if op.kind == "matrix":
        weight = op.data["weight"]
        return _schur_test(weight), max(weight.shape[-2:])
    if op.kind == "convolution":
        return _convolution(op)
    if op.kind == "nonnegative":
        mapping = LinearMap.from_function(op.apply, source.shape, expr.shape, dtype=torch.float64)
        copies = bool(op.data.get("coordinate"))
        return schur_norm(mapping).log_upper, expr.numel if copies else max(source.numel, expr.numel)
    return _generic(source, expr), max(source.numel, expr.numel)


def _generic(source: Expr, expr: Expr) -> float:
    """Return the log of a bound on the absolute norm of an operation of which only its action is known."""
    matrix = TokenMatrices(0).matrix(source, expr)
    if matrix is None and source.numel * expr.numel <= LARGEST_GENERIC and expr.op is not None:
        matrix = LinearMap.from_function(expr.op.apply, source.shape, expr.shape, dtype=torch.float64).matrix()
    return math.inf if matrix is None else _schur_test(matrix)


def _schur_test(weight: torch.Tensor) -> float:
    """Return the log of Schur's bound on the norm of matrices of absolute values; adding logarithms avoids overflow.

    The added 1e-9 covers the rounding of the sums.
    """
    if weight.numel() == 0:
        return -math.inf
    most, columns = 0.0, torch.zeros((), dtype=torch.float64)
    for rows in weight.split(max(1, BLOCK_NUMBERS // weight.shape[-1]), dim=-2):  # no copy of the whole matrix
        part = rows.to(torch.float64).abs()
        most, columns = max(most, float(part.sum(-1).max())), columns + part.sum(-2)
    return (log_of(most) + log_of(float(columns.max()))) / 2 + 1e-9


def _diagonal(scale: torch.Tensor) -> tuple[float, int]:
    """Return the same for diagonal factors, which may be rounded results themselves unless they are powers of two."""
    factors = scale.detach().to(torch.float64).abs()
    mantissas = torch.frexp(factors)[0]
    exact = bool(((mantissas == 0.5) | (mantissas == 0.0)).all())
    return log_of(float(factors.max())), 0 if exact else 8


def _convolution(op: LinearOp) -> tuple[float, int]:
    """Return the same for a kernel: Schur's test on the sums of its filters."""
    weight = op.data["weight"].detach().to(torch.float64).abs()
    groups = op.data["groups"]
    grouped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).sum(-1)
    return _schur_test(grouped), max(grouped.shape[-2:]) * math.prod(weight.shape[2:])
