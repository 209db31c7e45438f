"""Functions of one real variable as trees of elementary operations, with exact values at rational points.

A formula is what an entrywise part of a network computes from one of its tensors: ``x s(1.702 x)`` written with a
product and a sigmoid. A choice by a comparison is moved to the outside, ``f(where(c, a, b)) = where(c, f(a), f(b))``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import arb, arb_series

from normscope.operators.scalar.interval import FUNCTIONS as ON_ARRAYS
from normscope.operators.scalar.interval import Derivatives, Interval, chain, power, product
from normscope.operators.scalar.series import FUNCTIONS, constant_series, either

#: A longer formula is not kept: the tensor is taken as a new variable instead.
LONGEST = 160


@dataclass(frozen=True)
class Formula:
    """A node of a formula."""

    #: ``x``, ``constant``, ``add``, ``mul``, ``pow`` (a constant exponent), ``where`` (first part positive: second,
    #: else third), or one of :data:`normscope.operators.scalar.series.FUNCTIONS`
    op: str
    parts: tuple[Formula, ...] = ()  #: the operands
    number: float = 0.0  #: the value of a constant, or the exponent
    size: int = 1  #: number of nodes, each as often as it is written

    def __add__(self, other: Formula) -> Formula:
        return self if other == ZERO else other if self == ZERO else _build("add", (self, other))

    def __mul__(self, other: Formula) -> Formula:
        """Return the product; a product with a constant zero or one, as in masks, is simplified."""
        if ZERO in (self, other) and self.total and other.total:
            return ZERO
        return self if other == ONE else other if self == ONE else _build("mul", (self, other))

    def __neg__(self) -> Formula:
        return _MINUS * self

    def __sub__(self, other: Formula) -> Formula:
        return self + -other

    def __truediv__(self, other: Formula) -> Formula:
        return self * apply("inverse", other)

    def __pow__(self, exponent: float) -> Formula:
        return _build("pow", (self,), float(exponent))

    def series(self, x: arb, length: int, memo: dict[int, arb_series] | None = None) -> arb_series:
        """Return the power series at a ball: coefficient k holds ``g^(k)/k!`` at each of its points."""
        memo = {} if memo is None else memo
        if id(self) not in memo:
            memo[id(self)] = self._series(x, length, memo)
        return memo[id(self)]

    def _series(self, x: arb, length: int, memo: dict[int, arb_series]) -> arb_series:
        if self.op == "x":
            return arb_series([x, arb(1)][:length], length)
        if self.op == "constant":
            return constant_series(self.number, length)
        parts = [part.series(x, length, memo) for part in self.parts]
        if self.op == "add":
            return parts[0] + parts[1]
        if self.op == "mul":
            return parts[0] * parts[1]
        if self.op == "pow":
            return parts[0] ** (int(self.number) if self.number.is_integer() else arb(self.number))
        if self.op == "where":
            condition, yes, no = parts[0][0], parts[1], parts[2]
            return yes if condition >= 0 else no if condition <= 0 else either(yes, no)
        return FUNCTIONS[self.op](parts[0])

    def jets(self, x: Interval, memo: dict[int, Derivatives] | None = None) -> Derivatives:
        """Return enclosures of value, first and second derivative on intervals."""
        memo = {} if memo is None else memo
        if id(self) not in memo:
            memo[id(self)] = self._jets(x, memo)
        return memo[id(self)]

    def _jets(self, x: Interval, memo: dict[int, Derivatives]) -> Derivatives:
        zero = Interval.of(np.zeros_like(x.low), np.zeros_like(x.low))
        if self.op == "x":
            return x, Interval.of(np.ones_like(x.low), np.ones_like(x.low)), zero
        if self.op == "constant":
            number = np.full_like(x.low, self.number)
            return Interval(number, number), zero, zero
        below = [part.jets(x, memo) for part in self.parts]
        if self.op == "add":
            f, g = below
            return f[0] + g[0], f[1] + g[1], f[2] + g[2]
        if self.op == "mul" and self.parts[0] == _MINUS:
            return -below[1][0], -below[1][1], -below[1][2]
        if self.op == "mul":
            return product(*below)
        if self.op == "pow":
            return chain(power(below[0][0], int(self.number)), below[0])
        if self.op == "where":
            return _chosen(*below)
        return chain(ON_ARRAYS[self.op](below[0][0]), below[0])

    def exact(self, x: Fraction) -> Fraction | None:
        """Return the value at a rational point if it is rational and found by exact arithmetic, or ``None``.

        >>> (X * apply("sigmoid", X)).exact(Fraction(0))
        Fraction(0, 1)
        """
        if self.op == "x":
            return x
        if self.op == "constant":
            return Fraction(self.number)
        found = [part.exact(x) for part in self.parts]
        if self.op == "mul" and any(value == 0 for value in found) and all(part.total for part in self.parts):
            return Fraction(0)
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            return None
        if self.op in ("add", "mul"):
            return known[0] + known[1] if self.op == "add" else known[0] * known[1]
        if self.op == "pow":
            whole = self.number.is_integer() and (self.number > 0 or known[0] != 0)
            return known[0] ** int(self.number) if whole else None
        if self.op == "where":
            return known[1] if known[0] > 0 else known[2]
        return _rational(self.op, known[0])

    @property
    def total(self) -> bool:
        """Return whether it is defined everywhere, as written."""
        return not any(
            node.op in ("inverse", "log", "sqrt", "rsqrt", "asin", "acos", "acosh", "atanh")
            or (node.op == "pow" and not (node.number >= 0 and node.number.is_integer()))
            for node in self.walk()
        )

    @property
    def smooth(self) -> bool:
        """Return whether it has no kinks, as written."""
        return not any(node.op in ("relu", "where") for node in self.walk())

    def walk(self) -> Iterator[Formula]:
        """Yield every node."""
        yield self
        for part in self.parts:
            yield from part.walk()


def _chosen(condition: Derivatives, yes: Derivatives, no: Derivatives) -> Derivatives:
    """Return the derivatives of a choice; where undecided, the hull of both, with an unknown second derivative."""
    above, below = condition[0].low >= 0, condition[0].high <= 0
    first, second, bend = (a.choose(above, b.choose(below, a.hull(b))) for a, b in zip(yes, no, strict=True))
    open_choice = ~(above | below)
    line = Interval(np.full_like(bend.low, -np.inf), np.full_like(bend.low, np.inf))
    return first, second, line.choose(open_choice, bend)


def _rational(op: str, u: Fraction) -> Fraction | None:
    """Return a function's value where it is rational and well known."""
    if op == "relu":
        return max(u, Fraction(0))
    if op == "inverse" and u != 0:
        return 1 / u
    if u == 0 and op in ("exp", "cos", "erfc"):
        return Fraction(1)
    if u == 0 and op in ("tanh", "erf", "atan", "sin"):
        return Fraction(0)
    if u == 0 and op == "sigmoid":
        return Fraction(1, 2)
    if u == 1 and op in ("log", "sqrt", "rsqrt"):
        return Fraction(0 if op == "log" else 1)
    return None


