"""Entrywise parts of a graph that read one tensor: functions of one real variable.

``x * sigmoid(1.702 * x)`` is a product of two tensors that both depend on the input; the product rule bounds it only on
a bounded range. As a function of ``x`` alone it has a bound on all inputs, the largest slope.
"""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Pointwise, Range
from normscope.operators.registry import Call
from normscope.operators.scalar.activations import jump_is_rounding
from normscope.operators.scalar.curve import enclosure, slope
from normscope.operators.scalar.formula import (
    ACTIVATIONS,
    LONGEST,
    ONE,
    ZERO,
    Formula,
    X,
    apply,
    constant,
    continuous,
    maximum,
    minimum,
    where,
)

#: The most choices in a formula; each is written out once for each branch.
_MOST_CHOICES = 4
#: Operations that make masks.
_MASKS = ("gt", "greater", "lt", "less", "ge", "greater_equal", "le", "less_equal", "logical_not", "bitwise_not")
#: The most tensors of which an expression is kept as a function.
_MOST_FORMS = 6
#: Operations whose own rules treat their operands as independent.
_JOINS = ("mul", "multiply", "div", "divide", "true_divide", "where", "masked_fill", "maximum", "minimum", "addcmul",
          "addcdiv")  # fmt: skip


class Entrywise(Nonlinear):
    """A function of one real variable applied to every entry: ``||g(a) - g(b)|| <= sup|g'| ||a - b||``."""

    def __init__(self, x: Expr, formula: Formula) -> None:
        self.inputs, self.formula = (x,), formula
        self.steepest = slope(formula)
        self._rule = Pointwise(
            x,
            lambda low, high: min(self.steepest, slope(formula, low, high)),
            lambda low, high: enclosure(formula, 0, low, high),
            needs_range=True,
            vanishing=formula.exact(Fraction(0)) == 0,
        )

    @property
    def sector(self) -> tuple[float, float] | None:
        """Return the largest slope and its negative."""
        return (-self.steepest, self.steepest) if math.isfinite(self.steepest) else None

    def constant(self, context: Context) -> Lip:
        """Return the largest slope, on the line or on the range of the entries, times the constant of the input."""
        return self._rule.constant(context)

    def image(self, context: Context) -> Range:
        """Return the image of the interval the entries lie in."""
        return self._rule.image(context)


Arguments = dict[str, Any]
Builder = Callable[[Arguments], Formula | None]
#: A tensor, and a function of its entries.
Form = tuple[Expr, Formula]


class Forms:
    """Keeps track of expressions that are entrywise functions of earlier ones, earliest first."""

    def __init__(self) -> None:
        self._known: dict[int, list[Form]] = {}

    def refined(self, call: Call, result: Any) -> Any:
        """Record the entrywise functions an operation computes; return a tighter rule for it if there is one."""
        if not isinstance(result, Expr) or result.id in self._known:
            return result
        found = self._forms(call)
        if not found or any(result is value for value in call.arguments.values()):
            return result
        helpful = [form for form in found if _helps(call, result, *form)]
        if helpful:
            base, formula = next((form for form in helpful if math.isfinite(slope(form[1]))), helpful[0])
            result = call.atom(Entrywise(base, formula), result.shape)
        self._known[result.id] = found
        return result

    def _of(self, expr: Expr) -> dict[int, Form]:
        """Return the expressions that one is an entrywise function of, itself included where one may start."""
        known = self._known.get(expr.id, [])
        anew = [(expr, X)] if not known or isinstance(expr.atom, Entrywise) else []
        return {base.id: (base, formula) for base, formula in (*known, *anew)}

    def _forms(self, call: Call) -> list[Form]:
        """Return each tensor of which alone the operation is an entrywise function, with the formula."""
        build = _BUILDERS.get(call.name) if call.node.op.startswith("aten.") else None
        names = call.tainted()
        operands = [call[name] for name in names]
        kind = call.value.dtype if isinstance(call.value, Tensor) else torch.int64
        if not kind.is_floating_point and not (kind == torch.bool and call.name in _MASKS):
            return []  # sums of masks, and integers, have their own arithmetic
        if build is None or not all(isinstance(e, Expr) and e.shape == call.shape for e in operands):
            return []
        options = [self._of(e) for e in operands]
        found: list[Form] = []
        for key, (base, _) in options[0].items():
            if not all(key in option for option in options):
                continue
            formula = _built(build, call, {n: o[key][1] for n, o in zip(names, options, strict=True)})
            if formula is not None:
                found.append((base, formula))
        return found[-_MOST_FORMS:]


def _built(build: Builder, call: Call, forms: dict[str, Formula]) -> Formula | None:
    """Return the formula of an operation on formulas, or ``None`` if there is none, or none that is short enough."""
    if sum(node.op == "where" for f in forms.values() for node in f.walk()) > _MOST_CHOICES:
        return None
    try:
        formula = build({**call.arguments, **forms})
    except (TypeError, ValueError, KeyError, OverflowError):  # an argument that is not one number
        return None
    return formula if formula is not None and formula.size <= LONGEST else None


def _helps(call: Call, result: Expr, base: Expr, formula: Formula) -> bool:
    """Return whether the formula gives a tighter bound than the rule of the operation."""
    if result.atom is None or not continuous(formula):
        return False
    operands = [call[name] for name in call.tainted()]
    if call.name in _JOINS:
        return len({e.id for e in operands}) > 1
    outside = isinstance(result.atom, Pointwise) and result.atom.needs_range
    return outside and operands[0].id != base.id and math.isfinite(slope(formula))


