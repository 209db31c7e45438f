"""Theorem 12 of than2025 as printed, and what takes its place for a chain without normalizers."""

import math
from collections.abc import Iterable

import torch

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input, Pointwise
from normscope.operators.program import Program

#: What Theorem 12 takes for granted.
ASSUMES = (
    "a plain chain of layers g(NO(W h)) with 1-Lipschitz activations",
    "the largest activation norm is finite on the domain",
    "statistics of normalizers do not move with the weight",
)


@statement("than2025", "Theorem 12", holds="printed; a chain, a bounded domain and fixed statistics")
def theorem_12(activation: Value, weights_after: Iterable[Value], normalizers: Iterable[Value]) -> Value:
    """Return ``A_{i-1} b_{i+1} prod_{k >= i} ||NO_k||`` with the constants the paper prints for its normalizers.

    Args:
        activation: ``A_{i-1}``, the largest norm of the input of layer i.
        weights_after: ``||W_k||`` for ``k > i``; empty for the last layer.
        normalizers: printed constants of the normalizers from layer i on.

    >>> one = Value.of(2.0, Kind.CERTIFIED)
    >>> theorem_12(one, [one, one], [Value.of(0.5, Kind.PRINTED)]).kind.value
    'printed'
    """
    whole = product([Value(0.0, Kind.PRINTED), activation, *weights_after, *normalizers])
    return Value(whole.log, Kind.PRINTED, activation.domain, whole.mode, "than2025 Theorem 12", ASSUMES)


@statement(
    "normscope", "Proposition W-4", holds="a chain without biases and normalizers, activations with |g(t)| <= |t|"
)
def unnormalized_product(weights: Iterable[Value], index: int, input_norm: Value) -> Value:
    """Return ``prod_{j != i} ||W_j|| ||x||``, the same for every layer up to its own factor.

    Args:
        weights: spectral norms of all layers, in order.
        index: the layer i, from zero.
        input_norm: ``||x||``, or its largest value over a set.

    >>> norms = [Value.of(2.0, Kind.CERTIFIED)] * 6
    >>> round(unnormalized_product(norms, 0, Value.of(1.0, Kind.CERTIFIED)).value, 9)
    32.0
    """
    factors = [w for i, w in enumerate(weights) if i != index]
    whole = product([*factors, input_norm])
    return Value(whole.log, whole.kind, input_norm.domain, None, "normscope Proposition W-4", whole.assumptions)


def is_plain_chain(program: Program) -> bool:
    """Return whether a network is a chain of linear maps without bias and activations with ``|g(t)| <= |t|``."""
    if program.sites or len(program.blocks) != 1 or len(program.outputs) != 1:
        return False
    stack: list[Expr] = [program.outputs[0][1]]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if item.id in seen:
            return False  # two paths lead to it
        seen.add(item.id)
        below = item.inputs if item.op is not None else item.atom.inputs
        if len(below) > 1 or not _fits(item):
            return False
        stack.extend(below)
    return True


def _fits(item: Expr) -> bool:
    """Return whether one step of a chain keeps zero and does not stretch, or is a matrix or keeps entries."""
    if item.op is None:
        rule = item.atom
        steep = math.inf if not isinstance(rule, Pointwise) else rule.slope(-math.inf, math.inf)
        return isinstance(rule, Input) or (isinstance(rule, Pointwise) and rule.vanishing and steep <= 1.0)
    bias = item.op.bias
    unbiased = bias is None or not bool(torch.any(bias != 0))
    return unbiased and (item.op.kind in ("isometry", "embedding", "contraction") or bool(item.op.weight_name))