X = Formula("x")


def constant(number: float) -> Formula:
    """Return a constant."""
    return Formula("constant", (), float(number))


ZERO, ONE, _MINUS = constant(0.0), constant(1.0), constant(-1.0)


def _build(op: str, parts: tuple[Formula, ...], number: float = 0.0) -> Formula:
    """Return a node with choices moved outside."""
    for i, part in enumerate(parts):
        if part.op == "where":
            condition, yes, no = part.parts
            a, b = (_build(op, (*parts[:i], branch, *parts[i + 1 :]), number) for branch in (yes, no))
            return where(condition, a, b)
    return Formula(op, parts, number, 1 + sum(part.size for part in parts))


def apply(name: str, f: Formula) -> Formula:
    """Return an elementary function of a formula.

    ``1/sqrt(f)``, ``log(1 + exp f)`` and ``1/(1 + exp f) = s(-f)`` are one function each: their parts grow beyond every
    bound where they do not.

    >>> apply("inverse", apply("sqrt", X)).op, apply("log", ONE + apply("exp", X)).op
    ('rsqrt', 'softplus')
    """
    if name == "inverse" and f.op == "sqrt":
        return _build("rsqrt", f.parts)
    if name in ("inverse", "log") and f.op == "add" and ONE in f.parts:
        other = f.parts[1] if f.parts[0] == ONE else f.parts[0]
        if other.op == "exp":
            inner = other.parts[0]
            return _build("softplus", (inner,)) if name == "log" else _build("sigmoid", (-inner,))
    return _build(name, (f,))


