"""Rules: what is known of each operation. Users register their own with :func:`register_rule`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import NormscopeError, RuleError
from normscope.core.lazy import modules_in
from normscope.graph.interpreter import as_floating, literals, resolve
from normscope.graph.ir import Node
from normscope.operators.expression import Expr, LinearOp, atom_expr, linear
from normscope.operators.nonlinear import Nonlinear, Opaque


@dataclass(frozen=True)
class Call:
    """One operation of the graph at the moment its rule is called."""

    node: Node  #: the graph node
    #: every argument by its schema name; tensors that depend on the network input are :class:`Expr`, all others are
    #: plain values
    arguments: dict[str, Any]
    value: Any  #: what the operation returns at the reference input, for shapes
    weight_name: str = ""  #: the first parameter among its inputs, for reports

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where the operation has none of that name or it is ``None``."""
        value = self.arguments.get(name)
        return default if value is None else value

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the (first) result."""
        first = self.value[0] if isinstance(self.value, tuple | list) else self.value
        return tuple(first.shape) if isinstance(first, Tensor) else ()  # a number read off a tensor

    @property
    def name(self) -> str:
        """Return the name of the operation, without namespace and overload."""
        return self.node.op.split(".")[1]

    @property
    def first(self) -> Any:
        """Return the first argument."""
        return next(iter(self.arguments.values()))

    def shaped(self, shape: tuple[int, ...]) -> Call:
        """Return the call with a result of another shape, for a part of what it computes."""
        return Call(self.node, self.arguments, torch.empty(shape, device="meta"), self.weight_name)

    def tainted(self) -> list[str]:
        """Return the names of the arguments that depend on the network input."""
        return [name for name, value in self.arguments.items() if expressions(value)]

    @property
    def only_first_depends(self) -> bool:
        """Return whether the first argument, and no other, depends on the network input."""
        return self.tainted() == [next(iter(self.arguments))]

    def bound(self, *names: str) -> Callable[..., Tensor]:
        """Return the operation as a function of named arguments, by default of the first that depends on the input."""
        function, names = resolve(self.node.op), names or (self.tainted()[0],)
        rest = {k: literals(v) for k, v in self.arguments.items() if k not in (*names, *_OF_GRADIENTS)}

        def apply(*given: Any) -> Tensor:
            constants = as_floating(rest, getattr(given[0], "dtype", None))
            return call_by_name(function, constants | dict(zip(names, given, strict=True)))

        return apply

    def linear(
        self,
        kind: str,
        apply: Callable[..., Tensor],
        inputs: list[Expr],
        *,
        shape: tuple[int, ...] | None = None,
        bias: Tensor | None = None,
        **rest: Any,
    ) -> Expr:
        """Return the result as a linear operation on its inputs."""
        axes = rest.pop("axes", None)
        op = LinearOp(kind, apply, bias, rest, axes, self.node.owner, self.weight_name)
        return linear(op, inputs, self.shape if shape is None else shape)

    def atom(self, rule: Nonlinear, shape: tuple[int, ...] | None = None) -> Expr:
        """Return the result as a new atom that obeys a nonlinear rule."""
        rule.name, rule.owner, rule.op = self.node.name, self.node.owner, self.node.op
        return atom_expr(rule, self.shape if shape is None else shape)

    def opaque(self, reason: str, *, known: bool = False, shape: tuple[int, ...] | None = None) -> Any:
        """Return the results as opaque: they are listed, and every bound through them is infinite.

        Args:
            reason: why.
            known: the operation is understood and has no finite constant, rather than unknown.
            shape: make one tensor of this shape, rather than all that the operation returns.
        """
        if shape is None:
            return self.with_rest(self.opaque(reason, known=known, shape=self.shape), reason, known=known)
        inputs = [e for name in self.tainted() for e in expressions(self.arguments[name])]
        return self.atom(Opaque(tuple(inputs), reason, known), shape)

    def with_rest(self, first: Expr, reason: str, *, known: bool = True) -> Any:
        """Return the first result of an operation, and the others, if it has any, as opaque."""
        if not isinstance(self.value, tuple | list):
            return first
        return [first] + [
            self.opaque(reason, known=known, shape=tuple(v.shape)) if isinstance(v, Tensor) else None
            for v in self.value[1:]
        ]


#: Arguments that change torch's gradient but not the result: with them the gradient is not the adjoint.
_OF_GRADIENTS = ("padding_idx", "scale_grad_by_freq", "sparse", "sparse_grad")


def call_by_name(function: Any, given: dict[str, Any]) -> Tensor:
    """Call an operation by the names that its schema gives its arguments."""
    arguments = function._schema.arguments
    args = [given.get(a.name, a.default_value) for a in arguments if not a.kwarg_only]
    kwargs = {a.name: given[a.name] for a in arguments if a.kwarg_only and given.get(a.name) is not None}
    return function(*args, **kwargs)


Rule = Callable[[Call], Any]
_RULES: dict[str, Rule] = {}


def expressions(value: Any) -> list[Expr]:
    """Return the expressions in an argument."""
    if isinstance(value, Expr):
        return [value]
    if isinstance(value, tuple | list):
        return [e for item in value for e in expressions(item)]
    return []


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of operations, given as ``conv2d`` (every overload) or ``mul.Tensor``."""

    def register(function: Rule) -> Rule:
        for op in ops:
            _RULES[op if "." in op else f"{op}."] = function
        return function

    return register


