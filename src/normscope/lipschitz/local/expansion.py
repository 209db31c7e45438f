"""Nonlinear operations expanded into linear maps and entrywise functions, for which the bounds are proved."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.lipschitz.local.linear_steps import OperationBounds
from normscope.lipschitz.local.slopes import MonotoneSlope, ScalarFunction, scalar_of
from normscope.lipschitz.local.tangents import SQUARE, TangentAlgebra, TensorWithTangents, UnboundedError
from normscope.operators.arithmetic import Product, Quotient, Square
from normscope.operators.attention import Attention, LogSoftmax, Softmax
from normscope.operators.matrix import MatrixProduct
from normscope.operators.maximum import Maximum
from normscope.operators.nonlinear import Nonlinear
from normscope.operators.normalizers.local_response_norm import LocalResponseDivision
from normscope.operators.pooling import MaxPool
from normscope.operators.scalar.activations import curve_of
from normscope.operators.spread_division import Division

#: Most products of entries that a product of matrices is written as.
LARGEST_PRODUCT = 2_000
_RELU = ScalarFunction(torch.relu, curve_of("relu"))
_EXP = MonotoneSlope(torch.exp)
_LOG = MonotoneSlope(torch.log, 0.0)
_INVERSE = MonotoneSlope(torch.reciprocal, 0.0)
_COPY = OperationBounds(1.0, 1.0, 0)


def _bounds(norm: float, roundings: int = 0) -> OperationBounds:
    """Return the bounds of an operation whose absolute coefficients have the same norm, which is rounded up."""
    above = norm * (1 + 1e-12)
    return OperationBounds(above, above, roundings)


def expanded(rule: Nonlinear, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """Apply a nonlinear operation to tensors with tangents.

    Args:
        rule: the operation.
        inputs: what it acts on.
        algebra: with which it is computed.

    Raises:
        UnboundedError: if there is no local rule for it.
    """
    scalar = scalar_of(rule)
    if scalar is not None:
        return algebra.scalar(inputs[0], scalar)
    found = _RULES.get(type(rule))
    if found is None:
        raise UnboundedError(f"{operation_label(rule)} has no local rule")
    return found(rule, inputs, algebra)


def operation_label(rule: Nonlinear) -> str:
    """Return an operation and where it is."""
    return f"{rule.op} in {rule.owner}" if rule.owner else rule.op or type(rule).__name__


def _quotient(rule: Quotient, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """``f / g`` as ``f (1 / g)`` where g has one sign."""
    if len(inputs) == 1:
        raise UnboundedError(f"{operation_label(rule)} has no local rule: its numerator is a constant")
    below, above = inputs
    sign = -1.0 if bool((below.at.value < 0).all()) else 1.0
    inverse = algebra.scalar(algebra.times(below, sign), _INVERSE)
    return algebra.times(algebra.product(above, inverse), sign)


def _maximum(rule: Maximum, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """``max(f, g) = f + relu(g - f)``, ``min(f, g) = f - relu(f - g)``."""
    f, g = inputs
    if rule.largest:
        return algebra.plus(f, algebra.scalar(algebra.plus(g, f, -1.0), _RELU))
    return algebra.plus(f, algebra.scalar(algebra.plus(f, g, -1.0), _RELU), -1.0)


def _max_pool(rule: MaxPool, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """The largest of the taps of each window, one after the other."""
    if rule.taps is None:
        raise UnboundedError(f"{operation_label(rule)} has no local rule")
    window = _bounds(math.sqrt(rule.overlap))
    parts = [algebra.mapped(inputs[0], functools.partial(_taken, places=p), window) for p in rule.taps]
    while len(parts) > 1:  # in pairs, so that errors stay small
        joined = [
            algebra.plus(a, algebra.scalar(algebra.plus(b, a, -1.0), _RELU))
            for a, b in zip(parts[::2], parts[1::2], strict=False)
        ]
        parts = joined + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def _taken(z: Tensor, places: Tensor) -> Tensor:
    return z.flatten()[places]


def _division(rule: Division, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """``x (k m + eps)^(-1/2)`` with m the mean square of each group, times the gain."""
    spread, x = rule.spread, inputs[0]
    whole = algebra.division(x, spread)
    if whole is not None:
        return _scaled(rule, whole, algebra)
    if spread.where != "inside" or (spread.eps == 0.0 and bool((spread.of(x.at.value) == 0).any())):
        raise UnboundedError(f"{operation_label(rule)} has no local rule")
    n, k, eps, shape = spread.size, spread.factor, spread.eps, tuple(x.at.value.shape)
    means = algebra.mapped(
        algebra.scalar(x, SQUARE),
        lambda z: z.reshape(spread.view).mean(spread.axes, keepdim=True),
        _bounds(1 / math.sqrt(n), n + 2),
    )
    inverse = algebra.scalar(means, MonotoneSlope(lambda v: (k * v + eps).rsqrt(), -eps / k * (1 - 1e-12)))
    full = algebra.mapped(inverse, lambda z: z.expand(spread.view).reshape(shape), _bounds(math.sqrt(n)))
    return _scaled(rule, algebra.product(x, full), algebra)


def _scaled(rule: Division, result: TensorWithTangents, algebra: TangentAlgebra) -> TensorWithTangents:
    """Return a divided tensor times the gain of each group."""
    if rule.gain is None:
        return result
    spread, shape = rule.spread, tuple(result.at.value.shape)
    gain = rule.gain.expand([1 if i in spread.axes else v for i, v in enumerate(spread.view)])
    scale = gain.expand(spread.view).reshape(shape)
    return algebra.mapped(result, lambda z: z * scale, _bounds(float(scale.abs().max()), 2))


def _local_response(
    rule: LocalResponseDivision, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra
) -> TensorWithTangents:
    """``x (k + alpha m)^-beta`` with m the mean square of each window."""
    numbers, x = rule.numbers, inputs[0]
    means = algebra.mapped(algebra.scalar(x, SQUARE), numbers.window_means, _bounds(1.0, numbers.size + 2))
    power = MonotoneSlope(
        lambda v: (numbers.k + numbers.alpha * v) ** -numbers.beta, -numbers.k / (2 * max(numbers.alpha, 1e-300))
    )
    return algebra.product(x, algebra.scalar(means, power))


def _distribution(x: TensorWithTangents, axis: int, keep: Tensor | None, algebra: TangentAlgebra) -> TensorWithTangents:
    """Return the softmax along an axis; what is not kept is zero."""
    whole = algebra.distribution(x, axis, keep)
    if whole is not None:
        return whole
    shape, length = tuple(x.at.value.shape), x.at.value.shape[axis]
    top = x.at.value if keep is None else x.at.value.masked_fill(~keep, -math.inf)
    shift = top.amax(axis, keepdim=True).clamp_min(-1e300)
    raised = algebra.scalar(algebra.shifted(x, -shift), _EXP)
    if keep is not None:
        raised = algebra.mapped(raised, lambda z: z * keep, _COPY)
    root, back = math.sqrt(length), axis - len(shape)
    total = algebra.mapped(raised, lambda z: z.sum(back, keepdim=True), _bounds(root, length))
    inverse = algebra.scalar(total, _INVERSE)
    return algebra.product(raised, algebra.mapped(inverse, lambda z: z.expand(shape), _bounds(root)))


def _log_softmax(rule: LogSoftmax, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """``x - log(sum(exp(x)))``."""
    x, axis = inputs[0], rule.axis
    shape, length = tuple(x.at.value.shape), x.at.value.shape[axis]
    moved = algebra.shifted(x, -x.at.value.amax(axis, keepdim=True))
    root, back = math.sqrt(length), axis - len(shape)
    total = algebra.mapped(algebra.scalar(moved, _EXP), lambda z: z.sum(back, keepdim=True), _bounds(root, length))
    logs = algebra.scalar(total, _LOG)
    return algebra.plus(moved, algebra.mapped(logs, lambda z: z.expand(shape), _bounds(root)), -1.0)


def _matrices(
    left: TensorWithTangents, right: TensorWithTangents, algebra: TangentAlgebra, label: str
) -> TensorWithTangents:
    """Return ``A B`` as products of entries, summed."""
    whole = algebra.matrix_product(left, right)
    if whole is not None:
        return whole
    rows, inner = left.at.value.shape[-2:]
    columns = right.at.value.shape[-1]
    count = left.at.value.numel() * columns
    if count > LARGEST_PRODUCT:
        raise UnboundedError(f"{label} has no local rule for {count:,} products of entries; {LARGEST_PRODUCT:,} fit")
    batch = tuple(left.at.value.shape[:-2])
    shape = (*batch, rows, inner, columns)
    f = algebra.mapped(left, lambda z: z.unsqueeze(-1).expand(shape), _bounds(math.sqrt(columns)))
    g = algebra.mapped(right, lambda z: z.unsqueeze(-3).expand(shape), _bounds(math.sqrt(rows)))
    return algebra.mapped(algebra.product(f, g), lambda z: z.sum(-2), _bounds(math.sqrt(inner), inner))


def _matrix_product(
    rule: MatrixProduct, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra
) -> TensorWithTangents:
    left, right = inputs
    if left.at.value.shape[:-2] != right.at.value.shape[:-2]:
        raise UnboundedError(f"{operation_label(rule)} has no local rule for matrices that are broadcast")
    return _matrices(left, right, algebra, operation_label(rule))


def _attention(rule: Attention, inputs: Sequence[TensorWithTangents], algebra: TangentAlgebra) -> TensorWithTangents:
    """``softmax(s Q K^T + mask) V``."""
    if len(inputs) > 3:
        raise UnboundedError(f"{operation_label(rule)} has no local rule for a mask that depends on the input")
    q, k, v = inputs
    keys = algebra.mapped(k, lambda z: z.mT, _COPY)
    logits = algebra.times(_matrices(q, keys, algebra, operation_label(rule)), rule.exact_scale)
    keep = None
    if rule.shown is not None:
        mask = rule.shown.expand(logits.at.value.shape)
        keep = mask if mask.dtype == torch.bool else mask > -math.inf
        if not bool(keep.any(-1).all()):
            raise UnboundedError(f"{operation_label(rule)} has no local rule: a query sees no key")
        if mask.dtype != torch.bool:
            logits = algebra.shifted(logits, mask.double().masked_fill(~keep, 0.0))
    weights = _distribution(logits, logits.at.value.ndim - 1, keep, algebra)
    return _matrices(weights, v, algebra, operation_label(rule))


_RULES: dict[type, Callable[[Any, Sequence[TensorWithTangents], TangentAlgebra], TensorWithTangents]] = {
    Square: lambda rule, inputs, algebra: algebra.scalar(inputs[0], SQUARE),
    Product: lambda rule, inputs, algebra: algebra.product(*inputs),
    Quotient: _quotient,
    Maximum: _maximum,
    MaxPool: _max_pool,
    Division: _division,
    LocalResponseDivision: _local_response,
    Softmax: lambda rule, inputs, algebra: _distribution(inputs[0], rule.axis, None, algebra),
    LogSoftmax: _log_softmax,
    MatrixProduct: _matrix_product,
    Attention: _attention,
}