def where(condition: Formula, yes: Formula, no: Formula) -> Formula:
    """Return ``yes`` where the condition is positive, ``no`` elsewhere."""
    if yes == no:
        return yes
    return Formula("where", (condition, yes, no), 0.0, 1 + condition.size + yes.size + no.size)


def affine(f: Formula) -> tuple[Fraction, Fraction] | None:
    """Return ``(a, b)`` if the formula is ``a x + b`` as written, or ``None``.

    >>> affine(constant(2.0) * X + ONE)
    (Fraction(2, 1), Fraction(1, 1))
    """
    if f.op == "x":
        return Fraction(1), Fraction(0)
    if f.op == "constant":
        return Fraction(0), Fraction(f.number)
    if f.op not in ("add", "mul"):
        value = f.exact(Fraction(0)) if all(node.op != "x" for node in f.walk()) else None
        return None if value is None else (Fraction(0), value)
    left, right = affine(f.parts[0]), affine(f.parts[1])
    if left is None or right is None:
        return None
    if f.op == "add":
        return left[0] + right[0], left[1] + right[1]
    if left[0] and right[0]:
        return None
    return left[0] * right[1] + left[1] * right[0], left[1] * right[1]


def continuous(f: Formula) -> bool:
    """Return whether every choice is proved to be continuous: both branches agree, exactly, where it switches.

    >>> continuous(where(X, constant(2.0) * X, X)), continuous(where(X, X + ONE, X))
    (True, False)
    """
    for node in f.walk():
        if node.op != "where":
            continue
        line = affine(node.parts[0])
        if line is None or line[0] == 0:
            return False
        switch = -line[1] / line[0]
        yes, no = (part.exact(switch) for part in node.parts[1:])
        if yes is None or yes != no:
            return False
    return True


def _absolute(f: Formula) -> Formula:
    return apply("relu", f) + apply("relu", -f)


def maximum(f: Formula, g: Formula) -> Formula:
    """Return ``max(f, g) = g + relu(f - g)``."""
    return g + apply("relu", f - g)


def minimum(f: Formula, g: Formula) -> Formula:
    """Return ``min(f, g) = g - relu(g - f)``."""
    return g - apply("relu", g - f)


#: Activations as formulas; those with constants that are not floats, such as 1/6 and sqrt(1/2), are left out.
ACTIVATIONS: dict[str, Callable[[Formula], Formula]] = {
    **{
        name: (lambda f, name=name: apply(name, f))  # type: ignore[misc]
        for name in ON_ARRAYS
        if name not in ("inverse", "softplus")
    },
    "reciprocal": lambda f: apply("inverse", f),
    "neg": operator.neg,
    "abs": _absolute,
    "square": lambda f: f**2,
    "silu": lambda f: f * apply("sigmoid", f),
    "mish": lambda f: f * apply("tanh", apply("softplus", f)),
    "log_sigmoid": lambda f: -apply("softplus", -f),
    "softsign": lambda f: f * apply("inverse", ONE + _absolute(f)),
    "tanhshrink": lambda f: f - apply("tanh", f),
    "expm1": lambda f: apply("exp", f) + constant(-1.0),
    "log1p": lambda f: apply("log", ONE + f),
    "relu6": lambda f: minimum(maximum(f, ZERO), constant(6.0)),
}