def _form(value: Any) -> Formula:
    """Return a formula as it is, and a number or a tensor of one value as a constant."""
    if isinstance(value, Formula):
        return value
    if isinstance(value, Tensor) and value.numel() and not value.is_complex():
        first = value.reshape(-1)[0]
        if not bool((value == first).all()):
            raise ValueError("a tensor of several values is not a constant")
        value = first.item()
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"not a number: {type(value).__name__}")
    if isinstance(value, int) and int(float(value)) != value:
        raise ValueError("an integer that is no float")
    return constant(float(value))


def _sum(sign: float, *, swapped: bool = False) -> Builder:
    def build(a: Arguments) -> Formula:
        left, right = _form(a["self"]), _form(a["other"])
        left, right = (right, left) if swapped else (left, right)
        return left + constant(sign * float(1.0 if a.get("alpha") is None else a["alpha"])) * right

    return build


def _divided(a: Arguments) -> Formula | None:
    if a.get("rounding_mode") is not None:
        return None
    return _form(a["self"]) / _form(a["other"])


def _raised(a: Arguments) -> Formula | None:
    if isinstance(a["exponent"], Formula):
        return None
    f, p = _form(a["self"]), _form(a["exponent"]).number
    if p == 1.0:
        return f
    if p == int(p) and 2 <= p <= 8:
        return f ** int(p)
    name = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "inverse"}.get(p)
    return None if name is None else apply(name, f)


def _softplus(a: Arguments) -> Formula | None:
    beta, threshold = float(a["beta"]), float(a["threshold"])
    if not beta > 0 or not jump_is_rounding(threshold):
        return None
    inner = apply("softplus", constant(beta) * _form(a["self"]))
    return inner / constant(beta) if beta != 1.0 else inner


def _leaky(a: Arguments) -> Formula:
    f, below = _form(a["self"]), constant(float(a["negative_slope"]))
    return apply("relu", f) - below * apply("relu", -f)


def _cut(low: str, high: str) -> Builder:
    def build(a: Arguments) -> Formula:
        f = _form(a["self"])
        f = f if a.get(low) is None else maximum(f, _form(a[low]))
        return f if a.get(high) is None else minimum(f, _form(a[high]))

    return build


def _compared(order: int, *, strict: bool) -> Builder:
    """Return the mask of ``self > other`` (order 1) or ``self < other`` (order -1), or with equality."""

    def build(a: Arguments) -> Formula:
        difference = _form(a["self"]) - _form(a["other"])
        above = difference if order > 0 else -difference
        return where(above, ONE, ZERO) if strict else where(-above, ZERO, ONE)

    return build


def _select(mask: Formula, yes: Formula, no: Formula) -> Formula | None:
    """Return the choice between two formulas by a mask that is made of comparisons."""
    if mask.op == "constant":
        return yes if mask.number else no
    if mask.op != "where":
        return None
    a, b = (_select(part, yes, no) for part in mask.parts[1:])
    return None if a is None or b is None else where(mask.parts[0], a, b)


def _chosen(mask: str, yes: str, no: str) -> Builder:
    return lambda a: _select(a[mask], _form(a[yes]), _form(a[no])) if isinstance(a[mask], Formula) else None


def _scaled_third(join: Callable[[Formula, Formula], Formula]) -> Builder:
    def build(a: Arguments) -> Formula:
        inner = join(_form(a["tensor1"]), _form(a["tensor2"]))
        return _form(a["self"]) + _form(a.get("value", 1)) * inner

    return build


def _of_two(join: Callable[[Formula, Formula], Formula]) -> Builder:
    return lambda a: join(_form(a["self"]), _form(a["other"]))


def _of_one(function: Callable[[Formula], Formula]) -> Builder:
    return lambda a: function(_form(next(iter(a.values()))))


#: What operations do to formulas, by name.
_BUILDERS: dict[str, Builder] = {
    **{name: _of_one(function) for name, function in ACTIVATIONS.items()},
    "negative": _of_one(operator.neg),
    "absolute": _of_one(ACTIVATIONS["abs"]),
    "special_expit": _of_one(ACTIVATIONS["sigmoid"]),
    "special_erf": _of_one(ACTIVATIONS["erf"]),
    "logical_not": lambda a: _select(a["self"], ZERO, ONE),
    "bitwise_not": lambda a: _select(a["self"], ZERO, ONE),
    "add": _sum(1.0), "sub": _sum(-1.0), "subtract": _sum(-1.0), "rsub": _sum(-1.0, swapped=True),
    "mul": _of_two(operator.mul), "multiply": _of_two(operator.mul),
    "div": _divided, "divide": _divided, "true_divide": _divided,
    "maximum": _of_two(maximum), "minimum": _of_two(minimum),
    "addcmul": _scaled_third(operator.mul), "addcdiv": _scaled_third(operator.truediv),
    "pow": _raised, "softplus": _softplus, "leaky_relu": _leaky,
    "clamp": _cut("min", "max"), "clip": _cut("min", "max"), "clamp_min": _cut("min", "max"),
    "clamp_max": _cut("min", "max"), "hardtanh": _cut("min_val", "max_val"),
    "gt": _compared(1, strict=True), "greater": _compared(1, strict=True),
    "lt": _compared(-1, strict=True), "less": _compared(-1, strict=True),
    "ge": _compared(1, strict=False), "greater_equal": _compared(1, strict=False),
    "le": _compared(-1, strict=False), "less_equal": _compared(-1, strict=False),
    "where": _chosen("condition", "self", "other"), "masked_fill": _chosen("mask", "value", "self"),
}  # fmt: skip