@functools.cache
def _load_rules() -> None:
    """Import every operation of this folder and every normalizer, which register their rules; once."""
    modules_in("normscope.operators")
    modules_in("normscope.operators.normalizers")


def register_rule(op: str, function: Rule) -> None:
    """Register a rule for an operation that Normscope does not know.

    Args:
        op: the name shown in the coverage table, e.g. ``my_library.my_op.default``.
        function: given a :class:`Call`, returns an expression made with ``call.linear(...)`` or ``call.atom(...)``.

    Raises:
        RuleError: if the name is not ``namespace.operator.overload`` or the rule is not callable.

    >>> register_rule("my_library.double.default", lambda call: call.linear("generic", lambda x: 2 * x, [call["x"]]))
    >>> find_rule("my_library.double.default") is not None
    True
    """
    if op.count(".") != 2:
        raise RuleError(
            f"Expected an operation of the form namespace.operator.overload, got {op!r}. See the coverage table."
        )
    if not callable(function):
        raise RuleError(f"Expected the rule for {op} to be a function of a Call, got {type(function).__name__}.")
    _load_rules()
    _RULES[op] = functools.partial(_checked, op, function)


def _checked(op: str, function: Rule, call: Call) -> Any:
    """Return what a user's rule returns, if it is an expression; a missing return would hide the operation."""
    try:
        found = function(call)
    except NormscopeError:
        raise
    except Exception as error:
        raise RuleError(
            f"The rule for {op} raised {type(error).__name__}: {error}. Arguments of the call: "
            f"{', '.join(call.arguments) or 'none'}."
        ) from error
    if not expressions(found):
        raise RuleError(
            f"Expected the rule for {op} to return call.linear(...), call.atom(...) or call.opaque(...), got "
            f"{type(found).__name__}."
        )
    return found


def find_rule(op: str) -> Rule | None:
    """Return the rule of an operation, the most specific one, or ``None``."""
    _load_rules()
    if op in _RULES:
        return _RULES[op]
    if op.count(".") != 2 or not op.startswith("aten."):
        return None
    _, name, overload = op.split(".")
    return _RULES.get(f"{name}.{overload}") or _RULES.get(f"{name}.")


@functools.cache
def parameter_names(op: str) -> tuple[tuple[str, Any], ...]:
    """Return names and defaults of an operation's arguments, from its schema."""
    schema = getattr(resolve(op), "_schema", None)
    if schema is None:
        return ()
    return tuple((a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments)


def bind(op: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults filled in."""
    known = parameter_names(op)
    names = [name for name, _ in known] + [f"arg{i}" for i in range(len(known), len(args))]
    bound = dict(zip(names, args, strict=False))
    for name, default in known:
        bound.setdefault(name, kwargs.get(name, default))
    return bound | {key: value for key, value in kwargs.items() if key not in bound}


def arguments_of(node: Node) -> dict[str, Any]:
    """Return the arguments of a node by name, defaults filled in; tensors are still references."""
    return bind(node.op, list(node.args), dict(node.kwargs))
